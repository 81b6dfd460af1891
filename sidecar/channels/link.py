"""Connection between the learner and an engine that fetches weights: messages, phases, deadlines; what both ends know.

Messages are JSON and tensors are bytes: nothing is pickled. The bytes are authenticated only at the start and not
encrypted: the address is for a network that the run has for itself.
"""

from __future__ import annotations

import enum
import json
import math
import os
import re
import socket
import struct
from collections.abc import Iterator
from multiprocessing import connection
from typing import Any

import numpy as np

from sidecar.channels.versions import Manifest, VersionError, VersionGoneError

PROTOCOL = 1
DEADLINE = 300.0
"""Seconds that one end waits for the other, or for its own engine, before it gives the transfer up."""
BUFFER_BYTES = 2**28
"""Bytes after which a packed broadcast ends; a tensor is never cut."""
MESSAGE_BYTES = 2**26
ADDRESS = re.compile(r"nccl://(?P<host>[^/]+):(?P<port>\d+)/v(?P<version>\d+)-(?P<lineage>\d+)#(?P<key>[0-9a-f]+)")
"""Of a version; see `address`."""


class TransferError(VersionError):
    """A transfer broke off, or one end violated the protocol. One line: what, where, what was waited for."""


class PeerGoneError(TransferError, VersionGoneError):
    """The other end closed the connection or died."""


class Phase(enum.StrEnum):
    """State of a connection; both ends go through the same phases in the same order."""

    IDLE = "idle"  # connected; no communicator yet
    INITIALISED = "initialised"  # the communicator is formed
    STARTED = "started"  # a version is agreed on, and the engine is ready to load it
    TRANSFERRING = "transferring"  # tensors are being sent
    FINISHED = "finished"  # the engine has all of it; the next update may start


_BEFORE = {
    Phase.INITIALISED: (Phase.IDLE,),
    Phase.STARTED: (Phase.INITIALISED, Phase.FINISHED),
    Phase.TRANSFERRING: (Phase.STARTED,),
    Phase.FINISHED: (Phase.TRANSFERRING,),
}


class Link:
    """One end of a connection: messages, deadlines and the phase. One thread at a time."""

    def __init__(self, end: connection.Connection, peer: str, deadline: float = DEADLINE) -> None:
        """Takes a connection; ``peer`` is named in errors. No read or write waits longer than ``deadline`` seconds."""
        self.end = end
        self.peer = peer
        self.deadline = deadline
        self.phase = Phase.IDLE
        self._early: list[dict[str, Any]] = []
        with socket.socket(fileno=os.dup(end.fileno())) as same:
            same.setblocking(True)
            same.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            limit = struct.pack("ll", int(deadline), int(deadline % 1 * 1e6))
            same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)

    def advance(self, phase: Phase) -> None:
        """Enters a phase.

        Raises:
            TransferError: the phase does not follow the current one.
        """
        if self.phase not in _BEFORE[phase]:
            after = " or ".join(_BEFORE[phase])
            raise TransferError(f"transfer with {self.peer}: {phase} cannot follow {self.phase}, only {after}")
        self.phase = phase

    def send(self, type: str, **fields: Any) -> None:
        """Sends a message."""
        self.write(json.dumps({"type": type, **fields}).encode())

    def write(self, data: bytes | memoryview) -> None:
        """Sends bytes.

        Raises:
            TransferError: the peer is gone, or does not take them.
        """
        try:
            self.end.send_bytes(data)
        except BlockingIOError:
            raise TransferError(f"{self.peer} took nothing for {self.deadline:g} s ({self.phase})") from None
        except OSError as error:
            raise PeerGoneError(f"{self.peer} ended the connection ({self.phase}): {error}") from error

    def read(self, what: str, at_most: int) -> bytes:
        """Receives what one `write` of the peer sent.

        Raises:
            TransferError: the peer is gone, silent, or sends more than ``at_most`` bytes.
        """
        try:
            return self.end.recv_bytes(at_most)
        except EOFError:
            raise PeerGoneError(f"{self.peer} ended the connection ({self.phase}); waited for {what}") from None
        except BlockingIOError:
            raise TransferError(f"{self.peer} was silent for {self.deadline:g} s; waited for {what}") from None
        except OSError as error:
            # the library closes the connection, too, on messages longer than allowed
            raise PeerGoneError(f"{self.peer}: {what} cannot be received ({self.phase}): {error}") from error

    def receive(self, *types: str) -> dict[str, Any]:
        """Receives a message of one of these types.

        Raises:
            TransferError: the peer is gone, silent, reports an error, or sent something else.
        """
        what = " or ".join(types)
        message = self._early.pop(0) if self._early else self._message(what)
        if message["type"] == "error":
            raise TransferError(f"{self.peer}: {message.get('message')}")
        if message["type"] not in types:
            raise TransferError(f"{self.peer} sent {message['type']!r} when {self.phase}; expected {what}")
        return message

    def hear(self) -> None:
        """Reads a message before its turn; `receive` returns it then.

        Raises:
            TransferError: the message is an error, or the peer closed the connection.
        """
        message = self._message("its next message")
        if message["type"] == "error":
            raise TransferError(f"{self.peer}: {message.get('message')}")
        self._early.append(message)

    def _message(self, what: str) -> dict[str, Any]:
        try:
            message = json.loads(self.read(what, MESSAGE_BYTES))
        except ValueError:
            message = None
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise TransferError(f"{self.peer} sent what is no message of this protocol; waited for {what}")
        return message


def address(host: str, port: int, key: str, version: int, lineage: int) -> str:
    """Returns the address by which the ledger announces a version. It holds the key: the ledger is no more public."""
    return f"nccl://{host}:{port}/v{version}-{lineage}#{key}"


def chunks(manifest: Manifest, buffer_bytes: int) -> Iterator[list[str]]:
    """Yields the names of the tensors that are sent as one chunk, in the manifest's order, by vLLM's packing rule.

    A chunk ends with the tensor that takes it beyond ``buffer_bytes``.
    """
    names: list[str] = []
    total = 0
    for name in manifest.tensors:
        names.append(name)
        total += nbytes(manifest, name)
        if total > buffer_bytes:
            yield names
            names, total = [], 0
    if names:
        yield names


def nbytes(manifest: Manifest, name: str) -> int:
    """Returns the bytes of one tensor."""
    info = manifest.tensors[name]
    return math.prod(info.shape) * np.dtype(info.dtype).itemsize


def expected_sizes(manifest: Manifest, buffer_bytes: int) -> dict[str, int]:
    """Returns the sizes that both ends must agree on before a byte is sent."""
    sizes = [nbytes(manifest, name) for name in manifest.tensors]
    return {"tensors": len(sizes), "bytes": sum(sizes), "chunks": len(list(chunks(manifest, buffer_bytes)))}


def update_info(manifest: Manifest) -> dict[str, Any]:
    """Returns the manifest as vLLM's ``NCCLWeightTransferUpdateInfo``."""
    infos = manifest.tensors.values()
    return {
        "names": list(manifest.tensors),
        "dtype_names": [info.dtype for info in infos],
        "shapes": [list(info.shape) for info in infos],
    }
