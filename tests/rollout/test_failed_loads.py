"""A version that does not load is a fault of the explorer that cannot load it, and no reason for the run to end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rljax.ledger import audit, claims
from rljax.ledger.database import Database, run_row
from rljax.pipeline.simulate.clock import run_virtual
from rljax.rollout.explorer import LOAD_TRIES
from sidecar.protocol import EngineError, WeightUpdate, WeightUpdateError
from tests.modelled_engine import ModelledEngine
from tests.rollout.simulation import build, learn, run_simulation


class Failing(ModelledEngine):
    """Fails to load as often as told; keeps its version then."""

    def __init__(self, version: int, times: float) -> None:
        super().__init__(lambda _: 1.0)
        self._fails, self._times = version, times
        self.tries = 0

    async def update_weights(self, update: WeightUpdate) -> None:
        if update.version >= self._fails and self.tries < self._times:
            self.tries += 1
            raise WeightUpdateError("[Errno 5] Input/output error")
        await super().update_weights(update)


@pytest.mark.parametrize("validate", [frozenset[int](), frozenset({2})], ids=["newest", "validated"])
def test_a_load_that_fails_for_a_moment_is_tried_again(tmp_path: Path, validate: frozenset[int]) -> None:
    engine = Failing(2, LOAD_TRIES - 1)
    _, _, report = run_simulation(tmp_path, engines=[engine], validate=validate)
    assert report["balanced"], report["problems"]
    assert report["trained"] == 12
    # What is superseded meanwhile is not tried again; what is validated is not superseded.
    assert set(report["faults"]) == {"load_failed"}
    assert report["faults"]["load_failed"] == engine.tries if validate else engine.tries > 1


def test_an_explorer_that_can_load_nothing_ends_and_the_run_goes_on_with_another(tmp_path: Path) -> None:
    engine = Failing(2, 1e9)

    async def main(loop: Any) -> tuple[dict[str, Any], str | None, Any]:
        healthy = build(tmp_path, loop, name="healthy")
        broken = build(tmp_path, loop, name="broken", db=healthy.db, engines=[engine])
        ending = asyncio.ensure_future(broken.explorer.run())
        others = asyncio.gather(healthy.explorer.run(), learn(healthy.db, 1.0))
        with pytest.raises(EngineError, match=r"^version \d cannot be loaded: \[Errno 5\] Input/output error$"):
            await ending
        left = claims.held_by(healthy.db, "broken")
        await others
        return audit.audit(healthy.db), failure(healthy.db), left

    report, failed, left = run_virtual(main)
    assert failed is None
    assert not left, "its claims are handed back"
    assert report["balanced"], report["problems"]
    assert report["trained"] == 12


def failure(db: Database) -> str | None:
    return db.read(lambda tx: run_row(tx).failure)
