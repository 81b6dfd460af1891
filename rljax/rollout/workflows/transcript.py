"""Transcript of an episode: observation tokens and sampled tokens as they come, in one row or several."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Int

from rljax.rollout.routes import join_routes
from rljax.rollout.workflows.workflow import BrokenContract
from rljax.trajectory import NOT_SAMPLED
from sidecar.protocol import UNKNOWN_ROUTE, Completion


class Transcript:
    """Collects the texts and replies of an episode. Tokens are kept as they came and never made anew from text."""

    def __init__(self) -> None:
        self._ids: list[np.ndarray] = []
        self._logprobs: list[np.ndarray] = []
        self._versions: list[np.ndarray] = []
        self._length = 0
        self._row = 0
        self._rows: list[int] = []
        self._replies: dict[int, list[tuple[int, np.ndarray | None]]] = {}  # end and experts of each, by row
        self.turns: list[tuple[int, int]] = []

    @property
    def row(self) -> Int[np.ndarray, " time"]:
        """Tokens of the present row, int32: what the next reply goes on from."""
        return np.concatenate([np.zeros(0, np.int32), *self._ids])[self._row :].astype(np.int32)

    @property
    def row_length(self) -> int:
        """Number of tokens in the present row."""
        return self._length - self._row

    def begin_row(self) -> None:
        """Begins a new row, which does not attend to the rows before it."""
        self._row = self._length
        self._rows.append(self._length)

    def add_text(self, token_ids: Int[np.ndarray, " time"]) -> None:
        """Adds tokens that the model did not sample."""
        count = len(token_ids)
        self._add(token_ids, np.zeros(count, np.float32), np.full(count, NOT_SAMPLED, np.int32))

    def add_reply(self, completion: Completion) -> None:
        """Adds a turn that the model sampled, going on from `row`.

        Raises:
            BrokenContract: its experts are those of another prompt.
        """
        start, routes = self._length, completion.routes
        self._add(completion.token_ids, completion.logprobs, completion.versions)
        if routes is not None and len(routes) != self.row_length:
            raise BrokenContract(
                f"a reply has the experts of {len(routes)} tokens, and the row that it ends has {self.row_length}: ask "
                "for it with Transcript.row as the prompt, or call begin_row before another one is added"
            )
        self.turns.append((start, self._length))
        if len(completion.token_ids):
            self._replies.setdefault(self._row, []).append((self._length, routes))

    def columns(self) -> dict[str, Any]:
        """Returns the arrays of a `Trajectory`: tokens, mask, log-probabilities, versions, routes, turns, rows."""
        versions = np.concatenate([np.zeros(0, np.int32), *self._versions]).astype(np.int32)
        ends = [*self._rows[1:], self._length]
        return {
            "token_ids": np.concatenate([np.zeros(0, np.int32), *self._ids]).astype(np.int32),
            "loss_mask": versions != NOT_SAMPLED,
            "logprobs": np.concatenate([np.zeros(0, np.float32), *self._logprobs]).astype(np.float32),
            "versions": versions,
            "routes": self._all_routes(),
            "turns": np.array(self.turns, np.int32).reshape(-1, 2),
            "rows": np.array(list(zip(self._rows, ends, strict=True)) if self._rows else [], np.int32).reshape(-1, 2),
        }

    def _all_routes(self) -> np.ndarray | None:
        """Returns the experts of all tokens: each row has those of its own replies. None where no reply has any."""
        whole: np.ndarray | None = None
        for row, replies in self._replies.items():
            known = join_routes([(end - row, routes) for end, routes in replies])
            if known is None:
                continue
            if whole is None:
                whole = np.full((self._length, *known.shape[1:]), UNKNOWN_ROUTE, np.int16)
            whole[row : row + len(known)] = known
        return whole

    def _add(self, token_ids: np.ndarray, logprobs: np.ndarray, versions: np.ndarray) -> None:
        self._ids.append(token_ids)
        self._logprobs.append(logprobs)
        self._versions.append(versions)
        self._length += len(token_ids)
