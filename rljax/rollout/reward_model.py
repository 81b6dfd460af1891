"""A reward model in this process: gathers what rewards ask side by side into batches, and scores them on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from jaxtyping import Float, Int

from rljax.models.reward_model import Score
from rljax.tasks.rewards.batches import Batches
from rljax.tasks.rewards.reward import RewardError
from rljax.tasks.task import Message
from rljax.tasks.templates import render_messages, special_tokens
from sidecar.errors import describe

_LENGTHS = 4
_SHORTEST = 16
_BATCHES_AHEAD = 4
_CLOSE = 10.0


@dataclass(eq=False)
class _Row:
    """A dialogue to score; ``token_ids`` are set once it is taken up."""

    messages: Sequence[Message]
    token_ids: Int[np.ndarray, " time"] = field(default_factory=lambda: np.zeros(0, np.int32))


class RewardModel:
    """Scores dialogues by a model's head. Implements `rljax.tasks.rewards.reward_model.RewardModel`.

    Each batch has one of four lengths, and always as many rows: a score depends neither on what else is asked nor on
    when, and there are four programs. What comes while a batch is computed makes up the next ones.

    Args:
        name: its key in `reward_models`.
        max_tokens: of the longest row that it scores.
        rows: of a batch.
        tokenizer: its own, with its own chat template.
        pad_token_id: read as padding at the end of a row, as transformers does; None: no token is.
        score: its programs.
    """

    def __init__(
        self, name: str, max_tokens: int, rows: int, tokenizer: Any, pad_token_id: int | None, score: Score
    ) -> None:
        self.at_once = _BATCHES_AHEAD * rows
        self._name = name
        self._max_tokens = max_tokens
        self._rows = rows
        self._tokenizer = tokenizer
        self._special = special_tokens(tokenizer)
        self._padding = -1 if pad_token_id is None else pad_token_id
        self._score = score
        self._lengths = row_lengths(max_tokens)
        what = f"reward model {name}"
        self._batches: Batches[_Row, float] = Batches(
            what, rows, self._scores, kind=self._length, closed=f"{what}: it was closed"
        )

    def start(self) -> None:
        """Compiles all programs. Not on an event loop."""
        for length in self._lengths:
            self._computed([np.zeros(length, np.int32)], length)

    def close(self) -> None:
        """Ends the thread; what still waits fails. May be repeated."""
        self._batches.close(_CLOSE)

    async def score(self, messages: Sequence[Message], response: str) -> float:
        """See `rljax.tasks.rewards.reward_model.RewardModel.score`. May be called from any event loop."""
        for token in self._special:  # a response must not end its own turn
            response = response.replace(token, " ")
        row = _Row([*messages, {"role": "assistant", "content": response}])
        try:
            return await asyncio.wrap_future(self._batches.ask(row))
        except RewardError:
            raise
        except Exception as error:
            raise RewardError(f"reward model {self._name}: {describe(error)}") from error

    def _length(self, row: _Row) -> int:
        """Sets the row's tokens, and returns the length that it is padded to."""
        row.token_ids = self._tokens(row.messages)
        return self._padded(row)

    def _padded(self, row: _Row) -> int:
        return next(length for length in self._lengths if length >= len(row.token_ids))

    def _scores(self, batch: list[_Row]) -> list[float]:
        scores = self._computed([row.token_ids for row in batch], self._padded(batch[0]))
        return cast("list[float]", scores[: len(batch)].tolist())

    def _tokens(self, messages: Sequence[Message]) -> Int[np.ndarray, " time"]:
        token_ids = render_messages(self._tokenizer, messages, replied=True)
        (places,) = np.nonzero(token_ids != self._padding)
        token_ids = token_ids[: places[-1] + 1] if len(places) else token_ids[:0]
        if not 0 < len(token_ids) <= self._max_tokens:
            found = f"prompt and response have {len(token_ids)} tokens"
            most = f"reward_models.{self._name}.max_tokens is {self._max_tokens}"
            raise RewardError(f"reward model {self._name}: {found}; {most}")
        return token_ids

    def _computed(self, rows: Sequence[Int[np.ndarray, " time"]], length: int) -> Float[np.ndarray, " rows"]:
        token_ids = np.zeros((self._rows, length), np.int32)
        lengths = np.ones(len(token_ids), np.int32)
        for place, row in enumerate(rows):
            token_ids[place, : len(row)] = row
            lengths[place] = len(row)
        return self._score(token_ids, lengths)


def row_lengths(longest: int) -> tuple[int, ...]:
    """Returns the lengths that rows are padded to: ``longest``, its half and so on, at most four."""
    halves = (-(-longest // 2**halved) for halved in reversed(range(_LENGTHS)))
    return tuple(sorted({max(half, min(_SHORTEST, longest)) for half in halves}))
