"""Publishes weights over NCCL or TCP: holds versions on the learner's devices, and sends them to engines on request.

A thread for each engine serves it beside the training; what a version holds are copies that training never touches. A
version is kept until the ledger says that no process needs it. `sidecar.channels.nccl` describes the protocol.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import AuthenticationError, connection
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from rljax.weights.gathering import Tensors, check_dtypes
from rljax.weights.publisher import OrbaxPublisher, PublishError, describe
from sidecar.channels.link import (
    BUFFER_BYTES,
    DEADLINE,
    PROTOCOL,
    Link,
    Phase,
    TransferError,
    address,
    chunks,
    expected_sizes,
)
from sidecar.channels.versions import AdapterInfo, Manifest, TensorInfo
from sidecar.errors import first_line

log = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
"""Seconds that `NcclPublisher.close` waits for a thread that sends."""


class Communicator(Protocol):
    """Sends tensors to the ranks of one engine; the learner is rank 0."""

    def init_info(self) -> dict[str, Any]:
        """Returns the arguments of vLLM's ``NCCLWeightTransferInitInfo``, but for the packing."""
        ...

    def join(self) -> None:
        """Forms the communicator, while the engine does.

        Raises:
            TransferError: the engine did not come, or the communicator failed.
        """
        ...

    def broadcast(self, tensors: Sequence[jax.Array | np.ndarray]) -> None:
        """Sends tensors as one packed chunk: their bytes in C order, one after the other. Returns once they are sent.

        Raises:
            TransferError: the engine does not take them.
        """
        ...

    def close(self) -> None:
        """Closes the communicator, whatever it is doing."""
        ...


@dataclass(frozen=True)
class Held:
    """A version on the learner's devices."""

    manifest: Manifest
    tensors: Mapping[str, jax.Array | np.ndarray]


class NcclPublisher:
    """Holds versions for engines to fetch, each over a communicator of its own."""

    spare = 1

    def __init__(self, directory: Path, host: str, *, deadline: float = DEADLINE) -> None:
        """Listens at ``host``, an address of this machine; ``deadline`` bounds every wait for an engine, in seconds.
        ``directory`` holds what an explorer published as files before a learner lived.

        Raises:
            PublishError: the address is none of this machine's, or the directory cannot be used.
        """
        self._files = OrbaxPublisher(directory)
        self.metrics: Mapping[str, float] = {}
        self._host = host
        self._deadline = deadline
        self._key = secrets.token_hex(32)
        self._held: dict[tuple[int, int], Held] = {}
        self._sessions: dict[threading.Thread, socket.socket] = {}
        self._lock = threading.Lock()
        try:
            self._listener = socket.create_server((host, 0))
        except OSError as error:
            raise PublishError(
                f"sync_address={host}: the learner cannot listen there: {error}; write an address of its machine"
            ) from error
        self._port = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, name="weights", daemon=True)
        self._accepting.start()

    def take(self, tensors: Tensors) -> Tensors:
        """See `rljax.weights.publisher.Publisher.take`: they stay on the learner's devices."""
        return dict(tensors)

    def publish(
        self,
        version: int,
        lineage: int,
        tensors: Tensors,
        *,
        model: str,
        dtype: str,
        adapter: AdapterInfo | None = None,
    ) -> str:
        """See `rljax.weights.publisher.Publisher.publish`. The tensors stay where they are; nothing waits for them."""
        tensors = dict(tensors)
        try:
            check_dtypes(tensors, dtype)
        except ValueError as error:
            raise PublishError(f"version {version} cannot be sent: {error}") from error
        infos = {name: TensorInfo(tuple(t.shape), str(t.dtype), "") for name, t in tensors.items()}
        self._held[version, lineage] = Held(Manifest(version, lineage, model, dtype, infos, adapter), tensors)
        return address(self._host, self._port, self._key, version, lineage)

    def delete(self, version: int, lineage: int) -> None:
        """See `rljax.weights.publisher.Publisher.delete`. An engine that is being sent it gets all of it."""
        self._held.pop((version, lineage), None)
        self._files.delete(version, lineage)

    def prune(self, keep: Collection[tuple[int, int]], lineage: int) -> None:
        """See `rljax.weights.publisher.Publisher.prune`: of what it holds, and of the files of before."""
        for version, published_by in self._held.keys() - set(keep):
            self.delete(version, published_by)
        self._files.prune(keep, lineage)

    def close(self) -> None:
        """See `rljax.weights.publisher.Publisher.close`. Engines that wait for something are told by the end of their
        connections.
        """
        with self._lock:
            _shut_down(self._listener)
            self._listener.close()
            sessions = dict(self._sessions)
        for joined in sessions.values():
            _shut_down(joined)
        for thread in (self._accepting, *sessions):
            thread.join(CLOSE_SECONDS)
        self._held.clear()

    def _accept(self) -> None:
        while True:
            try:
                joined, _ = self._listener.accept()
            except OSError:
                return  # closed
            session = threading.Thread(target=self._serve, args=(joined,), name="weights for an engine", daemon=True)
            with self._lock:
                self._sessions[session] = joined
                session.start()

    def _serve(self, joined: socket.socket) -> None:
        peer = "an engine at {}:{}".format(*joined.getpeername()[:2])
        link = Link(connection.Connection(joined.dup().detach()), peer, self._deadline)
        session = _Session(link, self._held)
        try:
            connection.deliver_challenge(link.end, bytes.fromhex(self._key))
            connection.answer_challenge(link.end, bytes.fromhex(self._key))
            session.run()
        except (TransferError, AuthenticationError, OSError, EOFError) as error:
            log.warning("weights: %s", error)
        finally:
            session.close()
            link.end.close()
            joined.close()
            with self._lock:
                self._sessions.pop(threading.current_thread(), None)


class _Session:
    """Serves one engine's connection, from the learner's side."""

    def __init__(self, link: Link, held: Mapping[tuple[int, int], Held]) -> None:
        self._link = link
        self._held = held
        self._communicator: Communicator | None = None

    def run(self) -> None:
        """Serves until the engine closes the connection.

        Raises:
            TransferError: it died in an update, hung, or broke the protocol; one that lives was sent the error.
        """
        try:
            self._join()
            while self._link.end.poll(None) and not self._is_closed_by_peer():
                self._update()
        except (TransferError, KeyError, ValueError, RuntimeError) as error:
            line = f"a message has no field {error}" if isinstance(error, KeyError) else first_line(error)
            try:
                self._link.send("error", message=line)
            except TransferError:
                log.debug("weights: %s is gone", self._link.peer)
            raise error if isinstance(error, TransferError) else TransferError(f"{self._link.peer}: {line}") from error

    def close(self) -> None:
        """Closes the communicator."""
        if self._communicator is not None:
            self._communicator.close()

    def _is_closed_by_peer(self) -> bool:
        with socket.socket(fileno=self._link.end.fileno()) as same:
            try:
                return not same.recv(1, socket.MSG_PEEK)
            except ConnectionError:
                return True
            finally:
                same.detach()

    def _join(self) -> None:
        hello = self._link.receive("init")
        if hello.get("protocol") != PROTOCOL:
            raise TransferError(f"the engine speaks protocol {hello.get('protocol')}, the learner {PROTOCOL}")
        self._communicator = self._make(str(hello.get("carrier")), int(hello.get("workers", 1)))
        packing = {"packed": True, "packed_buffer_size_bytes": BUFFER_BYTES, "packed_num_buffers": 2}
        self._buffer_bytes = BUFFER_BYTES
        self._link.send("init_info", init_info={**self._communicator.init_info(), **packing})
        self._communicator.join()
        self._link.send("initialised")
        self._link.advance(Phase.INITIALISED)

    def _make(self, carrier: str, workers: int) -> Communicator:
        self._on_host = carrier == "tcp"
        if carrier == "tcp":
            return TcpCommunicator(self._link)
        if carrier != "nccl":
            raise TransferError(f"the engine asks for a carrier {carrier!r}; there are nccl and tcp")
        from rljax.weights.nccl_library import NcclCommunicator

        version = next(iter(list(self._held.values())), None)
        tensor = None if version is None else next(iter(version.tensors.values()))
        device = next(iter(tensor.devices())) if isinstance(tensor, jax.Array) else None
        if device is None or device.platform != "gpu":
            raise TransferError("nccl goes from GPU to GPU, and the learner's weights are on none; set learner.devices")
        return NcclCommunicator(device, 1 + workers, self._link.deadline)

    def _update(self) -> None:
        assert self._communicator is not None
        wanted = self._link.receive("start")
        held = self._held.get((int(wanted["version"]), int(wanted["lineage"])))
        if held is None:
            self._link.send("gone")
            return
        if self._on_host:
            held = _on_host(held)
        self._link.advance(Phase.STARTED)
        self._link.send("manifest", manifest=held.manifest.to_json())
        go, ours = self._link.receive("go"), expected_sizes(held.manifest, self._buffer_bytes)
        if theirs := {name: go.get(name) for name in ours if go.get(name) != ours[name]}:
            raise TransferError(f"the engine expects {theirs}, the learner {ours}: nothing is sent")
        self._link.advance(Phase.TRANSFERRING)
        for names in chunks(held.manifest, self._buffer_bytes):
            self._communicator.broadcast([held.tensors[name] for name in names])
        self._link.send("sent")
        self._link.receive("finished")
        self._link.advance(Phase.FINISHED)


class TcpCommunicator:
    """Sends chunks through the control connection, to one engine that receives them in its host's memory."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def init_info(self) -> dict[str, Any]:
        """See `Communicator`. Nothing is to be formed, so there is no ncclUniqueId."""
        return {"rank_offset": 1, "world_size": 2}

    def join(self) -> None:
        """See `Communicator`."""

    def broadcast(self, tensors: Sequence[jax.Array | np.ndarray]) -> None:
        """See `Communicator`."""
        flat = [np.ascontiguousarray(tensor).reshape(-1).view(np.uint8) for tensor in tensors]
        self._link.write(np.concatenate(flat).data)

    def close(self) -> None:
        """See `Communicator`."""


def _on_host(held: Held) -> Held:
    """Returns the version in host memory, with checksums; not shared between threads: engines seldom ask together."""
    published = describe(held.manifest, held.tensors)
    return replace(held, manifest=published.manifest, tensors=published.tensors)


def _shut_down(joined: socket.socket) -> None:
    try:
        joined.shutdown(socket.SHUT_RDWR)
    except OSError:
        log.debug("weights: a connection was closed already")
