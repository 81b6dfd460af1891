"""The engine pool under a virtual clock: versions that engines refuse."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import numpy as np
import pytest

from rljax.ledger.versions import Announced
from rljax.rollout.engine_pool import EnginePool
from sidecar.protocol import WeightUpdateError
from tests.rollout.mortal import V0, V1, Mortal, request, with_pool


def test_an_engine_that_refuses_what_others_load_is_replaced_while_they_go_on(tmp_path: Path) -> None:
    first, other, second = Mortal(refuses=(1,)), Mortal(), Mortal(load=20.0)

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        running = [asyncio.ensure_future(pool.generate(request(str(i)), 1)) for i in range(4)]
        await asyncio.sleep(1.0)
        await pool.load(V1)
        assert (loop.time(), pool.serving) == (1.0, V1)
        assert len(await pool.score(np.arange(3), most=1)) == 1
        assert (await pool.generate(request("b", min_version=1), 1)).versions.tolist() == [1] * 4
        await asyncio.gather(*running)
        await asyncio.sleep(21.0)
        assert second._version == 1, "the restart loads it before it serves"
        assert len(await pool.score(np.arange(3))) == 2

    assert with_pool(tmp_path, [first, other, second], act, count=2) == [
        "load_failed: engine 0: version 1: no version 1",
        "engine_died: engine 0: it cannot load version 1, which others serve",
    ]


def test_a_version_that_all_refuse_replaces_nobody(tmp_path: Path) -> None:
    """ARCHITECTURE.md: an engine that cannot load keeps its version, and goes on with it."""
    engines = [Mortal(refuses=(1,)), Mortal(refuses=(1,))]

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        with pytest.raises(WeightUpdateError, match="no version 1"):
            await pool.load(V1)
        assert pool.serving == V0
        await pool.load(Announced(2, 1, "weights/v2"))
        assert len(await pool.score(np.arange(3))) == 2

    assert with_pool(tmp_path, engines, act, count=2) == []


def test_a_successor_that_is_refused_a_superseded_version_serves_the_next_one(tmp_path: Path) -> None:
    first, second = Mortal(), Mortal(refuses=(0,))

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        first.dead.set()
        running = asyncio.ensure_future(pool.generate(request(), 1))
        await asyncio.sleep(5.0)
        await pool.load(V1)
        assert (await running).versions.tolist() == [1] * 4
        assert loop.time() == 15.0

    assert with_pool(tmp_path, [first, second], act) == ["engine_died: engine 0: it fell over"]


def test_load_hears_of_the_refusal_that_a_successor_met_first(tmp_path: Path) -> None:
    first, second = Mortal(), Mortal(refuses=(0, 1))

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        first.dead.set()
        with pytest.raises(WeightUpdateError, match="no version 1"):
            await pool.load(V1)
        await pool.load(Announced(2, 1, "weights/v2"))
        assert (await pool.generate(request(), 1)).versions.tolist() == [2] * 4
        assert loop.time() == 10.0

    assert with_pool(tmp_path, [first, second], act) == ["engine_died: engine 0: it fell over"]


def test_a_refusal_that_no_later_version_explains_counts_as_a_failed_restart(tmp_path: Path) -> None:
    first, second, third = Mortal(), Mortal(refuses=(0,)), Mortal()

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        first.dead.set()
        assert (await pool.generate(request(), 1)).versions.tolist() == [0] * 4
        assert second.closed

    assert with_pool(tmp_path, [first, second, third], act) == [
        "engine_died: engine 0: it fell over",
        "engine_died: engine 0: engine 0 hangs: waited 100 s for a version in place of 0: no version 0",
    ]


def test_versions_are_compared_without_their_probe() -> None:
    one, two = (dataclasses.replace(V0, probe=np.zeros(3)) for _ in range(2))
    assert one == two != V1
