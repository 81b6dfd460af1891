"""Helpers that run coroutines concurrently and cancel the rest when one fails, and calls beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


async def all_or_none(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Returns the results of all coroutines, in order. Raises the first exception, once the others
    are cancelled and have ended.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def first_of(coroutines: Sequence[Coroutine[Any, Any, T]], count: int, tolerated: type[Exception]) -> list[T]:
    """Returns the first ``count`` results to come, in the order of the coroutines; the others
    are cancelled and have ended.

    Raises:
        Exception: what a coroutine raised, if it is not ``tolerated``, or too many have failed to reach ``count``.
    """
    running = {asyncio.ensure_future(coroutine): place for place, coroutine in enumerate(coroutines)}
    everyone, results = list(running), dict[int, T]()
    try:
        while len(results) < count:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=running.__getitem__):
                place = running.pop(task)
                error = task.exception()
                if error is None:
                    results[place] = task.result()
                elif not isinstance(error, tolerated) or len(results) + len(running) < count:
                    raise error
        return [results[place] for place in sorted(results)[:count]]
    finally:
        for task in everyone:
            task.cancel()
        await asyncio.gather(*everyone, return_exceptions=True)


async def in_background(call: Callable[[], T]) -> T:
    """Returns the result of ``call``, made on a thread of its own. Where this is cancelled nobody waits for the thread,
    neither the event loop as it ends nor the process: for calls that may take minutes, and may be cut off anywhere.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # from here on only the thread ends it

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # whatever it was, who waits gets it
            future.set_exception(error)

    threading.Thread(target=run, name="in background", daemon=True).start()
    return await asyncio.wrap_future(future)
