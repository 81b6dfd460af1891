"""Time limits under a virtual clock whose loop is held up: whoever answered in time is not blamed for that."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from rljax.ledger.versions import Announced
from rljax.pipeline.simulate.clock import VirtualLoop, run_virtual
from rljax.rollout.deadlines import PausableDeadlines
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.environments.processes import WorkerSession
from rljax.rollout.environments.session import EnvironmentHung, Observation
from rljax.timeouts import TICK, done_within, timeout
from sidecar.protocol import WeightUpdate
from tests.modelled_engine import ModelledEngine
from tests.rollout.heard import Heard


def virtual(main: Callable[[VirtualLoop], Coroutine[Any, Any, None]]) -> None:
    run_virtual(main)


async def answer_after(seconds: float) -> None:
    """An answer of another process: once it has come, it takes some turns of our loop to be read."""
    await asyncio.sleep(seconds)
    for _ in range(8):
        await asyncio.sleep(0)


def test_a_limit_is_kept_to_the_second() -> None:
    async def main(loop: VirtualLoop) -> None:
        with pytest.raises(TimeoutError):
            async with timeout(10.0) as limit:
                await asyncio.sleep(1e6)
        assert loop.time() == 10.0
        assert limit.expired()
        async with timeout(10.0) as limit:
            await answer_after(9.5)
        assert not limit.expired()

    virtual(main)


def test_a_loop_that_had_limits_is_freed_with_them() -> None:
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def main() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        async with timeout(60.0):
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with timeout(0.0):
                await asyncio.Event().wait()

    asyncio.run(main())
    gc.collect()
    assert loops[0]() is None


@pytest.mark.parametrize("begins", [0.03, 2.0, 2.06, 9.99])
def test_what_the_loop_lost_is_given_back(begins: float) -> None:
    async def main(loop: VirtualLoop) -> None:
        loop.call_at(begins, loop.stall, 5.0)
        with pytest.raises(TimeoutError):
            async with timeout(10.0):
                await asyncio.sleep(1e6)
        assert 15.0 <= loop.time() <= 15.0 + TICK

    virtual(main)


def test_several_stalls_add_up_and_each_limit_has_its_own() -> None:
    async def main(loop: VirtualLoop) -> None:
        for at in (1.0, 5.0, 9.0):
            loop.call_at(at, loop.stall, 2.0)
        ends: dict[float, float] = {}

        async def run(begin: float) -> None:
            await asyncio.sleep(begin)
            with pytest.raises(TimeoutError):
                async with timeout(4.0):
                    await asyncio.sleep(1e6)
            ends[begin] = loop.time()

        await asyncio.gather(run(0.0), run(4.0), run(20.0))
        # From 0 on: 4 s and the stalls at 1 and 5. From 4 on: 4 s and those at 5 and 9. From 20 on: 4 s.
        assert ends[0.0] == pytest.approx(8.0, abs=2 * TICK)
        assert ends[4.0] == pytest.approx(12.0, abs=2 * TICK)
        assert ends[20.0] == 24.0

    virtual(main)


def test_a_loop_that_is_a_little_late_has_not_stood_still() -> None:
    async def main(loop: VirtualLoop) -> None:
        for tick in range(100):
            loop.call_at(0.1 * tick, loop.stall, 0.05)
        with pytest.raises(TimeoutError):
            async with timeout(8.0):
                await asyncio.sleep(1e6)
        assert loop.time() == pytest.approx(8.0, abs=0.1)

    virtual(main)


def test_nothing_ticks_once_there_is_no_limit() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with timeout(3.0):
            await asyncio.sleep(1.0)
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="nothing is due"):
        run_virtual(main)


def test_a_held_limit_is_charged_neither_for_the_hold_nor_for_a_stall() -> None:
    async def main(loop: VirtualLoop) -> None:
        deadlines = PausableDeadlines()
        loop.call_at(2.0, deadlines.hold)
        loop.call_at(3.0, loop.stall, 2.0)
        loop.call_at(6.0, deadlines.release)
        loop.call_at(8.0, loop.stall, 3.0)
        with pytest.raises(TimeoutError):
            async with deadlines.limit(5.0):
                await asyncio.sleep(1e6)
        # 2 s, held until 6, 2 s, a stall until 11, 1 s.
        assert loop.time() == pytest.approx(12.0, abs=2 * TICK)

    virtual(main)


def test_a_limit_that_has_run_out_is_not_started_again() -> None:
    async def main(loop: VirtualLoop) -> None:
        deadlines = PausableDeadlines()
        errors: list[Any] = []
        loop.set_exception_handler(lambda _, context: errors.append(context))
        loop.call_at(2.0, deadlines.hold)
        loop.call_at(3.0, deadlines.release)

        async def ends_late() -> None:
            try:
                await asyncio.sleep(1e6)
            finally:
                await asyncio.sleep(5.0)

        with pytest.raises(TimeoutError):
            async with deadlines.limit(1.0):
                await ends_late()
        assert loop.time() == 6.0
        assert errors == []

    virtual(main)


def test_a_stall_is_not_charged_to_an_environment() -> None:
    class Worker:
        timeout, killed = 2.0, False

        async def call(self, number: int, method: str, seconds: float) -> Observation:
            await answer_after(seconds)
            return Observation("here")

        async def responds(self) -> bool:
            return False

        def end(self) -> bool:
            self.killed = True
            return True

    async def main(loop: VirtualLoop) -> None:
        worker = Worker()
        session = WorkerSession(worker, 0, "slow")  # type: ignore[arg-type]
        loop.call_later(0.5, loop.stall, 4.0)
        assert (await session.reset(1)).text == "here"  # type: ignore[arg-type]
        assert not worker.killed
        with pytest.raises(EnvironmentHung):
            await session.reset(3)

    virtual(main)


def test_a_stall_is_not_charged_to_a_reward() -> None:
    async def main(loop: VirtualLoop) -> None:
        loop.call_later(0.5, loop.stall, 4.0)
        assert await done_within(asyncio.ensure_future(answer_after(1.0)), 2.0)
        hangs = asyncio.ensure_future(answer_after(3.0))
        assert not await done_within(hangs, 2.0)
        assert not hangs.cancelled()
        await hangs

    virtual(main)


def test_a_stall_is_not_charged_to_an_engine(tmp_path: Path) -> None:
    class Slow(ModelledEngine):
        async def update_weights(self, update: WeightUpdate) -> None:
            await answer_after(1.0)
            await super().update_weights(update)

    async def main(loop: VirtualLoop) -> None:
        faults: list[str] = []

        async def start(_: int) -> Any:
            return Slow(lambda _: 1.0)

        pool = EnginePool(start, 1, tmp_path, Heard(lambda _, message: faults.append(message)), call_timeout=2.0)
        await pool.start()
        loop.call_later(0.5, loop.stall, 4.0)
        await pool.load(Announced(0, 1, "weights/v0"))
        assert faults == []
        await pool.close()

    virtual(main)
