"""The engine pool under a virtual clock: what becomes of engines that hang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax.ledger.versions import Announced
from rljax.pipeline.simulate.clock import run_virtual
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.engine_slot import MAX_RESTARTS
from sidecar.protocol import Completion, EngineError, EngineStatus, GenerateRequest, SamplingParams
from tests.modelled_engine import ModelledEngine
from tests.rollout.heard import Heard
from tests.rollout.simulation import run_simulation

CALLS = ("generate", "abort", "score", "update_weights", "close")


class Hanging(ModelledEngine):
    """Hangs over these calls, for good, once version 0 is loaded."""

    def __init__(self, *calls: str) -> None:
        super().__init__(lambda _: 10.0)
        for name in calls:
            setattr(self, name, self._hang(getattr(self, name), always=name != "update_weights"))

    def _hang(self, healthy: Callable[..., Any], always: bool) -> Callable[..., Any]:
        async def call(*arguments: Any) -> Any:
            if not always and self._version < 0:
                return await healthy(*arguments)
            return await asyncio.Event().wait()

        return call


class Killed(ModelledEngine):
    """Its process is killed over its first request, and answers nothing from then on but that it has ended."""

    gone = False

    async def generate(self, request: GenerateRequest) -> Completion:
        self.gone = True
        raise EngineError("its process ended")

    async def status(self) -> EngineStatus:
        if self.gone:
            raise EngineError("its process ended")
        return await super().status()


def request(name: str = "a") -> GenerateRequest:
    return GenerateRequest(name, np.array([7], np.int32), SamplingParams(max_new_tokens=4))


def with_pool(tmp_path: Path, engines: list[Any], act: Callable[..., Coroutine[Any, Any, Any]]) -> list[str]:
    """Runs ``act(pool, loop)`` on a pool of one engine that serves version 0; returns the faults noted, in order."""
    faults: list[str] = []

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        queue = iter(engines)

        async def start(_: int) -> Any:
            return next(queue)

        note = lambda kind, message: faults.append(f"{kind}: {message}")  # noqa: E731
        pool = EnginePool(start, 1, tmp_path, Heard(note), call_timeout=30.0)
        async with asyncio.timeout(1000.0):
            await pool.start()
            await pool.load(Announced(0, 1, "weights/v0"))
            await act(pool, loop)
            await pool.close()

    run_virtual(main)
    return faults


def test_whoever_gives_up_a_request_does_not_wait_for_the_hung_engine(tmp_path: Path) -> None:
    engines = [Hanging(*CALLS), ModelledEngine(lambda _: 10.0)]

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await pool.generate(request(), 1)
        assert loop.time() == 5.0
        other = asyncio.ensure_future(pool.generate(request("b"), 1))
        assert (await other).finish_reason == "length"
        # it was called back once the hung engine had had its time to abort, and its time to end
        assert loop.time() == 5.0 + 30.0 + 30.0 + 10.0

    assert with_pool(tmp_path, engines, act) == [
        "engine_died: engine 0: engine 0 hangs: waited 30 s for requests to be aborted",
        "engine_left_behind: engine 0: engine 0 hangs: waited 30 s for it to end",
    ]


def test_of_an_engine_whose_process_was_killed_nothing_is_left_behind(tmp_path: Path) -> None:
    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        assert (await pool.generate(request(), 1)).finish_reason == "length"

    engines = [Killed(lambda _: 10.0), ModelledEngine(lambda _: 10.0)]
    assert with_pool(tmp_path, engines, act) == ["engine_died: engine 0: its process ended"]


@pytest.mark.parametrize("sign", ["abort", "status"])
def test_an_engine_that_dies_while_nobody_asks_is_found_and_so_is_the_last_one(tmp_path: Path, sign: str) -> None:
    async def gone(*_: Any) -> Any:
        raise EngineError("it is gone")

    async def watch(pool: EnginePool) -> None:
        for _ in range(9):
            await pool.check()

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        await pool.check()
        for engine in engines[:-1]:
            setattr(engine, sign, gone)
            await pool.check()  # waits for the successor: there is no other
        assert (await pool.generate(request(), 1)).finish_reason == "length"
        pool._factory = gone
        setattr(engines[-1], sign, gone)
        with pytest.raises(EngineError, match="it is gone"):
            await watch(pool)

    engines = [ModelledEngine(lambda _: 10.0) for _ in range(3)]
    died, *_, lost = with_pool(tmp_path, engines, act)
    assert died == "engine_died: engine 0: it is gone"
    assert lost.startswith("engine_lost: engine 0")


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("update_weights", "version 1 to load"),
        ("score", "the log-probabilities of 3 tokens"),
        ("abort", "requests to be aborted"),
    ],
)
def test_hung_engine_is_named_and_replaced(tmp_path: Path, call: str, what: str) -> None:
    fresh = ModelledEngine(lambda _: 10.0)

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        if call == "update_weights":
            await pool.load(Announced(1, 1, "weights/v1"))
            assert [update.version for update in fresh.loads] == [1], "a successor loads the newest at once"
        elif call == "score":
            assert [len(scores.logprobs) for scores in await pool.score(np.arange(3))] == [2]
        else:
            running = asyncio.ensure_future(pool.generate(request(), 1))
            await asyncio.sleep(1.0)
            await pool.hold()
            await asyncio.sleep(100.0)
            assert not running.done()
            pool.release()
            assert len((await running).token_ids) == 4

    faults = with_pool(tmp_path, [Hanging("generate", call), fresh], act)
    assert faults[:1] == [f"engine_died: engine 0: engine 0 hangs: waited 30 s for {what}"]


def test_engines_that_keep_hanging_end_the_run(tmp_path: Path) -> None:
    """P12: also where nobody but the pool itself waited for them."""

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await pool.generate(request(), 1)
        await asyncio.sleep(70.0 * (1 + MAX_RESTARTS))  # for each to abort, and to end
        with pytest.raises(EngineError, match=r"died 4 times in a row; .* 30 s for requests to be aborted"):
            await pool.generate(request(), 1)

    faults = with_pool(tmp_path, [Hanging("generate", "abort") for _ in range(1 + MAX_RESTARTS)], act)
    assert sum("engine_died" in fault for fault in faults) == 1 + MAX_RESTARTS


def test_a_request_goes_on_where_its_abort_cut_it_short(tmp_path: Path) -> None:
    engine = ModelledEngine(lambda _: 10.0)

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        running = asyncio.ensure_future(pool.generate(request(), 1))
        await asyncio.sleep(6.0)
        await pool.hold()
        pool.release()
        assert (await running).token_ids.tolist() == [0, 1, 0, 1]

    assert with_pool(tmp_path, [engine], act) == []
    assert [r.resumed_tokens for r in engine.served] == [0, 2]
    assert engine.served[1].prompt_ids.tolist() == [7, 0, 1]


@pytest.mark.parametrize("calls", [("generate", "abort", "close"), ("update_weights",), ("abort",)])
def test_run_survives_an_engine_that_hangs(tmp_path: Path, calls: tuple[str, ...]) -> None:
    engines = [Hanging(*calls), ModelledEngine(lambda _: 10.0)]
    _, _, report = run_simulation(tmp_path, engines=engines, validate=frozenset({2}), wait_timeout=500.0)
    assert report["balanced"], report["problems"]
    assert report["trained"] == 12
    assert report["faults"]["engine_died"] == 1
