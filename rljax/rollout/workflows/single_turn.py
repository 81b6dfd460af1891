"""The workflow for questions with one answer: prompt, one response, its reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rljax.config.schema import GeneratingConfig
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.workflows.workflow import Attempt
from rljax.tasks.rewards.runner import RewardRunner
from rljax.tasks.task import Task
from rljax.tasks.templates import render_prompt, response_text
from rljax.trajectory import NOT_SAMPLED, Trajectory
from sidecar.protocol import Completion, GenerateRequest, SamplingParams


class SingleTurn:
    """Answers one question with one response, scored by the task's rewards."""

    def __init__(
        self,
        tokenizer: Any,
        rewards: RewardRunner,
        generating: GeneratingConfig,
        *,
        max_prompt_tokens: int,
        max_response_tokens: int,
        stop_token_ids: Sequence[int],
    ) -> None:
        self._tokenizer = tokenizer
        self._rewards = rewards
        self._generating = generating
        self._max_prompt_tokens = max_prompt_tokens
        self._budget = min(max_response_tokens, generating.max_new_tokens or max_response_tokens)
        self._stop_token_ids = tuple(stop_token_ids)

    async def run(self, task: Task, attempt: Attempt, pool: EnginePool) -> Trajectory:
        """Implements `Workflow.run`. Raises whatever prompt, engine or reward raise."""
        prompt = render_prompt(self._tokenizer, task, self._max_prompt_tokens)
        seed = attempt.seed(task, turn=0)
        sampling = SamplingParams(
            temperature=self._generating.temperature,
            top_p=self._generating.top_p,
            top_k=self._generating.top_k,
            max_new_tokens=self._budget,
            stop_token_ids=self._stop_token_ids,
            stop_strings=self._generating.stop,
            seed=seed,
        )
        request = GenerateRequest(
            id=f"{task.id}/{attempt.member}/{attempt.retry}" + ("/val" if attempt.validation else ""),
            prompt_ids=prompt,
            sampling=sampling,
            min_version=attempt.min_version,
            affinity=str(task.id),
            priority=attempt.group,
        )
        completion = await pool.generate(request, attempt.lineage, validation=attempt.validation)
        text = response_text(self._tokenizer, completion.token_ids, self._stop_token_ids)
        reward = await self._rewards.score(task, text)
        return assemble(prompt, completion, attempt, sampling, reward.score, dict(reward.parts))

    async def judge_group(self, task: Task, members: Sequence[Trajectory]) -> list[Trajectory]:
        """Implements `JudgesGroups`. Raises whatever the rewards raise."""
        begins = [int(member.turns[0, 0]) for member in members]
        texts = [
            response_text(self._tokenizer, member.token_ids[begin:], self._stop_token_ids)
            for member, begin in zip(members, begins, strict=True)
        ]
        rewards = await self._rewards.score_group(task, texts)
        return [
            replace(member, reward=member.reward + more.score, reward_parts={**member.reward_parts, **more.parts})
            for member, more in zip(members, rewards, strict=True)
        ]


def assemble(
    prompt: np.ndarray,
    completion: Completion,
    attempt: Attempt,
    sampling: SamplingParams,
    score: float,
    parts: dict[str, float],
) -> Trajectory:
    """Concatenates prompt and completion, by token id, into a trajectory."""
    start, end = len(prompt), len(prompt) + len(completion.token_ids)
    mask = np.zeros(end, np.bool_)
    mask[start:] = True
    return Trajectory(
        token_ids=np.concatenate([prompt, completion.token_ids]).astype(np.int32),
        loss_mask=mask,
        logprobs=np.concatenate([np.zeros(start, np.float32), completion.logprobs]).astype(np.float32),
        versions=np.concatenate([np.full(start, NOT_SAMPLED, np.int32), completion.versions]).astype(np.int32),
        turns=np.array([[start, end]], np.int32),
        reward=score,
        reward_parts=parts,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        finish_reason=completion.finish_reason,
        member=attempt.member,
        seed=sampling.seed,
        retries=attempt.retry,
        metrics={"response_tokens": float(end - start)},
    )
