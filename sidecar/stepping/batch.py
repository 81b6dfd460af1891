"""What steps: a model and the requests that it is sampling for, on one thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from sidecar.stepping.jobs import Job


class Batch(Protocol):
    """Samples for up to ``slots`` requests at a time. Touched by the engine's thread alone.

    Attributes:
        slots: requests that can run at once.
        version: of the weights; -1 before the first.
        tokens_sampled: since the start.
    """

    slots: int
    version: int
    tokens_sampled: int

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        ...

    def load(self, weights: Any, version: int) -> Sequence[Job]:
        """Takes other weights; no KV of older ones is kept.

        Returns the requests that have lost their slots over it and are to be admitted again. What it raises ends the
        engine: nobody can tell what its weights are.
        """
        ...

    def evict(self) -> Sequence[Job]:
        """Takes every slot away, and returns who held them."""
        ...

    def admit(self, jobs: Sequence[Job]) -> None:
        """Gives each a slot; there are enough."""
        ...

    def remove(self, job: Job) -> None:
        """Takes the slot of a running request away; ignores others."""
        ...

    def step(self) -> Sequence[tuple[Job, str]]:
        """Samples for every running request. Returns those that ended, each with ``stop`` or ``length``."""
        ...

    def score(self, token_ids: np.ndarray) -> np.ndarray:
        """Float32 ``[n - 1]``: raw log-probabilities of all tokens but the first. Running requests may go on."""
        ...

    def close(self) -> None:
        """Frees what it holds."""
        ...
