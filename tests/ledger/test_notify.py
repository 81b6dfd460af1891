"""Waking waiters of this process: threads and event loops."""

from __future__ import annotations

import asyncio
import threading
import time

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
