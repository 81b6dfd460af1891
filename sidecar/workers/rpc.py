"""RPC framing between a process and a child that it started: a length, then a pickle.

Only the two ends of a socket pair that one of them made ever speak here, so what is unpickled is our own.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from typing import Any

_LENGTH = struct.Struct("<Q")


def send(writer: asyncio.StreamWriter, message: Any) -> None:
    """Queues a message; the event loop writes it out."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    writer.write(_LENGTH.pack(len(data)) + data)


async def receive(reader: asyncio.StreamReader) -> Any:
    """Reads the next message.

    Raises:
        EOFError: the other end is gone.
    """
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return pickle.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        raise EOFError from None
