"""Versions that were lost with their learner: the explorer says so, waits, and goes on with what comes next."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljax.ledger import audit, leases, validations, versions
from rljax.pipeline.simulate.clock import run_virtual
from sidecar.protocol import WeightsGoneError, WeightUpdate
from tests.modelled_engine import ModelledEngine
from tests.rollout.simulation import SPEC, build, learn


class Forgetful(ModelledEngine):
    """An engine that finds no version of the lineages that were lost."""

    def __init__(self, *lost: int) -> None:
        super().__init__(lambda _: 1.0)
        self.lost = set(lost)
        self.asked = asyncio.Event()

    async def update_weights(self, update: WeightUpdate) -> None:
        if update.lineage in self.lost:
            self.asked.set()
            raise WeightsGoneError(f"{update.path} is not there")
        await super().update_weights(update)


def test_an_explorer_waits_for_the_learner_to_publish_again(tmp_path: Path) -> None:
    async def main(loop: Any) -> Any:
        engine = Forgetful(1)
        simulation = build(tmp_path, loop, engines=[engine])
        lost = leases.begin_lineage(simulation.db, 0)
        versions.announce(simulation.db, lost, 0, "memory:dead/v0-1")
        exploring = asyncio.ensure_future(simulation.explorer.run())
        async with asyncio.timeout(100):
            await engine.asked.wait()
            await asyncio.sleep(10)
            waiting_for, claimed = simulation.explorer.waiting_for, audit.audit(simulation.db)["claimed"]
        await asyncio.gather(exploring, learn(simulation.db, 1.0))
        return waiting_for, claimed, engine, audit.audit(simulation.db)

    waiting_for, claimed, engine, report = run_virtual(main)
    assert waiting_for == (
        "the learner to publish version 0 of lineage 1 again, or another: memory:dead/v0-1 is not there"
    )
    assert claimed == 0, "nothing is claimed that could only wait"
    assert {update.lineage for update in engine.loads} == {2}
    assert engine.loads[0].path == str(tmp_path / "weights/v0")
    assert report["balanced"], report["problems"]
    assert report["trained"] == 12


def test_the_wait_for_lost_weights_has_an_end(tmp_path: Path) -> None:
    async def main(loop: Any) -> None:
        simulation = build(tmp_path, loop, engines=[Forgetful(1)], wait_timeout=50.0)
        versions.announce(simulation.db, leases.begin_lineage(simulation.db, 0), 0, "memory:dead/v0-1")
        await simulation.explorer.run()

    with pytest.raises(TimeoutError, match=r"waited 50 s for: the learner to publish version 0 of lineage 1 again"):
        run_virtual(main)


def test_an_address_is_handed_on_as_it_is(tmp_path: Path) -> None:
    async def main(loop: Any) -> Any:
        simulation = build(tmp_path, loop)
        await simulation.pool.start()
        await simulation.pool.load(versions.Announced(0, 1, "memory:abc/v0-1"))
        return simulation.engine.loads

    assert [update.path for update in run_virtual(main)] == ["memory:abc/v0-1"]


def test_a_validation_of_lost_weights_waits_for_the_same_weights(tmp_path: Path) -> None:
    """The learner dies before version 0 was validated, and is restarted."""

    async def main(loop: Any) -> Any:
        engine = Forgetful(1)
        simulation = build(tmp_path, loop, engines=[engine], spec=replace(SPEC, alpha=0.0, staleness_bound=0))
        db = simulation.db
        lost = leases.begin_lineage(db, 0)
        versions.announce(db, lost, 0, "memory:dead/v0-1", validate=True)
        exploring = asyncio.ensure_future(simulation.explorer.run())
        async with asyncio.timeout(100):
            await engine.asked.wait()
            await asyncio.sleep(10)
            waiting_for, left = simulation.explorer.waiting_for, validations.unfinished(db)
            again = leases.begin_lineage(db, 0)
            versions.announce(db, again, 0, "memory:new/v0-2")
            while validations.unfinished(db):
                await db.notifier.wait_async(db.notifier.changes)
        exploring.cancel()
        await asyncio.gather(exploring, return_exceptions=True)
        return waiting_for, left, validations.results(db)

    waiting_for, left, results = run_virtual(main)
    assert "version 0 of lineage 1 again" in waiting_for
    assert left == 1
    assert [version for version, _ in results] == [0]
