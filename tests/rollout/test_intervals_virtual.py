"""Several steps between versions: what engines generate meanwhile, and the time that it saves."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sidecar.protocol import GenerateRequest
from tests.rollout.simulation import SPEC, run_simulation

TRAINING, GENERATING, PUBLISHING = 1.0, 0.33, 0.3
"""Seconds of a step, a batch and a version. Of these three the two that are not 1 solve, by hand, the published
speed-ups of two intervals: 2·(g+t+p) / (g+2t+p) = 1.24 for intervals of 2, and (g+t+p) / (t+p) = 1.25 for one step off.
The other two are what the schedule gives: 10·(g+t+p) / (g+10t+p) = 1.53 and (g+t+p) / (t+p/10) = 1.58.
"""
STEPS = 40
PUBLISHED = {  # Trinity-RFT, Qwen2.5-1.5B on GSM8K: seconds of synchronous training over seconds of each
    "every 1": (1.0, {"alpha": 0.0, "sync_interval": 1}),
    "every 2": (1.24, {"alpha": 0.0, "sync_interval": 2}),
    "every 10": (1.59, {"alpha": 0.0, "sync_interval": 10}),
    "one step off": (1.25, {"alpha": 1.0, "sync_interval": 1}),
    "fully asynchronous": (1.61, {"alpha": 10.0, "sync_interval": 10}),
}


def timed(tmp_path: Path, alpha: float, k: int, *, fill: bool) -> tuple[float, list[float], dict[str, Any]]:
    """Seconds in all, the times when requests began, and the audit."""
    spec = replace(
        SPEC,
        alpha=alpha,
        sync_interval=k,
        staleness_bound=int(alpha) + k - 1,
        max_steps=STEPS,
        fill_interval=fill,
    )
    begun: list[float] = []

    def latency(_: GenerateRequest) -> float:
        begun.append(asyncio.get_running_loop().time())
        return GENERATING

    tmp_path.mkdir()
    simulation, _, audit = run_simulation(tmp_path, TRAINING, publishing=PUBLISHING, spec=spec, latency=latency)
    return simulation.db.clock(), begun, audit


@pytest.mark.slow
def test_speed_ups_come_out_in_the_order_published(tmp_path: Path) -> None:
    seconds = {
        name: timed(tmp_path / name, spec["alpha"], spec["sync_interval"], fill=True)[0]
        for name, (_, spec) in PUBLISHED.items()
    }
    gained = {name: seconds["every 1"] / value for name, value in seconds.items()}
    assert sorted(gained, key=gained.__getitem__) == sorted(PUBLISHED, key=lambda name: PUBLISHED[name][0])
    for name, (published, _) in PUBLISHED.items():
        assert gained[name] == pytest.approx(published, rel=0.06), name


def test_a_filled_interval_is_generated_beside_its_training(tmp_path: Path) -> None:
    """At α = 0 and k = 10 all ten batches of a version begin when it is announced; else each waits for its step."""
    seconds, begun, audit = timed(tmp_path / "filled", 0.0, 10, fill=True)
    assert len(set(begun)) == STEPS / 10
    assert audit["max_staleness"] == 9
    assert set(audit["staleness_histogram"]) == {str(age) for age in range(10)}
    assert audit["balanced"]
    assert seconds == pytest.approx(STEPS * TRAINING + STEPS / 10 * (GENERATING + PUBLISHING))
    seconds, begun, audit = timed(tmp_path / "unfilled", 0.0, 10, fill=False)
    assert len(set(begun)) == STEPS
    assert audit["max_staleness"] == 9
    assert seconds == pytest.approx(STEPS * (TRAINING + GENERATING) + STEPS / 10 * PUBLISHING)
