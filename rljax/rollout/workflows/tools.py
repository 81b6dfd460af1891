"""Tools that a workflow is made with: prompts, engines' replies, texts, and the trajectory of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Int

from rljax.config.environments import EnvironmentConfig
from rljax.config.schema import GeneratingConfig
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.environments.hosts import EnvironmentHost
from rljax.rollout.workflows.transcript import Transcript
from rljax.rollout.workflows.workflow import Attempt
from rljax.tasks.rewards.runner import RewardRunner
from rljax.tasks.task import BadRow, Task
from rljax.tasks.templates import render_prompt, response_text
from rljax.trajectory import Trajectory
from sidecar.protocol import Completion, GenerateRequest, SamplingParams


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Everything of a run that a workflow may use.

    Attributes:
        tokenizer: of the model, with its chat template.
        rewards: scores responses: ``await rewards.score(task, text)``.
        generating: how engines sample; that of training, or of validation.
        stop_token_ids: end the model's turn.
        max_prompt_tokens: longest prompt.
        max_response_tokens: longest reply.
        sequence_length: longest row that the learner reads, in tokens.
        hosts: where environments compute, by `EnvironmentConfig.place`.
        environments: by the name of the taskset; empty where the run has none.
    """

    tokenizer: Any
    rewards: RewardRunner
    generating: GeneratingConfig
    stop_token_ids: Sequence[int]
    max_prompt_tokens: int
    max_response_tokens: int
    sequence_length: int
    hosts: Mapping[str, EnvironmentHost] = field(default_factory=dict)
    environments: Mapping[str, EnvironmentConfig] = field(default_factory=dict)

    @property
    def reply_tokens(self) -> int:
        """Most tokens of a reply."""
        return min(self.generating.max_new_tokens or self.max_response_tokens, self.max_response_tokens)

    def prompt(self, task: Task) -> Int[np.ndarray, " time"]:
        """Returns the token ids of a task's messages, int32, up to where the first reply begins.

        Raises:
            BadRow: there is none, or it is longer than `max_prompt_tokens`.
        """
        return render_prompt(self.tokenizer, task, self.max_prompt_tokens)

    def text(self, token_ids: Int[np.ndarray, " time"]) -> str:
        """Returns the text of a reply, without the stop token that ends it."""
        return response_text(self.tokenizer, token_ids, self.stop_token_ids)

    def sampling(self, task: Task, attempt: Attempt, turn: int = 0, most: int | None = None) -> SamplingParams:
        """Returns how the config samples a reply of the attempt; its number gives it a seed of its own. ``most`` is its
        longest length in tokens; None: `reply_tokens`.
        """
        return SamplingParams(
            temperature=self.generating.temperature,
            top_p=self.generating.top_p,
            top_k=self.generating.top_k,
            min_p=self.generating.min_p,
            repetition_penalty=self.generating.repetition_penalty,
            max_new_tokens=self.reply_tokens if most is None else most,
            stop_token_ids=tuple(self.stop_token_ids),
            stop_strings=self.generating.stop,
            seed=attempt.seed(task, turn),
        )

    async def ask(
        self,
        task: Task,
        attempt: Attempt,
        pool: EnginePool,
        row: Int[np.ndarray, " time"],
        turn: int = 0,
        most: int | None = None,
    ) -> Completion:
        """Returns an engine's reply to a row of token ids, as the config samples.

        Args:
            task: what is attempted.
            attempt: says which weights are new enough, and the seed.
            pool: the engines.
            row: int32 ``[time]``, all that the model is to see.
            turn: number of the reply in the attempt, from 0: each has a seed of its own.
            most: its longest length in tokens; None: `reply_tokens`.

        Raises:
            BadRow: the row leaves no room for a reply.
        """
        room = self.sequence_length - len(row)
        if room < 1:
            raise BadRow(
                f"task {task.id}: {len(row)} tokens leave no room for a reply; model.sequence_length is "
                f"{self.sequence_length}"
            )
        most = min(self.reply_tokens if most is None else most, room)
        request = GenerateRequest(
            id=f"{task.id}/{attempt.member}/{attempt.retry}/{turn}" + ("/val" if attempt.validation else ""),
            prompt_ids=row,
            sampling=self.sampling(task, attempt, turn, most),
            min_version=attempt.min_version,
            pinned=attempt.pinned,
            affinity=str(task.id),
            priority=attempt.group,
        )
        return await pool.generate(request, attempt.lineage, validation=attempt.validation)

    def trajectory(
        self,
        task: Task,
        attempt: Attempt,
        transcript: Transcript,
        *,
        reward: float,
        finish_reason: str,
        metrics: Mapping[str, float] | None = None,
        **more: Any,
    ) -> Trajectory:
        """Returns the trajectory of an attempt.

        Args:
            task: what was attempted.
            attempt: whose it is.
            transcript: texts and replies, in their order.
            reward: the score of the whole.
            finish_reason: why it ended: ``stop``, ``length``, or a word of the workflow's own.
            metrics: whatever else is worth logging.
            more: further attributes of `Trajectory`: ``reward_parts``, ``turn_rewards``, ``turn_states``.
        """
        columns, generating = transcript.columns(), self.generating
        return Trajectory(
            **columns,
            reward=reward,
            temperature=generating.temperature,
            top_p=generating.top_p,
            top_k=generating.top_k,
            finish_reason=finish_reason,
            member=attempt.member,
            seed=attempt.seed(task, 0),
            retries=attempt.retry,
            metrics={**(metrics or {}), "response_tokens": float(columns["loss_mask"].sum())},
            **more,
        )
