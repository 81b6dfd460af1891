"""A learner restarts from an old checkpoint under an explorer that lives on, whose claims are lost with the weights."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from rljax.ledger import audit, leases, versions
from rljax.pipeline.simulate.clock import VirtualLoop, run_virtual
from sidecar.protocol import Completion, GenerateRequest
from tests.modelled_engine import ModelledEngine
from tests.rollout.simulation import SPEC, Simulation, build

SIZED = replace(SPEC, batch_groups=16, alpha=1.0, staleness_bound=1, max_steps=8)


class StandsAside(ModelledEngine):
    """Lets a request that asks for newer weights wait, as the embedded engine does after a rollback."""

    async def generate(self, request: GenerateRequest) -> Completion:
        aborted = self._running[request.id] = asyncio.Event()
        try:
            found: list[int] = []
            while len(found) < 4:
                async with self._changed:
                    await self._changed.wait_for(lambda: self._version >= request.min_version or aborted.is_set())
                if aborted.is_set():
                    break
                await asyncio.sleep(self._latency(request) / 4)
                if self._version >= request.min_version:
                    found.append(self._version)
            return self._completion(found, "abort" if aborted.is_set() else "length")
        finally:
            self._running.pop(request.id, None)


async def train(simulation: Simulation, exploring: asyncio.Future[None], lineage: int, steps: int) -> None:
    for _ in range(steps):
        while True:
            seen = simulation.db.notifier.changes
            found = leases.lease(simulation.db, lineage)
            if isinstance(found, leases.LeasedBatch):
                break
            if exploring.done():
                exploring.result()
            await simulation.db.notifier.wait_async(seen)
        await asyncio.sleep(1.0)
        leases.mark_trained(simulation.db, lineage, found.step, publishes=True)
        versions.announce(simulation.db, lineage, found.step + 1, f"weights/v{found.step + 1}-{lineage}")


@pytest.mark.parametrize("engine", [ModelledEngine, StandsAside])
def test_claims_of_lost_weights_are_given_up_at_once(tmp_path: Path, engine: type[ModelledEngine]) -> None:
    async def main(loop: VirtualLoop) -> float:
        simulation = build(
            tmp_path, loop, spec=SIZED, capacity=80, timeout=600.0, validates=False, engines=[engine(_five)]
        )
        exploring = asyncio.ensure_future(simulation.explorer.run())
        lineage = leases.begin_lineage(simulation.db, 0)
        versions.announce(simulation.db, lineage, 0, "weights/v0-1")
        await train(simulation, exploring, lineage, 3)
        await asyncio.sleep(2.5)
        lineage = leases.begin_lineage(simulation.db, 0)
        versions.announce(simulation.db, lineage, 0, "weights/v0-2")
        rolled_back = loop.time()
        await train(simulation, exploring, lineage, 2)
        report = audit.audit(simulation.db)
        assert not [p for p in report["problems"] if "unfinished" not in p], report["problems"]
        took = loop.time() - rolled_back
        exploring.cancel()
        await asyncio.gather(exploring, return_exceptions=True)
        return took

    assert run_virtual(main) < 60.0


def _five(_: GenerateRequest) -> float:
    return 5.0
