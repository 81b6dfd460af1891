"""The engine pool under a virtual clock: engines that die, and their successors."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax.ledger.announced import Announced
from rljax.pipeline.simulate.clock import run_virtual
from rljax.rollout.engine_pool import EnginePool
from sidecar.protocol import Completion, EngineError, EngineStatus, EngineUnfitError, GenerateRequest, WeightUpdate
from tests.modelled_engine import ModelledEngine
from tests.rollout.heard import Heard
from tests.rollout.mortal import V0, V1, Mortal, request, with_pool


@pytest.mark.parametrize("limit", [3.0, 6.0, 9.0], ids=["as the dead one ends", "as it loads", "as it loads still"])
def test_who_met_the_death_may_be_cancelled_at_any_moment_of_the_restart(tmp_path: Path, limit: float) -> None:
    first, second = Mortal(end=4.0), Mortal(load=5.0)

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(1.0, first.dead.set)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(limit):
                await pool.generate(request(), 1)
        assert loop.time() == limit
        assert (await pool.gauges())["tokens"] == 8, "counted once while the slot is vacant"
        assert (await pool.generate(request("b"), 1)).versions.tolist() == [0] * 4
        assert loop.time() == 1.0 + 4.0 + 5.0 + 10.0
        assert (await pool.gauges())["tokens"] == 8 + 8
        assert (first.closed, second.closed) == (True, False)

    assert with_pool(tmp_path, [first, second], act) == ["engine_died: engine 0: it fell over"]
    assert second.closed


def test_who_still_asks_while_the_pool_ends_finds_no_death(tmp_path: Path) -> None:
    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        await pool.close()
        assert (await pool.gauges())["running"] == 0

    assert with_pool(tmp_path, [Mortal()], act) == []


def test_engines_that_compile_are_counted(tmp_path: Path) -> None:
    class Compiling(Mortal):
        async def status(self) -> EngineStatus:
            return dataclasses.replace(await super().status(), details={"compiling": 1.0})

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        assert (await pool.gauges())["compiling"] == 2

    with_pool(tmp_path, [Compiling(), Mortal(), Compiling()], act, 3)


def test_all_who_wait_share_one_restart_and_the_others_engine_goes_on(tmp_path: Path) -> None:
    first, other, second = Mortal(), Mortal(), Mortal(load=50.0)

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        running = [asyncio.ensure_future(pool.generate(request(str(i)), 1)) for i in range(6)]
        loop.call_later(1.0, first.dead.set)
        await asyncio.gather(*running)
        assert loop.time() == 11.0, "nobody waited for the successor while another engine was there"
        assert len(await pool.score(np.arange(3))) == 1
        await pool.load(V1)
        assert loop.time() == 11.0, "nor did a score or a load: it loads what is newest before it serves"
        await asyncio.sleep(91.0)  # it was loading version 0 by then
        assert second._version == 1
        assert len(await pool.score(np.arange(3))) == 2

    assert with_pool(tmp_path, [first, other, second], act, count=2) == ["engine_died: engine 0: it fell over"]


def test_an_engine_that_dies_while_others_still_load_serves_what_they_do(tmp_path: Path) -> None:
    first, slow, second = Mortal(), Mortal(), Mortal()

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        slow._load_seconds = 60.0
        loading = asyncio.ensure_future(pool.load(V1))
        await asyncio.sleep(1.0)
        assert (first._version, slow._version) == (1, 0)
        running = asyncio.ensure_future(pool.generate(request(), 1))
        loop.call_later(1.0, first.dead.set)
        await asyncio.gather(loading, running)
        assert (second._version, slow._version, pool.serving) == (1, 1, V1)
        assert (await pool.generate(request("b", min_version=1), 1)).versions.tolist() == [1] * 4

    with_pool(tmp_path, [first, slow, second], act, count=2)


@pytest.mark.parametrize("error", [EngineError("no device"), OSError("no device")])
def test_a_restart_that_fails_counts_and_is_tried_again(tmp_path: Path, error: Exception) -> None:
    first, last = Mortal(), Mortal()

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        first.dead.set()
        assert len((await pool.generate(request(), 1)).token_ids) == 4
        last.dead.set()
        with pytest.raises(EngineError, match=r"engine 0 died 4 times in a row; the last time: it fell over"):
            await pool.generate(request(), 1)

    named = "no device" if isinstance(error, EngineError) else "OSError: no device"
    assert with_pool(tmp_path, [first, error, error, last], act) == [
        "engine_died: engine 0: it fell over",
        f"engine_died: engine 0: {named}",
        f"engine_died: engine 0: {named}",
        "engine_died: engine 0: it fell over",
        "engine_lost: engine 0 died 4 times in a row; the last time: it fell over",
    ]


def test_an_engine_that_is_lost_for_good_leaves_the_work_to_the_others(tmp_path: Path) -> None:
    first, other = Mortal(end=4.0), Mortal(seconds=40.0)

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(1.0, first.dead.set)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await asyncio.gather(*(pool.generate(request(str(i)), 1) for i in range(2)))
        await asyncio.sleep(4.0)
        await pool.hold()
        pool.release()
        await pool.load(V1)
        assert len(await pool.score(np.arange(3))) == 1
        assert (await pool.generate(request("b", min_version=1), 1)).versions.tolist() == [1] * 4
        other.dead.set()
        with pytest.raises(EngineError, match=r"^engine 0 died 4 times .*; engine 1 died 4 times .* no device$"):
            await pool.generate(request("c"), 1)
        for call in (pool.load(V0), pool.score(np.arange(3)), pool.hold()):
            with pytest.raises(EngineError, match="engine 1 died 4 times in a row; the last time: no device"):
                await call

    faults = with_pool(tmp_path, [first, other, *[EngineError("no device")] * 6], act, count=2)
    assert [fault.split()[:3] for fault in faults if "lost" in fault] == [
        ["engine_lost:", "engine", "0"],
        ["engine_lost:", "engine", "1"],
    ]


class Useless(Mortal):
    """Loads what it is told to, and dies at each request."""

    async def generate(self, request: GenerateRequest) -> Completion:
        raise EngineError("it fell over")


def test_a_reply_forgives_the_engine_that_gave_it_and_no_other(tmp_path: Path) -> None:
    useless, steady = [Useless() for _ in range(4)], Mortal()

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        for number in range(6):
            await asyncio.gather(*(pool.generate(request(f"{number}-{i}"), 1) for i in range(2)))
            pool.forgive()
        assert len(steady.served) == 12

    assert with_pool(tmp_path, [useless[0], steady, *useless[1:]], act, count=2) == [
        *["engine_died: engine 0: it fell over"] * 4,
        "engine_lost: engine 0 died 4 times in a row; the last time: it fell over",
    ]


def test_one_that_answers_between_its_deaths_is_never_lost(tmp_path: Path) -> None:
    engines = [Mortal() for _ in range(8)]

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        for number, engine in enumerate(engines):
            await pool.generate(request(str(number)), 1)
            pool.forgive()
            engine.dead.set()

    assert with_pool(tmp_path, list(engines), act) == ["engine_died: engine 0: it fell over"] * 7


def test_the_pool_can_be_closed_in_the_middle_of_a_restart(tmp_path: Path) -> None:
    first, second = Mortal(), Mortal(load=50.0, end=2.0)

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        first.dead.set()
        asking = [asyncio.ensure_future(c) for c in (pool.generate(request(), 1), pool.load(V1))]
        await asyncio.sleep(5.0)
        await pool.close()
        assert loop.time() == 7.0
        assert (first.closed, second.closed) == (True, True)
        for outcome in await asyncio.gather(*asking, return_exceptions=True):
            assert str(outcome) == "engine 0 was closed"

    assert with_pool(tmp_path, [first, second], act) == ["engine_died: engine 0: it fell over"]


def test_who_waited_for_a_successor_does_not_start_while_the_pool_is_held(tmp_path: Path) -> None:
    """P8."""
    first, second = Mortal(), Mortal(load=50.0)

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        first.dead.set()
        running = asyncio.ensure_future(pool.generate(request(), 1))
        await asyncio.sleep(5.0)
        await pool.hold()
        await asyncio.sleep(100.0)
        assert (loop.time(), second.served) == (150.0, [])
        pool.release()
        assert len((await running).token_ids) == 4

    with_pool(tmp_path, [first, second], act)


class Mute(Mortal):
    """Does not say how it is once it is dead."""

    async def status(self) -> EngineStatus:
        if self.dead.is_set():
            raise EngineError("it fell over")
        return await super().status()


def test_an_engine_that_died_in_silence_is_found_by_its_gauges(tmp_path: Path) -> None:
    first, second = Mute(), Mortal()

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        first.dead.set()
        assert (await pool.gauges())["slots"] == 0
        await pool.score(np.array([1, 2]))
        assert (await pool.gauges())["slots"] > 0

    with_pool(tmp_path, [first, second], act)
    assert first.closed


class Deaf(Mortal):
    """Hears no question."""

    async def score(self, token_ids: np.ndarray, routes: np.ndarray | None = None) -> np.ndarray:
        await asyncio.sleep(1e6)
        raise AssertionError


def test_who_waits_behind_a_question_to_an_engine_that_hangs_asks_its_successor(tmp_path: Path) -> None:
    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        found = await asyncio.gather(pool.score(np.arange(3)), pool.score(np.arange(3)))
        assert [len(scores) for scores in found] == [1, 1]
        assert loop.time() == 100.0 + 5.0, "one time-out, and one restart"

    with_pool(tmp_path, [Deaf(end=5.0), Mortal()], act)


def test_a_first_engine_that_does_not_start_is_not_tried_again(tmp_path: Path) -> None:
    tries: list[int] = []
    faults: list[str] = []

    async def hangs(index: int) -> ModelledEngine:
        tries.append(index)
        await asyncio.sleep(1000.0)
        raise AssertionError

    async def refuses(index: int) -> ModelledEngine:
        tries.append(index)
        raise EngineError("engine 0 did not start: there is no vLLM")

    async def start(factory: Callable[[int], Coroutine[Any, Any, ModelledEngine]]) -> None:
        await EnginePool(
            factory, 2, tmp_path, Heard(lambda *fault: faults.append(str(fault))), call_timeout=30.0
        ).start()

    with pytest.raises(EngineError, match=r"^engine [01] hangs: waited 30 s for it to start; .* raise wait_timeout$"):
        run_virtual(lambda _: start(hangs))
    with pytest.raises(EngineError, match=r"^engine 0 did not start: there is no vLLM$"):
        run_virtual(lambda _: start(refuses))
    assert (tries, faults) == ([0, 1, 0, 1], [])


class Telling(Mortal):
    """Tells its first two tokens, 5 and 6, as they are sampled, and no more."""

    async def generate(self, request: GenerateRequest) -> Completion:
        return dataclasses.replace(await super().generate(request), token_ids=np.array([5, 6], np.int32))

    async def progress(self, request_id: str, seen: int) -> Completion:
        if seen:
            await asyncio.Event().wait()
        return Completion(np.array([5, 6], np.int32), np.full(2, -1.0, np.float32), np.zeros(2, np.int32), "abort")


def test_what_was_told_of_a_request_stays_though_its_engine_dies(tmp_path: Path) -> None:
    first, second = Telling(), Telling()
    told: list[int] = []

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        heard = asyncio.Event()

        def tell(part: Completion) -> None:
            told.extend(part.token_ids.tolist())
            heard.set()

        asked = asyncio.ensure_future(pool.generate(request(), 0, tell=tell))
        await heard.wait()
        first.dead.set()
        done = await asked
        assert done.token_ids.tolist() == told == [5, 6, 5, 6]  # the successor adds what is left of the budget of 4
        assert done.finish_reason == "length"

    assert with_pool(tmp_path, [first, second], act) == ["engine_died: engine 0: it fell over"]
    (rest,) = second.served
    assert rest.prompt_ids.tolist() == [7, 5, 6]
    assert (rest.sampling.max_new_tokens, rest.resumed_tokens) == (2, 2)


def test_what_is_pinned_is_not_sent_to_a_successor_that_has_newer_versions_alone(tmp_path: Path) -> None:
    """The successor has version 1 long before the other engine: version 0 serves still, and is that one's alone."""
    first, slow, second = Mortal(), Mortal(), Mortal()

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        slow._load_seconds = 60.0
        loading = asyncio.ensure_future(pool.load(V1))
        await asyncio.sleep(1.0)
        running = asyncio.ensure_future(pool.generate(request(), 1))
        loop.call_later(1.0, first.dead.set)
        await asyncio.sleep(5.0)
        assert (second._version, slow._version, pool.serving) == (1, 0, V0)
        assert await pool.version_from(0, 1) == 0
        assert {(await pool._free_slot("", pinned=0)).index for _ in range(6)} == {1}
        assert (await pool._free_slot("", pinned=1)).index == 0
        await asyncio.gather(loading, running)

    with_pool(tmp_path, [first, slow, second], act, count=2)


def test_versions_that_pass_while_a_successor_loads_those_before_are_loaded_too(tmp_path: Path) -> None:
    """With `pin` and three versions held: version 3 is the newest when it begins, and 4 when it has loaded 1 and 2."""

    class Noting(Mortal):
        loaded: tuple[int, ...] = ()

        async def update_weights(self, update: WeightUpdate) -> None:
            await super().update_weights(update)
            self.loaded += (update.version,)

    first, other, second = Mortal(), Mortal(), Noting(load=10.0)
    known = [V0, *(Announced(number, 1, f"weights/v{number}") for number in range(1, 5))]

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        for announced in known[1:4]:
            await pool.load(announced)
        running = asyncio.ensure_future(pool.generate(request(), 1))
        loop.call_later(1.0, first.dead.set)
        await asyncio.sleep(15.0)
        loading = asyncio.ensure_future(pool.load(known[4]))
        await asyncio.gather(running, loading)
        await asyncio.sleep(60.0)
        assert second.loaded == (1, 2, 3, 4)
        assert (await pool._free_slot("", pinned=3)).index == 0

    with_pool(tmp_path, [first, other, second], act, count=2, held=3)


def test_an_engine_that_can_never_do_what_is_asked_is_not_started_again(tmp_path: Path) -> None:
    class Unfit(Mortal):
        async def generate(self, request: GenerateRequest) -> Completion:
            raise EngineUnfitError("it returns no experts")

    async def act(pool: EnginePool, loop: asyncio.AbstractEventLoop) -> None:
        with pytest.raises(EngineError, match=r"^it returns no experts; it returns no experts$"):
            await pool.generate(request(), 1)
        assert loop.time() == 0.0

    assert with_pool(tmp_path, [Unfit(), Unfit()], act, count=2) == ["engine_lost: it returns no experts"] * 2
