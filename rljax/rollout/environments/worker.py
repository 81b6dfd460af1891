"""Worker process of several environments, started by `processes`.

Each environment computes on a thread of its own, so that one that hangs keeps none of the others from answering.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Any

from rljax.rollout.environments.session import EnvironmentFailure, LocalEnvironment
from sidecar.workers.child_process import serve


class _Player:
    """Runs one environment on a thread of its own."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[str, Any, asyncio.Future[Any]]] = queue.SimpleQueue()
        self._environment: LocalEnvironment | None = None
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._play, name="environment", daemon=True).start()

    def call(self, method: str, argument: Any) -> asyncio.Future[Any]:
        """Queues a call for the thread and returns the future of its result."""
        answer = self._loop.create_future()
        self._calls.put((method, argument, answer))
        return answer

    def _play(self) -> None:
        method = ""
        while method != "close":
            method, argument, answer = self._calls.get()
            value, failure = None, None
            try:
                value = self._do(method, argument)
            except EnvironmentFailure as error:
                failure = error
            except BaseException as error:  # SystemExit of an environment, say: its caller must not wait for ever
                failure = EnvironmentFailure(f"{method}: {type(error).__name__}: {error}")
            self._loop.call_soon_threadsafe(_fulfil, answer, value, failure)

    def _do(self, method: str, argument: Any) -> Any:
        if method == "open":
            self._environment = LocalEnvironment(argument)
            return None
        if method == "close":
            return self._environment.close() if self._environment is not None else None
        assert self._environment is not None
        return getattr(self._environment, method)(argument)


def _fulfil(answer: asyncio.Future[Any], value: Any, failure: EnvironmentFailure | None) -> None:
    if answer.done():  # nobody waits any more
        return
    if failure is None:
        answer.set_result(value)
    else:
        answer.set_exception(failure)


class Environments:
    """The environments of this process, by number."""

    def __init__(self) -> None:
        self._players: dict[int, _Player] = {}

    async def handle(self, method: str, number: int, argument: Any) -> Any:
        """Calls a method of an environment and returns its result.

        Raises:
            EnvironmentFailure: what it failed with.
        """
        if method == "ping":
            return None
        if method == "open":
            self._players[number] = _Player()
        if method == "close" and number not in self._players:
            return None  # who asked for it left before it was opened
        player = self._players.pop(number) if method == "close" else self._players[number]
        return await player.call(method, argument)


if __name__ == "__main__":
    serve(Environments().handle)
