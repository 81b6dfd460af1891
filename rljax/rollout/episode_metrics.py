"""Metrics of episodes."""

from __future__ import annotations

from collections.abc import Sequence

from rljax.trajectory import Trajectory


def episode_sums(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Sums the metrics of episodes by name; ``stop/<reason>`` counts those that ended for that reason."""
    sums: dict[str, float] = {}
    for episode in episodes:
        counted = {n: v for n, v in episode.metrics.items() if n != "response_tokens"}
        for name, value in {**counted, f"stop/{episode.finish_reason}": 1.0}.items():
            sums[name] = sums.get(name, 0.0) + value
    return sums
