"""Worker process of several environments: ``python -m rljax.rollout.environments.worker FD``, started by `processes`.

Each environment computes on a thread of its own, so that one that hangs keeps none of the others from answering. The
process ends with its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from rljax.rollout.environments.session import EnvironmentFailure, LocalEnvironment
from sidecar.workers.rpc import receive, send

Answer = Callable[[bool, Any], None]


class _Player:
    """Runs one environment on a thread of its own."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[str, Any, Answer]] = queue.SimpleQueue()
        self._environment: LocalEnvironment | None = None
        threading.Thread(target=self._play, name="environment", daemon=True).start()

    def call(self, method: str, argument: Any, answer: Answer) -> None:
        """Queues a call for the thread; ``answer`` is called with its result."""
        self._calls.put((method, argument, answer))

    def _play(self) -> None:
        method = ""
        while method != "close":
            method, argument, answer = self._calls.get()
            try:
                answer(True, self._do(method, argument))
            except EnvironmentFailure as failure:
                answer(False, failure)
            except BaseException as error:  # SystemExit of an environment, say: its caller must not wait for ever
                answer(False, EnvironmentFailure(f"{method}: {type(error).__name__}: {error}"))

    def _do(self, method: str, argument: Any) -> Any:
        if method == "open":
            self._environment = LocalEnvironment(argument)
            return None
        if method == "close":
            return self._environment.close() if self._environment is not None else None
        assert self._environment is not None
        return getattr(self._environment, method)(argument)


async def serve(sock: socket.socket) -> None:
    """Answers calls until the other end is gone."""
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    loop = asyncio.get_running_loop()
    players: dict[int, _Player] = {}

    def answering(number: int) -> Answer:
        def answer(good: bool, value: Any) -> None:
            loop.call_soon_threadsafe(send, writer, (number, good, value))

        return answer

    with contextlib.suppress(EOFError):
        while True:
            number, method, argument = await receive(reader)
            if method == "ping":
                send(writer, (number, True, None))
                continue
            if method == "open":
                players[number] = _Player()
            players[number].call(method, argument, answering(number))
            if method == "close":
                players.pop(number)
    # A thread that hangs would keep the interpreter from ending.
    os._exit(0)


def main() -> None:
    """Serves the socket whose file descriptor is the only argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    asyncio.run(serve(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
