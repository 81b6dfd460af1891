"""A module in a child process: calls, what ends it, and what it leaves behind."""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest

from sidecar.workers.child_process import ChildEnded, ChildProcess, serve
from tests.orphans import survivors

MODULE = "tests.sidecar.workers.test_child_process"
PARENT = f"""
import asyncio
from sidecar.workers.child_process import ChildProcess
async def main():
    child = ChildProcess({MODULE!r})
    assert await child.call("add", 1, 2) == 3
    seizing = asyncio.ensure_future(child.call("seize"))
    while True:
        try:
            async with asyncio.timeout(1.0):
                await child.call("add", 1, 2)
        except TimeoutError:
            print("ready", flush=True)
            await asyncio.sleep(3600)
asyncio.run(main())
"""


class Located(Exception):
    """Pickled by its one argument, and made of two."""

    def __init__(self, words: str, place: int) -> None:
        super().__init__(f"{words} at {place}")


class Holds(Exception):
    """Holds what cannot be pickled."""

    def __init__(self, words: str) -> None:
        super().__init__(words, lambda: None)

    def __str__(self) -> str:
        return str(self.args[0])


class Unreadable:
    """Can be pickled, and not be read again."""

    def __reduce__(self) -> tuple[type[int], tuple[str]]:
        return int, ("no number",)


class Answers:
    """What the child does."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()

    async def handle(self, method: str, *arguments: Any) -> Any:
        return await getattr(self, method)(*arguments)

    async def add(self, first: int, second: int) -> int:
        return first + second

    async def fail(self, words: str) -> None:
        raise ValueError(words)

    async def wait(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()

    async def was_cancelled(self) -> None:
        await self.cancelled.wait()

    async def unsendable(self) -> Callable[[], None]:
        return lambda: None

    async def raise_unsendable(self, name: str, *arguments: Any) -> None:
        raise getattr(importlib.import_module(MODULE), name)(*arguments)

    async def unreadable(self) -> Any:
        return Unreadable()

    async def exit(self, code: int) -> None:
        print("the last word")
        os._exit(code)

    async def start(self) -> int:
        return subprocess.Popen(["sleep", "3600"]).pid  # noqa: ASYNC220 (the parent waits)

    async def seize(self) -> None:
        ctypes.PyDLL(None).sleep(3600)


def run(body: Callable[[ChildProcess], Coroutine[Any, Any, None]], **options: Any) -> ChildProcess:
    async def main() -> ChildProcess:
        child = ChildProcess(MODULE, **options)
        try:
            async with asyncio.timeout(120):
                await body(child)
        finally:
            await child.close()
        return child

    return asyncio.run(main())


def test_calls_are_answered_each_by_itself() -> None:
    async def body(child: ChildProcess) -> None:
        waits = asyncio.ensure_future(child.call("wait"))
        assert await asyncio.gather(*(child.call("add", i, i) for i in range(50))) == [2 * i for i in range(50)]
        with pytest.raises(ValueError, match=r"^words$"):
            await child.call("fail", "words")
        with pytest.raises(Exception, match=r"pickle|local object"):  # the words of Python 3.11, 3.13
            await child.call("unsendable")
        waits.cancel()
        await child.call("was_cancelled")

    child = run(body)
    assert child.process.returncode == -9


def test_an_error_that_cannot_be_sent_or_read_is_told_by_its_words() -> None:
    async def body(child: ChildProcess) -> None:
        waits = asyncio.ensure_future(child.call("wait"))
        async with asyncio.timeout(60):
            with pytest.raises(RuntimeError, match=r"^Holds: words$"):
                await child.call("raise_unsendable", "Holds", "words")
            with pytest.raises(RuntimeError, match=r"^Located: words at 3$"):
                await child.call("raise_unsendable", "Located", "words", 3)
        assert await child.call("add", 1, 2) == 3
        assert not waits.done()
        waits.cancel()

    run(body)


def test_an_answer_that_cannot_be_read_ends_it_and_all_calls() -> None:
    async def body(child: ChildProcess) -> None:
        waits = asyncio.ensure_future(child.call("wait"))
        async with asyncio.timeout(60):
            with pytest.raises(ChildEnded, match=r"^its process \d+ was ended: .*not be read: ValueError: "):
                await child.call("unreadable")
            with pytest.raises(ChildEnded, match="not be read"):
                await waits
            with pytest.raises(ChildEnded, match="not be read"):
                await child.call("add", 1, 2)
        assert child.process.returncode == -9

    heard: list[str] = []
    run(body, on_end=lambda: heard.append("ended"))
    assert heard == ["ended"]


def test_a_fault_where_its_end_is_heard_ends_its_calls_all_the_same() -> None:
    def fault() -> None:
        raise ValueError("nobody hears this")

    async def body(child: ChildProcess) -> None:
        async with asyncio.timeout(60):
            with pytest.raises(ChildEnded, match="nobody reads its answers any more"):
                await child.call("exit", 7)

    run(body, on_end=fault)


def test_its_end_is_told_to_all_and_blamed_on_a_call_that_was_alone() -> None:
    async def body(child: ChildProcess) -> None:
        with pytest.raises(ChildEnded, match=r"^its process \d+ ended with exit code 7$") as one:
            await child.call("exit", 7)
        assert one.value.alone
        with pytest.raises(ChildEnded, match="exit code 7"):
            await child.call("add", 1, 2)

    async def both(child: ChildProcess) -> None:
        ended = await asyncio.gather(child.call("wait"), child.call("exit", 7), return_exceptions=True)
        assert [(type(error), getattr(error, "alone", None)) for error in ended] == [(ChildEnded, False)] * 2

    heard: list[str] = []
    run(body, on_end=lambda: heard.append("ended"))
    assert heard == ["ended"]
    run(both)


def test_who_kills_it_says_why_and_takes_along_what_it_started() -> None:
    async def body(child: ChildProcess) -> None:
        grandchild = psutil.Process(await child.call("start"))
        waits = asyncio.ensure_future(child.call("wait"))
        await child.call("add", 1, 2)
        assert child.kill("it was in the way")
        assert not child.kill("again")
        with pytest.raises(ChildEnded, match=r"^it was in the way$") as killed:
            await waits
        assert not killed.value.alone
        await asyncio.to_thread(psutil.wait_procs, [grandchild], 60)
        assert not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE

    run(body)


def test_what_it_prints_is_in_its_log_whatever_ends_it(tmp_path: Path) -> None:
    async def body(child: ChildProcess) -> None:
        with pytest.raises(ChildEnded, match=r"exit code 3; .*child\.log ends: the last word$"):
            await child.call("exit", 3)

    run(body, log=tmp_path / "logs" / "child.log")


def test_it_does_not_outlive_its_parent_though_it_holds_its_interpreters_lock() -> None:
    assert survivors(PARENT) == []


if __name__ == "__main__":
    sys.exit(serve(Answers().handle))
