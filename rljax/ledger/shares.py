"""Shares of the tasksets: whose task is claimed next, so that each has its share of every prefix, within one task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_ROUNDING = 1e-9  # of a task


@dataclass(frozen=True)
class Share:
    """Tasks that a taskset has had, and its weight.

    Attributes:
        weight: its share, relative to the others.
        issued: its tasks so far.
        start: the round at which it joined; in each round it has ``weight`` tasks.
    """

    weight: float
    issued: int
    start: float = 0.0

    @property
    def begins(self) -> float:
        """Round at which its next task begins to be due."""
        return self.start + self.issued / self.weight

    @property
    def ends(self) -> float:
        """Round by which its next task must have been claimed."""
        return self.start + (self.issued + 1) / self.weight


def current_round(shares: Mapping[str, Share]) -> float:
    """Returns how many rounds all of them together have had; 0 where there is none."""
    total = sum(share.weight for share in shares.values())
    return sum(share.weight * share.begins for share in shares.values()) / total if shares else 0.0


def next_taskset(shares: Mapping[str, Share]) -> str:
    """Returns whose task comes next: of those that are due, the one that must come first; ties by name.

    This is proportionate fairness on one machine (Baruah et al., 1996): after n tasks each taskset has had its share of
    n, less than one task more or less, however the weights are.
    """
    due = current_round(shares) + (1 - _ROUNDING) / sum(share.weight for share in shares.values())
    begun = [name for name in sorted(shares) if shares[name].begins < due]
    return min(begun or sorted(shares), key=lambda name: shares[name].ends)
