"""The process of one engine: ``python -m sidecar.hosting.local_main FD``, started by `sidecar.hosting.local`.

It ends with its parent: the socket that it speaks through is closed then, and it takes its whole process group along,
in which vLLM may have started workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import socket
import sys
from typing import Any

from sidecar.diagnosis import one_line, read_from, size_of
from sidecar.failpoints import failpoint
from sidecar.hosting.spec import EngineSpec
from sidecar.protocol import Engine, EngineError, RequestError, WeightUpdateError
from sidecar.workers.rpc import receive, send


async def serve(sock: socket.socket) -> None:
    """Opens the engine that the first message describes, and answers calls until the other end is gone."""
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    try:
        await _serve(reader, writer)
    finally:
        # Now, and not when asyncio has waited for its threads: one may be opening an engine for minutes yet.
        with contextlib.suppress(OSError):
            await writer.drain()
        end_with_workers()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    spec: EngineSpec = await receive(reader)
    printed = size_of(spec.log)
    opening = asyncio.ensure_future(asyncio.to_thread(spec.open))
    first = asyncio.ensure_future(receive(reader))
    await asyncio.wait([opening, first], return_when=asyncio.FIRST_COMPLETED)
    if first.done():  # nobody calls before the answer: the parent is gone
        return
    try:
        engine = opening.result()
    except Exception as error:
        send(writer, (0, False, EngineError(one_line(spec.name, error, read_from(spec.log, printed)))))
        await writer.drain()
        return
    send(writer, (0, True, os.getpid()))
    calls: dict[int, asyncio.Task[None]] = {}
    incoming = first
    while True:
        number, method, arguments = await incoming
        if method == "cancel":
            if (task := calls.get(number)) is not None:
                task.cancel()
        else:
            task = asyncio.ensure_future(_answer(engine, writer, number, method, arguments))
            calls[number] = task
            task.add_done_callback(functools.partial(_forget, calls, number))
        incoming = asyncio.ensure_future(receive(reader))


def _forget(calls: dict[int, asyncio.Task[None]], number: int, _: object) -> None:
    calls.pop(number, None)


async def _answer(engine: Engine, writer: asyncio.StreamWriter, number: int, method: str, arguments: tuple) -> None:
    failpoint(f"engine_{method}")
    value: Any
    try:
        value, good = await getattr(engine, method)(*arguments), True
    except (RequestError, WeightUpdateError, EngineError) as error:
        value, good = error, False
    except asyncio.CancelledError:
        value, good = EngineError("cancelled"), False
    except Exception as error:
        value, good = EngineError(f"{type(error).__name__}: {error}".splitlines()[0]), False
    send(writer, (number, good, value))


def end_with_workers() -> None:
    """Ends this process and its group: threads in computations and vLLM's workers, nothing is left behind."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main() -> None:
    """Serves the socket of the number that is the only argument."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    asyncio.run(serve(sock))


if __name__ == "__main__":
    main()
