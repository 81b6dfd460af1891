"""Sends server-sent events to a client, which must take them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping
from typing import Any

from aiohttp import web

STALLED_SECONDS = 60.0
"""Seconds in which a client must take something of what it is sent."""


class Stream:
    """A stream of events. A client that takes nothing of it is cut off, and counts as one that has left."""

    def __init__(self, request: web.Request, seconds: float) -> None:
        """Opens nothing yet. The client has ``seconds`` for the whole, and `STALLED_SECONDS` more for its end."""
        self._request = request
        self._deadline = asyncio.get_running_loop().time() + seconds + STALLED_SECONDS
        self.response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        )

    async def open(self) -> None:
        """Sends the head."""
        await self.response.prepare(self._request)

    async def send(self, chunk: Mapping[str, Any]) -> None:
        """Sends an event.

        Raises:
            ConnectionError: the client has left.
        """
        await self._write(json.dumps(chunk).encode())

    async def end(self, *, whole: bool) -> None:
        """Ends the stream; ``whole`` says that nothing is missing.

        Raises:
            ConnectionError: the client has left.
        """
        if whole:
            await self._write(b"[DONE]")
        await self._in_time(self.response.write_eof())

    async def _write(self, event: bytes) -> None:
        await self._in_time(self.response.write(b"data: " + event + b"\n\n"))

    async def _in_time(self, sent: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout_at(min(self._deadline, asyncio.get_running_loop().time() + STALLED_SECONDS)):
                await sent
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()  # what is buffered for it would keep the connection open
            raise ConnectionResetError("the client does not read what it is sent") from None
