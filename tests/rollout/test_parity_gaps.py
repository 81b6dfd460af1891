"""Promise P7: what is recorded of a probe that learner and engines have scored."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rljax.ledger import leases, versions
from rljax.ledger.database import RunFailedError
from rljax.rollout.engine_slot import Scored
from rljax.rollout.parity import Probe
from tests.rollout.simulation import build

LEARNER = np.array([-1.0, -2.0, -3.0, -4.0], np.float32)
ENGINES = [LEARNER, np.array([-1.0, -2.5, -3.0, -3.75], np.float32)]


def check(tmp_path: Path, bound: float, label: int = 0) -> tuple[int, float, float] | None:
    async def main() -> tuple[int, float, float] | None:
        simulation = build(tmp_path, asyncio.get_running_loop(), probe=Probe(np.arange(4), bound))
        lineage = leases.begin_lineage(simulation.db, 0)
        versions.announce(simulation.db, lineage, 0, "weights/v0", probe=LEARNER)
        newest = versions.newest(simulation.db)
        assert newest is not None

        async def score(*_: Any) -> list[Scored]:
            return [Scored(ENGINES[0], 0), Scored(ENGINES[1], label)]

        simulation.pool.score = score  # type: ignore[method-assign]
        await simulation.checks.check(simulation.pool, newest)
        return versions.latest_gap(simulation.db)

    return asyncio.run(main())


def test_the_largest_and_the_mean_gap_are_over_all_engines(tmp_path: Path) -> None:
    assert check(tmp_path, bound=0.5) == (0, 0.5, (0.5 + 0.25) / 8)


def test_a_gap_beyond_the_bound_fails_the_run_and_names_both_versions(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match=r"learner at version 0 and engine at version 0 differ by 0\.5 nats"):
        check(tmp_path, bound=0.25)


def test_an_engine_is_named_by_its_own_label(tmp_path: Path) -> None:
    """One that says it has another version than it was told to load explains the gap."""
    with pytest.raises(RunFailedError, match=r"learner at version 0 and engine at version 3 differ by 0\.5 nats"):
        check(tmp_path, bound=0.25, label=3)


def test_a_successor_is_compared_as_well(tmp_path: Path) -> None:
    class Successor:
        async def score(self, *_: Any) -> np.ndarray:
            return ENGINES[1]

        async def status(self) -> Any:
            return SimpleNamespace(version=0)

    async def main() -> None:
        simulation = build(tmp_path, asyncio.get_running_loop(), probe=Probe(np.arange(4), 0.25))
        versions.announce(simulation.db, leases.begin_lineage(simulation.db, 0), 0, "weights/v0", probe=LEARNER)
        serving = versions.newest(simulation.db)
        assert serving is not None
        await simulation.checks.loaded(Successor(), serving)  # type: ignore[arg-type]

    with pytest.raises(RunFailedError, match=r"engine at version 0 differ by 0\.5 nats"):
        asyncio.run(main())
