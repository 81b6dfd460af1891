"""The virtual clock: what is due comes in its order, at its time, and what comes from elsewhere is not lost."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljax.pipeline.simulate.clock import InlineExecutor, VirtualLoop, run_virtual


@given(st.lists(st.floats(0.0, 1e5), max_size=30))
def test_whoever_sleeps_wakes_at_its_time_and_in_the_order_of_the_times(delays: list[float]) -> None:
    woken: list[tuple[float, int]] = []

    async def main(loop: VirtualLoop) -> None:
        async def sleeper(index: int, seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append((loop.time(), index))

        async with asyncio.TaskGroup() as group:
            for index, seconds in enumerate(delays):
                group.create_task(sleeper(index, seconds))

    run_virtual(main)
    assert [delays[index] for _, index in woken] == sorted(delays)
    assert [time for time, _ in woken] == pytest.approx(sorted(delays), rel=1e-12, abs=1e-9)


def test_a_call_from_another_thread_is_heard_before_time_jumps() -> None:
    async def main(loop: VirtualLoop) -> None:
        heard = asyncio.Event()
        thread = threading.Thread(target=lambda: loop.call_soon_threadsafe(heard.set))
        thread.start()
        thread.join()
        async with asyncio.timeout(3600.0):
            await heard.wait()
        assert loop.time() == 0.0

    run_virtual(main)


def test_what_a_pipe_holds_is_read_before_time_jumps() -> None:
    async def main(loop: VirtualLoop) -> None:
        end, other = os.pipe()
        heard = asyncio.Event()
        loop.add_reader(end, heard.set)
        os.write(other, b"x")
        async with asyncio.timeout(3600.0):
            await heard.wait()
        assert loop.time() == 0.0
        loop.remove_reader(end)
        os.close(end)
        os.close(other)

    run_virtual(main)


def test_a_call_from_its_own_thread_wakes_who_waits_for_it() -> None:
    async def main(loop: VirtualLoop) -> None:
        heard = asyncio.Event()
        loop.call_later(5.0, lambda: loop.call_soon_threadsafe(heard.set))
        await heard.wait()
        assert loop.time() == 5.0

    run_virtual(main)


def test_where_nothing_is_due_it_says_so_instead_of_hanging() -> None:
    async def main(_: VirtualLoop) -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="deadlock"):
        run_virtual(main)


def test_an_inline_call_that_raises_is_a_future_that_does() -> None:
    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        InlineExecutor().submit(fails).result()
