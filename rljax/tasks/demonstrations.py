"""Demonstrations: recorded responses to prompts, as trajectories to be imitated."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from rljax.config.validate import ConfigError
from rljax.tasks.dialogue import ChatTurns, TemplateError, end_of_turn
from rljax.tasks.seeds import fingerprint
from rljax.tasks.task import BadRow, Message, Task, Taskset
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
        taskset: prompts; their answers are the responses. Of messages that end with a reply all replies are.
        tokenizer: of the model.
        stop_token_ids: that end a turn.
        max_prompt_tokens, max_response_tokens, longest: limits, the last of all together; what is longer makes a bad
            row.
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
        longest: int,
        temperature: float,
        on_bad_row: str,
    ) -> None:
        self._taskset = taskset
        self._tokenizer = tokenizer
        self._stop_token_ids = stop_token_ids
        self._end = end_of_turn(tokenizer, stop_token_ids)
        self._max_prompt_tokens = max_prompt_tokens
        self._max_response_tokens = max_response_tokens
        self._longest = longest
        self._temperature = temperature
        self._skip = on_bad_row == "skip"

    def __len__(self) -> int:
        """Returns how many there are in one epoch."""
        return len(self._taskset)

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
        asked, replies, between = _turns(task)
        pieces = [render_prompt(self._tokenizer, replace(task, messages=asked), self._max_prompt_tokens)]
        turns = []
        for reply, follow_up in zip(replies, [*between, None], strict=True):
            response = self._response(task, reply)
            start = sum(map(len, pieces))
            turns.append((start, start + len(response)))
            pieces.append(response)
            if follow_up is not None:
                pieces.append(self._between(task, response, follow_up))
        token_ids = np.concatenate(pieces).astype(np.int32)
        if len(token_ids) > self._longest:
            raise BadRow(
                f"task {task.id}: a dialogue of {len(token_ids)} tokens, and {self._longest} are the most of one "
                f"(model.sequence_length, or max_prompt_tokens + max_response_tokens); {quoted(task)}"
            )
        mask = np.zeros(len(token_ids), np.bool_)
        for start, end in turns:
            mask[start:end] = True
        return Trajectory(
            token_ids=token_ids,
            loss_mask=mask,
            logprobs=np.zeros(len(mask), np.float32),
            versions=np.full(len(mask), NOT_SAMPLED, np.int32),
            turns=np.array(turns, np.int32),
            reward=0.0,
            temperature=self._temperature,
            expert=True,
        )

    def _response(self, task: Task, reply: str) -> Int[np.ndarray, " reply"]:
        response = tokenized(self._tokenizer, reply).tolist()
        if not 0 < len(response) <= self._max_response_tokens:
            raise BadRow(
                f"task {task.id}: a recorded response of {len(response)} tokens; model.max_response_tokens is "
                f"{self._max_response_tokens}; {quoted(task)}"
            )
        # One that fills the budget has no end, as the policy's own would have none.
        return np.array([*response, *self._end][: self._max_response_tokens], np.int32)

    def _between(self, task: Task, reply: Int[np.ndarray, " reply"], text: str) -> Int[np.ndarray, " time"]:
        try:
            return self._chat.between(reply, text)
        except TemplateError as error:
            raise BadRow(f"task {task.id}: a dialogue of several replies, and {error}; {quoted(task)}") from error

    @cached_property
    def _chat(self) -> ChatTurns:
        return ChatTurns(self._tokenizer, self._stop_token_ids)


def _turns(task: Task) -> tuple[tuple[Message, ...], list[str], list[str]]:
    """Returns the messages before the first reply that is imitated, the replies, and what is said between them."""
    messages = task.messages
    if messages[-1]["role"] != "assistant":
        return messages, [task.answer], []
    first = next(place for place, one in enumerate(messages) if one["role"] == "assistant")
    texts = [one["content"] for one in messages[first:]]
    return messages[:first], texts[::2], texts[1::2]
