"""The learner sends: what arrives, what is refused, and what becomes of either end when the other dies or hangs."""

from __future__ import annotations

import contextlib
import itertools
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing import connection
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from rljax.weights import nccl
from rljax.weights.nccl import NcclPublisher, TcpCommunicator
from rljax.weights.publisher import PublishError
from sidecar.channels.link import Link, Phase, TransferError, chunks, expected_sizes
from sidecar.channels.nccl import WeightReceiver
from sidecar.channels.versions import Manifest, TensorInfo, VersionError, VersionGoneError, is_address, receive
from tests.waiting import HANGS

TENSORS = {
    "a": jnp.arange(6, dtype=jnp.float32).reshape(2, 3),
    "scalar": jnp.float32(2.5),
    "b": jnp.linspace(-1, 1, 40, dtype=jnp.float32),
    "c": jnp.ones((4, 2), jnp.float32),
}


@pytest.fixture
def learner(tmp_path: Path):
    with contextlib.closing(NcclPublisher(tmp_path, "127.0.0.1", deadline=20.0)) as publisher:
        yield publisher


def publish(learner: NcclPublisher, version: int = 1, tensors=TENSORS, dtype: str = "fp32") -> str:
    return learner.publish(version, 1, tensors, model="tiny", dtype=dtype)


def knock(address: str, deadline: float = 20.0) -> Link:
    """A connection as an engine opens it, to say on it what no engine would."""
    port, key = address.removeprefix("nccl://127.0.0.1:").split("/")[0], address.partition("#")[2]
    end = connection.Connection(socket.create_connection(("127.0.0.1", int(port))).detach())
    connection.answer_challenge(end, bytes.fromhex(key))
    connection.deliver_challenge(end, bytes.fromhex(key))
    return Link(end, "the learner", deadline)


def initialised(address: str) -> Link:
    link = knock(address)
    link.send("init", protocol=1, carrier="tcp", workers=1)
    link.receive("init_info")
    link.receive("initialised")
    return link


@pytest.mark.parametrize("buffer_bytes", [2**28, 25, 1])
def test_a_version_arrives_whole_in_chunks_of_any_size(learner, monkeypatch, buffer_bytes) -> None:
    monkeypatch.setattr(nccl, "BUFFER_BYTES", buffer_bytes)
    address = publish(learner)
    assert is_address(address)
    found = receive(address)
    assert (found.manifest.version, found.manifest.lineage, found.manifest.dtype) == (1, 1, "fp32")
    assert list(found.tensors) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert found.tensors[name].shape == tensor.shape
        np.testing.assert_array_equal(found.tensors[name], tensor)


def test_bf16_arrives_bit_for_bit(learner) -> None:
    sent = jnp.linspace(-3, 3, 1000).astype(jnp.bfloat16)
    found = receive(publish(learner, tensors={"a": sent}, dtype="bf16")).tensors["a"]
    assert found.dtype == ml_dtypes.bfloat16
    assert found.tobytes() == np.asarray(sent).tobytes()


def test_a_chunk_ends_with_the_tensor_that_goes_beyond_it() -> None:
    infos = {name: TensorInfo((size,), "float32", "") for name, size in zip("abcdef", (4, 4, 1, 30, 0, 2), strict=True)}
    manifest = Manifest(0, 0, "", "fp32", infos)
    assert list(chunks(manifest, 32)) == [["a", "b", "c"], ["d"], ["e", "f"]]  # 16 + 16 + 4 > 32; 120 > 32; 0 + 8
    assert expected_sizes(manifest, 32) == {"tensors": 6, "bytes": 164, "chunks": 3}


def test_many_engines_are_served_at_once_and_one_connection_serves_many_versions(learner) -> None:
    addresses = [publish(learner, version, {"a": jnp.full(10**5, float(version))}) for version in range(4)]
    found: list[float] = []

    def read(address: str) -> None:
        found.append(float(receive(address).tensors["a"][-1]))

    threads = [threading.Thread(target=read, args=(address,)) for address in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANGS)
    assert sorted(found) == [0.0, 1.0, 2.0, 3.0]
    link = initialised(addresses[0])
    for version in (2, 3):
        link.send("start", version=version, lineage=1)
        assert f'"version": {version}' in link.receive("manifest")["manifest"]
        link.send("go", tensors=1, bytes=400_000, chunks=1)
        assert np.frombuffer(link.read("tensors", 400_000), np.float32)[0] == version
        link.receive("sent")
        link.send("finished")


def test_gone_is_told_from_broken(learner, tmp_path) -> None:
    address = publish(learner)
    learner.delete(1, 1)
    with pytest.raises(VersionGoneError, match=r"v1-1 of the learner at .* is not there"):
        receive(address)
    later = publish(learner, 2)
    with pytest.raises(VersionGoneError, match="not the one that announced"):
        receive(later[:-2] + ("00" if later[-2:] != "00" else "11"))
    learner.close()
    with pytest.raises(VersionGoneError, match="does not answer"):
        receive(later)
    with pytest.raises(TransferError, match="no address"):
        receive("nccl://nowhere")
    with pytest.raises(PublishError, match=r"sync_address=203.0.113.7: the learner cannot listen there"):
        NcclPublisher(tmp_path, "203.0.113.7")


def test_a_corrupted_tensor_is_refused_by_name(learner, monkeypatch) -> None:
    honest = TcpCommunicator.broadcast

    def broadcast(self, tensors) -> None:
        honest(self, [*tensors[:-1], np.asarray(tensors[-1]) + 1])

    monkeypatch.setattr(TcpCommunicator, "broadcast", broadcast)
    with pytest.raises(VersionError, match="tensor c is corrupted"):
        receive(publish(learner))


PHASES = list(Phase)
ORDER = {(Phase.FINISHED, Phase.STARTED), *itertools.pairwise(PHASES)}


@pytest.mark.parametrize("before", PHASES)
@pytest.mark.parametrize("after", PHASES[1:])
def test_every_wrong_order_is_one_clear_error(before: Phase, after: Phase) -> None:
    ours, theirs = connection.Pipe()
    with ours, theirs:
        link = Link(ours, "the learner")
        link.phase = before
        if (before, after) in ORDER:
            link.advance(after)
            assert link.phase is after
        else:
            with pytest.raises(TransferError, match=f"{after} cannot follow {before}, only"):
                link.advance(after)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ({"type": "go", "tensors": 4}, "sent 'go' when initialised; expected start"),
        ({"type": "finished"}, "sent 'finished' when initialised; expected start"),
        ({"type": "start"}, "no field 'version'"),
        ({"no": "type"}, "no message of this protocol"),
    ],
)
def test_an_engine_that_breaks_the_protocol_is_told_so_and_others_are_served(learner, said, answer) -> None:
    address = publish(learner)
    link = initialised(address)
    fields = dict(said)
    if kind := fields.pop("type", None):
        link.send(kind, **fields)
    else:
        link.write(b'{"no": "type"}')
    with pytest.raises(TransferError, match=answer):
        link.receive("manifest")
    receive(address)


def test_nothing_is_sent_to_an_engine_that_expects_something_else(learner) -> None:
    link = initialised(publish(learner))
    link.send("start", version=1, lineage=1)
    link.receive("manifest")
    link.send("go", tensors=4, bytes=220, chunks=2)  # 24 + 4 + 160 + 32 bytes in one chunk
    with pytest.raises(TransferError, match=r"expects {'chunks': 2}, the learner .*: nothing is sent"):
        link.receive("sent")


def test_an_engine_that_hangs_does_not_hold_the_learner(tmp_path) -> None:
    with contextlib.closing(NcclPublisher(tmp_path, "127.0.0.1", deadline=5.0)) as learner:
        address = publish(learner)
        link = initialised(address)
        link.send("start", version=1, lineage=1)
        link.receive("manifest")
        receive(address)  # another is served meanwhile
        with pytest.raises(TransferError, match=r"was silent for 5 s; waited for go"):
            link.receive("sent")


def test_a_learner_that_hangs_ends_the_wait_by_a_deadline() -> None:
    ours, theirs = connection.Pipe()
    with ours, theirs, pytest.raises(TransferError, match=r"the learner was silent for 0.2 s; waited for init_info"):
        Link(ours, "the learner", 0.2).receive("init_info")


LEARNER = """
import os, signal, sys
import numpy as np
from pathlib import Path
from rljax.weights import nccl
nccl.BUFFER_BYTES = 1000
honest = nccl.TcpCommunicator.broadcast
sent = []
def broadcast(self, tensors):
    sent.append(1)
    if len(sent) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    honest(self, tensors)
nccl.TcpCommunicator.broadcast = broadcast
learner = nccl.NcclPublisher(Path(sys.argv[1]), "127.0.0.1")
tensors = {str(i): np.ones(1000, np.float32) for i in range(8)}
print(learner.publish(7, 1, tensors, model="", dtype="fp32"), flush=True)
sys.stdin.read()
"""


def test_a_learner_that_is_killed_while_it_sends(tmp_path) -> None:
    command = [sys.executable, "-c", LEARNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().strip()
        with pytest.raises(VersionGoneError, match=r"ended the connection \(transferring\)|cannot be received"):
            receive(address)
        assert process.wait(HANGS) == -signal.SIGKILL
    with pytest.raises(VersionGoneError, match="does not answer"):
        receive(address)


def test_a_learner_without_a_gpu_says_that_nccl_needs_one(learner) -> None:
    engine: Any = object()  # nothing of it is called
    receiver = WeightReceiver(engine, deadline=20.0)
    with pytest.raises(TransferError, match="nccl goes from GPU to GPU, and the learner's weights are on none"):
        receiver.load(publish(learner))
    assert receiver.link is None
