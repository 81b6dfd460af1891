"""The workflow for questions with one answer: prompt, one response, its reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rljax.config.registries import workflows
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.workflows.tools import Tools
from rljax.rollout.workflows.workflow import Attempt
from rljax.tasks.rewards.reward import Reward
from rljax.tasks.task import Task
from rljax.trajectory import NOT_SAMPLED, Trajectory
from sidecar.protocol import Completion, SamplingParams


@workflows.register("single_turn")
class SingleTurn:
    """Answers one question with one response, scored by the task's rewards."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def run(self, task: Task, attempt: Attempt, pool: EnginePool) -> Trajectory:
        """Implements `Workflow.run`. Raises whatever prompt, engine or reward raise."""
        prompt = self._tools.prompt(task)
        completion = await self._tools.ask(task, attempt, pool, prompt)
        reward = Reward(0.0)  # of a task without any, from which teachers alone have it learnt
        if task.rewards:
            reward = await self._tools.rewards.score(task, self._tools.text(completion.token_ids))
        sampling = self._tools.sampling(task, attempt)
        return assemble(prompt, completion, attempt, sampling, reward.score, dict(reward.parts))

    async def judge_group(self, task: Task, members: Sequence[Trajectory]) -> list[Trajectory]:
        """Implements `JudgesGroups`. Raises whatever the rewards raise."""
        texts = [self._tools.text(member.token_ids[member.prompt_length :]) for member in members]
        rewards = await self._tools.rewards.score_group(task, texts)
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
        routes=completion.routes,
    )
