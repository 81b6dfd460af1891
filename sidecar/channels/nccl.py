"""Receives weights that the learner sends: the engine's end. `sidecar.channels.link` is the connection.

An engine opens one TCP connection to the learner, proves that it knows the run's key, and asks for versions when it is
to load them; the learner answers from a thread of its own. The connection is the control channel of vLLM's documented
life cycle: ``init_weight_transfer_engine``, ``start_weight_update``, ``update_weights``, ``finish_weight_update``. The
tensors take one of two carriers:

- ``nccl``: from GPU to GPU, received by vLLM's own NCCL transfer engine (`WeightReceiver`). The learner is rank 0 of a
  communicator of its own for each engine, and joins by vLLM's torch-free rendezvous: a pre-shared ncclUniqueId, then
  ``ncclCommInitRank`` and a one-element all-reduce on every rank, then packed broadcasts. No GPU has run this yet.
- ``tcp``: through the connection itself, into the memory of the engine's host (`read_transfer`): for every engine.
"""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing import AuthenticationError, connection
from typing import Any, Protocol

import numpy as np

from sidecar.channels.link import (
    ADDRESS,
    DEADLINE,
    PROTOCOL,
    Link,
    Phase,
    TransferError,
    chunks,
    expected_sizes,
    nbytes,
    update_info,
)
from sidecar.channels.versions import (
    Manifest,
    PublishedVersion,
    VersionGoneError,
    checked,
    gone,
    parse_manifest,
)
from sidecar.errors import first_line
from sidecar.protocol import EngineError

CONNECT_SECONDS = 10.0
"""Seconds in which the learner must take a connection; one that has died refuses it at once."""


class TransferEngine(Protocol):
    """Receives the weights in an engine: vLLM's ``VLLMWeightSyncClient``, method by method. All of them block."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Joins the learner's communicator."""

    def start_weight_update(self) -> None:
        """Prepares the model for loading weights."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Loads all tensors, while the learner sends them."""

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Prepares the model for serving."""


class WeightReceiver:
    """Loads versions into one engine, over one connection for as long as the learner lives.

    A restarted learner has another address, and a restarted engine another receiver: either begins anew, with a
    communicator of its own. One thread at a time.
    """

    def __init__(self, engine: TransferEngine, *, carrier: str = "nccl", workers: int = 1, deadline: float = DEADLINE):
        """Takes the ranks of the engine beside the learner's as ``workers``: tensor × pipeline × data parallel size."""
        self._engine = engine
        self._carrier = carrier
        self._workers = workers
        self._deadline = deadline
        self._learner: tuple[str | Any, ...] | None = None
        self.link: Link | None = None

    def load(self, path: str) -> Manifest:
        """Has the engine load the version at an address of `address`.

        Raises:
            VersionGoneError: no learner listens there, or it holds no such version.
            TransferError: nothing was loaded; the engine serves the version that it had.
            EngineError: the transfer broke off where the engine may hold two versions, or hang: restart it.
        """
        place = ADDRESS.fullmatch(path)
        if place is None:
            raise TransferError("this is no address of weights that a learner sends: nccl://HOST:PORT/vN-N#KEY")
        if self.link is None or self._learner != place.group("host", "port", "key"):
            self.close()
            self._learner = place.group("host", "port", "key")
            self.link = _connect(place["host"], int(place["port"]), bytes.fromhex(place["key"]), self._deadline)
        link = self.link
        try:
            if link.phase is Phase.IDLE:
                self._join(link)
            manifest = self._update(link, int(place["version"]), int(place["lineage"]))
        except BaseException as error:
            phase, broken = link.phase, isinstance(error, EngineError)
            self.close()
            if self._carrier == "nccl" and not broken and phase in (Phase.STARTED, Phase.TRANSFERRING):
                raise EngineError(f"the engine may hold a mixture of weights: {error}; restart it") from error
            raise
        if manifest is None:
            raise VersionGoneError(gone(f"v{place['version']}-{place['lineage']} of {link.peer}"))
        return manifest

    def close(self) -> None:
        """Ends the connection."""
        if self.link is not None:
            self.link.end.close()
        self.link = None

    def _join(self, link: Link) -> None:
        link.send("init", protocol=PROTOCOL, carrier=self._carrier, workers=self._workers)
        info = link.receive("init_info")["init_info"]
        self._call(link, "the communicator", self._engine.init_weight_transfer_engine, info)
        link.receive("initialised")
        self._buffer_bytes = info["packed_buffer_size_bytes"]
        link.advance(Phase.INITIALISED)

    def _update(self, link: Link, version: int, lineage: int) -> Manifest | None:
        """Has the engine load a version; returns None if the learner does not hold it."""
        link.send("start", version=version, lineage=lineage)
        answer = link.receive("manifest", "gone")
        if answer["type"] == "gone":
            return None
        manifest = parse_manifest(answer["manifest"], f"the manifest of {link.peer}")
        if (manifest.version, manifest.lineage) != (version, lineage):
            raise TransferError(f"{link.peer} offers version {manifest.version} of lineage {manifest.lineage} instead")
        self.manifest = manifest
        link.advance(Phase.STARTED)
        self._call(link, "start_weight_update", self._engine.start_weight_update)
        link.send("go", **expected_sizes(manifest, self._buffer_bytes))
        link.advance(Phase.TRANSFERRING)
        self._call(link, "update_weights", self._engine.update_weights, update_info(manifest))
        link.receive("sent")
        self._call(link, "finish_weight_update", self._engine.finish_weight_update, f"v{version}-{lineage}")
        link.send("finished")
        link.advance(Phase.FINISHED)
        return manifest

    def _call(self, link: Link, what: str, call: Callable[..., None], *arguments: Any) -> None:
        """Calls the engine; one that waits for NCCL is left to its thread once the learner is gone, or time is up."""
        if self._carrier != "nccl":
            call(*arguments)
            return
        done, ended = multiprocessing.Pipe(duplex=False)
        failure: list[BaseException] = []

        def run() -> None:
            try:
                call(*arguments)
            except BaseException as error:
                failure.append(error)
            finally:
                ended.close()

        threading.Thread(target=run, name=f"transfer: {what}", daemon=True).start()
        until = time.monotonic() + self._deadline
        watched: list[Any] = [done, link.end]
        try:
            while done not in (ready := connection.wait(watched, max(0.0, until - time.monotonic()))):
                if not ready:
                    raise EngineError(f"the engine hangs: waited {self._deadline:g} s for {what}; restart it")
                link.hear()
                watched = [done]  # the learner has sent all; the engine only has to finish
        except TransferError as error:
            raise EngineError(f"the engine was left in {what}: {error}; restart it") from error
        finally:
            done.close()
        if failure:
            raise EngineError(f"the engine failed in {what}: {first_line(failure[0])}; restart it") from failure[0]


class _Host:
    """Receives the tensors from the connection, into numpy arrays."""

    def __init__(self) -> None:
        self.tensors: dict[str, np.ndarray] = {}
        self.receiver = WeightReceiver(self, carrier="tcp")

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._buffer_bytes = int(init_info["packed_buffer_size_bytes"])

    def start_weight_update(self) -> None:
        self.tensors.clear()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        manifest, link = self.receiver.manifest, self.receiver.link
        assert link is not None
        for names in chunks(manifest, self._buffer_bytes):
            sizes = [nbytes(manifest, name) for name in names]
            packed = np.frombuffer(link.read(f"{len(names)} tensors", sum(sizes)), np.uint8)
            if len(packed) != sum(sizes):
                raise TransferError(f"{link.peer} sent {len(packed)} bytes where {sum(sizes)} were agreed on")
            for name, flat in zip(names, np.split(packed, np.cumsum(sizes)[:-1]), strict=True):
                info = manifest.tensors[name]
                self.tensors[name] = flat.view(np.dtype(info.dtype)).reshape(info.shape)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        checked(PublishedVersion(self.receiver.manifest, self.tensors), f"what came as {weight_version}")


def read_transfer(path: str) -> PublishedVersion:
    """Fetches a version from the learner, through TCP. The `sidecar.channels.versions.Receiver` of this channel.

    Raises:
        VersionGoneError: no learner listens there, or it holds no such version.
        VersionError: the transfer broke off, or a tensor is not what the manifest says.
    """
    host = _Host()
    try:
        return PublishedVersion(host.receiver.load(path), host.tensors)
    finally:
        host.receiver.close()


def _connect(host: str, port: int, key: bytes, deadline: float) -> Link:
    peer = f"the learner at {host}:{port}"
    try:
        joined = socket.create_connection((host, port), timeout=CONNECT_SECONDS)
    except OSError as error:
        raise VersionGoneError(f"{peer} does not answer ({error}); it publishes again when it is restarted") from error
    link = Link(connection.Connection(joined.detach()), peer, deadline)
    try:
        connection.answer_challenge(link.end, key)
        connection.deliver_challenge(link.end, key)
    except (AuthenticationError, EOFError, OSError) as error:
        link.end.close()
        raise VersionGoneError(f"{peer} is not the one that announced these weights") from error
    return link
