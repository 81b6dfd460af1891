"""Batches of every size, at every distance, while two groups of eight are under way: real scheduler, virtual clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sidecar.protocol import GenerateRequest
from tests.rollout.simulation import SPEC, run_simulation

GROUP, STEPS = 8, 3


def latency(request: GenerateRequest) -> float:
    """Below a second, as heartbeats are what costs real time here; one in fifty takes twenty times as long."""
    draw = int(request.sampling.seed)
    return 0.02 * (1.0 + draw % 11) * (20.0 if draw % 50 == 0 else 1.0)


def every_third(group: Any) -> str | None:
    return "every third" if group.task.index % 3 == 0 else None


@pytest.mark.parametrize(
    ("redundancy", "filters"),
    [(0, []), (4, []), (0, [("thirds", every_third)])],
    ids=["plain", "four to spare", "every third filtered"],
)
@pytest.mark.parametrize("alpha", [0, 1, 2, 7])
@pytest.mark.parametrize("batch", [8, 16, 24, 32, 64])
def test_batches_are_exact_and_in_time(
    tmp_path: Path, batch: int, alpha: int, redundancy: int, filters: list[Any]
) -> None:
    spec = replace(
        SPEC,
        group_size=GROUP,
        batch_groups=batch // GROUP,
        alpha=float(alpha),
        staleness_bound=alpha,
        max_steps=STEPS,
    )
    simulation, batches, report = run_simulation(
        tmp_path,
        seconds=0.1,
        spec=spec,
        latency=latency,
        redundancy=redundancy,
        capacity=2 * (GROUP + redundancy),
        filters=filters,
        timeout=1e5,
        wait_timeout=1e4,
        validates=False,
    )
    assert [b.step for b in batches] == list(range(STEPS))
    assert [sum(len(g.trajectories) for g in b.groups) for b in batches] == [batch] * STEPS
    assert report["balanced"], report["problems"]
    assert (report["trained"], report["trained_twice"]) == (STEPS * batch // GROUP, 0)
    assert report["max_staleness"] <= alpha
    assert bool(report["filtered"]) == bool(filters)
    assert not simulation.engine._running
