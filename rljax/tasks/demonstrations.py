"""Demonstrations: recorded responses to prompts, as trajectories to be imitated."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rljax.config.validate import ConfigError
from rljax.tasks.dialogue import end_of_turn
from rljax.tasks.seeds import fingerprint
from rljax.tasks.task import BadRow, Task, Taskset
from rljax.tasks.templates import quoted, render_prompt, tokenized
from rljax.trajectory import NOT_SAMPLED, Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)


class Demonstrations:
    """Indexes the demonstrations of a taskset in one endless sequence: epoch after epoch, each in the taskset's order.

    The demonstration at a position depends on the position and the taskset alone: no cursor has to be kept, and a run
    that is resumed or replayed imitates the same (promises P3, P13).

    Args:
        taskset: prompts; their answers are the responses.
        tokenizer: of the model.
        stop_token_ids: that end a turn.
        max_prompt_tokens, max_response_tokens: limits; a longer prompt or response makes a bad row.
        temperature: of the policy that imitates.
        on_bad_row: ``fail`` raises; ``skip`` gives the place of a bad row to the next good one of the epoch.
    """

    def __init__(
        self,
        taskset: Taskset,
        tokenizer: PreTrainedTokenizerBase,
        stop_token_ids: Sequence[int],
        *,
        max_prompt_tokens: int,
        max_response_tokens: int,
        temperature: float,
        on_bad_row: str,
    ) -> None:
        self._taskset = taskset
        self._tokenizer = tokenizer
        self._end = end_of_turn(tokenizer, stop_token_ids)
        self._max_prompt_tokens = max_prompt_tokens
        self._max_response_tokens = max_response_tokens
        self._temperature = temperature
        self._skip = on_bad_row == "skip"

    @property
    def fingerprint(self) -> str:
        """Like `Taskset.fingerprint`, but of tokens: template, system prompt and limits are in them."""
        return fingerprint(len(self._taskset), self._content)

    def _content(self, index: int) -> list[float]:
        try:
            shown = self._demonstration(self._taskset.task(0, index))
        except BadRow:
            return []
        return [*shown.token_ids.tolist(), *shown.turns.flatten().tolist(), shown.temperature]

    def at(self, positions: range) -> list[Trajectory]:
        """Returns the demonstrations at these positions, counted from 0 through all epochs.

        Raises:
            BadRow: one cannot be used, with ``on_bad_row=fail``.
            ConfigError: none can be used.
        """
        return [self._usable(*divmod(position, len(self._taskset))) for position in positions]

    def check(self, count: int) -> None:
        """Checks the first ``count`` of the first epoch, so that a bad row is found before a run and not within it.

        Raises:
            BadRow, ConfigError: as `at`.
        """
        bad: list[BadRow] = []
        looked = min(count, len(self._taskset))
        for index in range(looked):
            try:
                self._demonstration(self._taskset.task(0, index))
            except BadRow as error:
                if not self._skip:
                    raise
                bad.append(error)
        if bad and len(bad) == len(self._taskset):
            raise ConfigError(f"tasks.expert.source: no usable row among {len(bad)}; the first: {bad[0]}")
        if bad:
            log.warning("tasks.expert: %d of %d rows are bad and skipped; first: %s", len(bad), looked, bad[0])

    def _usable(self, epoch: int, index: int) -> Trajectory:
        size = len(self._taskset)
        for further in range(size):
            try:
                return self._demonstration(self._taskset.task(epoch, (index + further) % size))
            except BadRow:
                if not self._skip:
                    raise
        raise ConfigError("tasks.expert.source: no usable row; each is too long, or has no response")

    def _demonstration(self, task: Task) -> Trajectory:
        prompt = render_prompt(self._tokenizer, task, self._max_prompt_tokens)
        response = tokenized(self._tokenizer, task.answer).tolist()
        if not 0 < len(response) <= self._max_response_tokens:
            raise BadRow(
                f"task {task.id}: a recorded response of {len(response)} tokens; model.max_response_tokens is "
                f"{self._max_response_tokens}; {quoted(task)}"
            )
        # One that fills the budget has no end, as the policy's own would have none.
        response = [*response, *self._end][: self._max_response_tokens]
        start, end = len(prompt), len(prompt) + len(response)
        return Trajectory(
            token_ids=np.concatenate([prompt, np.asarray(response, np.int32)]).astype(np.int32),
            loss_mask=np.arange(end) >= start,
            logprobs=np.zeros(end, np.float32),
            versions=np.full(end, NOT_SAMPLED, np.int32),
            turns=np.array([[start, end]], np.int32),
            reward=0.0,
            temperature=self._temperature,
            expert=True,
        )
