"""Waking waiters of this process: threads and event loops."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from rljax.ledger.notify import Notifier


def test_a_change_that_came_first_is_not_waited_for() -> None:
    notifier = Notifier()
    seen = notifier.changes
    notifier.notify()
    began = time.monotonic()
    notifier.wait(seen, timeout=60)
    asyncio.run(notifier.wait_async(seen, at_most=60))
    assert time.monotonic() - began < 30


def test_a_thread_is_woken() -> None:
    notifier = Notifier()
    seen = notifier.changes
    woken = threading.Event()

    def wait() -> None:
        notifier.wait(seen, timeout=60)
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not woken.wait(0.05)
    notifier.notify()
    assert woken.wait(30)
    thread.join(30)


def test_all_tasks_of_a_loop_are_woken_from_another_thread() -> None:
    notifier = Notifier()

    async def main() -> float:
        began = time.monotonic()
        waiters = [asyncio.create_task(notifier.wait_async(notifier.changes, at_most=60)) for _ in range(3)]
        await asyncio.sleep(0.01)
        threading.Thread(target=notifier.notify).start()
        await asyncio.gather(*waiters)
        return time.monotonic() - began

    assert asyncio.run(main()) < 30
    notifier.notify()  # that loop is closed: nobody is left to wake, and nothing is wrong
    assert asyncio.run(main()) < 30


def test_no_wait_is_for_ever() -> None:
    notifier = Notifier()
    notifier.wait(notifier.changes, timeout=0.01)
    asyncio.run(notifier.wait_async(notifier.changes, at_most=0.01))


@pytest.mark.parametrize("turns", range(8))
def test_a_waiter_that_is_cancelled_while_a_change_comes_ends(turns: int) -> None:
    async def main() -> None:
        notifier = Notifier()

        async def wait_for_ever() -> None:
            while True:
                await notifier.wait_async(notifier.changes, at_most=60)

        async def pass_turns(number: int) -> None:
            for _ in range(number):
                await asyncio.sleep(0)

        waiter = asyncio.create_task(wait_for_ever())
        await pass_turns(5)
        notifier.notify()
        await pass_turns(turns)
        waiter.cancel()
        await pass_turns(20)
        assert waiter.cancelled()

    asyncio.run(main())
