"""Protocol of a batch: a model and the requests that it is sampling for, on one thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from sidecar.stepping.jobs import Job


class Batch(Protocol):
    """Samples for up to ``slots`` requests at a time. Used by the engine's thread alone.

    Attributes:
        slots: requests that can run at once.
        version: of the weights that serve whoever is pinned to none; -1 before the first.
        tokens_sampled: since the start.
    """

    slots: int
    version: int
    tokens_sampled: int

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        ...

    def holds(self, version: int) -> bool:
        """Returns whether a request can be sampled for with these weights."""
        ...

    def load(self, weights: Any, version: int, lineage: int, keep_kv: bool = False) -> Sequence[Job]:
        """Replaces the weights, and no KV of older ones is kept, but with ``keep_kv`` that of the running requests, for
        themselves alone; or, of a batch that holds several versions, puts them beside those that are in use, with which
        the running requests go on.

        Returns the requests that lost their slots and are to be admitted again. An exception of it ends the
        engine: its weights are undefined then.
        """
        ...

    def evict(self) -> Sequence[Job]:
        """Frees all slots, and returns the requests that held them."""
        ...

    def admit(self, jobs: Sequence[Job]) -> None:
        """Gives each request a slot; there are enough."""
        ...

    def remove(self, job: Job) -> None:
        """Frees the slot of a running request; ignores others."""
        ...

    def step(self) -> Sequence[tuple[Job, str]]:
        """Samples one step for every running request. Returns those that ended, each with ``stop`` or ``length``."""
        ...

    def score(self, token_ids: np.ndarray, routes: np.ndarray | None = None) -> np.ndarray:
        """Returns float32 ``[n - 1]``: raw log-probabilities of all tokens but the first, sent along ``routes`` where
        there are any. Running requests go on.
        """
        ...

    def close(self) -> None:
        """Frees the resources that it holds."""
        ...
