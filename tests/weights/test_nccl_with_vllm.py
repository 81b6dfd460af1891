"""The learner's end against vLLM's own receiving code, where that needs no GPU. What is missing here is NCCL itself: a
queue takes the place of its broadcast.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rljax.weights import nccl
from rljax.weights.nccl import NcclPublisher
from rljax.weights.nccl_library import NcclCommunicator, pack
from sidecar.channels.link import TransferError, chunks, update_info
from sidecar.channels.nccl import WeightReceiver
from sidecar.protocol import EngineError
from tests.waiting import HANGS

pytestmark = pytest.mark.vllm
torch = pytest.importorskip("torch")
packed_tensor = pytest.importorskip("vllm.distributed.weight_transfer.packed_tensor")

TENSORS = {
    "embed": jnp.linspace(-2, 2, 300).reshape(30, 10).astype(jnp.bfloat16),
    "norm": jnp.ones(7, jnp.bfloat16),
    "scalar": jnp.bfloat16(0.5),
    "up": jnp.arange(64).reshape(2, 32).astype(jnp.bfloat16),
    "down": jnp.full((16, 4), -1.0, jnp.bfloat16),
}
IDENTITY = "AAAA" * 42 + "AAA="  # 128 bytes


class Queued:
    """A communicator of one process: what rank 0 broadcasts is what the other end's broadcast receives."""

    def __init__(self) -> None:
        self.chunks: queue.Queue[np.ndarray] = queue.Queue()
        self.closed = threading.Event()

    def init_info(self) -> dict[str, Any]:
        return {"rank_offset": 1, "world_size": 2, "nccl_unique_id_b64": IDENTITY}

    def join(self) -> None:
        pass

    def broadcast(self, tensors) -> None:
        self.chunks.put(np.asarray(pack(list(tensors))))

    def close(self) -> None:
        self.closed.set()


class VllmEngine:
    """What a vLLM worker does with these calls, by vLLM's own code: its dataclasses, its packed consumer."""

    def __init__(self, group: Queued) -> None:
        self.group = group
        self.calls: list[str] = []
        self.loaded: dict[str, Any] = {}

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo

        self.info = NCCLWeightTransferInitInfo(**init_info)
        assert self.info.nccl_unique_id_bytes == bytes(128)
        self.calls.append("init")

    def start_weight_update(self) -> None:
        self.calls.append("start")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferUpdateInfo

        info = NCCLWeightTransferUpdateInfo(**update_info)
        described = zip(info.names, info.shapes, info.dtype_names, strict=True)
        packed_tensor.packed_nccl_broadcast_consumer(
            iterator=((name, (shape, getattr(torch, dtype))) for name, shape, dtype in described),
            group=SimpleNamespace(broadcast=self._broadcast),
            src=0,
            post_unpack_func=lambda tensors: self.loaded.update((n, t.clone()) for n, t in tensors),
            buffer_size_bytes=self.info.packed_buffer_size_bytes,
            num_buffers=self.info.packed_num_buffers,
            device="cpu",
        )
        self.calls.append("update")

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.calls.append(f"finish {weight_version}")

    def _broadcast(self, tensor: Any, src: int) -> None:
        assert src == 0
        sent = self.group.chunks.get(timeout=HANGS)
        assert len(sent) == tensor.numel(), "both ends cut the stream at the same places"
        tensor.copy_(torch.from_numpy(sent.copy()))


@pytest.fixture
def group(monkeypatch) -> Queued:
    """The carrier ``nccl`` without a GPU, at either end."""
    group, nothing = Queued(), SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(nccl._Session, "_make", lambda self, *_: (setattr(self, "_on_host", False), group)[1])
    monkeypatch.setattr(nccl, "BUFFER_BYTES", 100)
    monkeypatch.setattr(packed_tensor, "_get_streams", lambda _, count: (nothing,) * count)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    return group


@pytest.fixture
def learner(tmp_path: Path):
    with contextlib.closing(NcclPublisher(tmp_path, "127.0.0.1", deadline=20.0)) as publisher:
        yield publisher


def publish(learner: NcclPublisher, version: int = 1, tensors=TENSORS) -> str:
    return learner.publish(version, 1, tensors, model="tiny", dtype="bf16")


def test_vllm_unpacks_what_the_learner_sends(learner, group) -> None:
    engine = VllmEngine(group)
    receiver = WeightReceiver(engine, deadline=20.0)
    for version, tensors in ((1, TENSORS), (2, {name: tensor + 1 for name, tensor in TENSORS.items()})):
        receiver.load(publish(learner, version, tensors))
        assert list(engine.loaded) == list(TENSORS)
        for name, tensor in tensors.items():
            found = engine.loaded[name].view(torch.uint16).numpy()
            np.testing.assert_array_equal(found, np.asarray(tensor).view(np.uint16))
    once = ["start", "update", "finish v1-1"]
    assert engine.calls == ["init", *once, "start", "update", "finish v2-1"], "one communicator serves every version"
    receiver.close()
    assert group.closed.wait(HANGS), "the learner ends the communicator of an engine that left"


@pytest.mark.filterwarnings("ignore:Tensor .* exceeds buffer_size_bytes")
@pytest.mark.parametrize("buffer_bytes", [1, 100, 700, 10**9])
def test_the_learner_packs_as_vllm_does(learner, buffer_bytes) -> None:
    publish(learner)
    manifest = learner._held[1, 1].manifest
    assert update_info(manifest)["dtype_names"] == ["bfloat16"] * 5
    theirs = iter([(n, torch.from_numpy(np.asarray(t).view(np.uint16).copy())) for n, t in TENSORS.items()])
    for names in chunks(manifest, buffer_bytes):
        chunk = packed_tensor.pack_tensors(theirs, lambda item: item[1], buffer_bytes)
        assert chunk.names == names
        packed = np.asarray(pack([TENSORS[name] for name in names]))
        np.testing.assert_array_equal(packed, chunk.packed_tensor.numpy())
    assert packed_tensor.pack_tensors(theirs, lambda item: item[1], buffer_bytes) is None


@pytest.mark.parametrize("where", ["init_weight_transfer_engine", "start_weight_update", "update_weights"])
def test_an_engine_that_hangs_or_fails_must_be_restarted(learner, group, monkeypatch, where) -> None:
    address, let_go = publish(learner), threading.Event()
    engine = VllmEngine(group)
    monkeypatch.setattr(engine, where, lambda *_: let_go.wait(HANGS))
    with pytest.raises(EngineError, match=f"engine hangs: waited 5 s for .*{'comm' if 'init' in where else where}"):
        WeightReceiver(engine, deadline=5.0).load(address)
    let_go.set()

    def fail(*_: Any) -> None:
        raise RuntimeError("CUDA out of memory\nand more")

    monkeypatch.setattr(engine, where, fail)
    with pytest.raises(EngineError, match=r"the engine failed in .*: CUDA out of memory; restart it"):
        WeightReceiver(engine, deadline=20.0).load(address)
    assert group.closed.wait(HANGS)


def test_an_engine_that_takes_weights_while_the_learner_dies_must_be_restarted(learner, group, monkeypatch) -> None:
    address, begun, let_go = publish(learner), threading.Event(), threading.Event()
    engine = VllmEngine(group)
    monkeypatch.setattr(group, "broadcast", lambda _: (begun.set(), let_go.wait(HANGS)))
    monkeypatch.setattr(nccl, "CLOSE_SECONDS", 0.1)
    end = threading.Thread(target=lambda: (begun.wait(HANGS), learner.close()))
    end.start()
    with pytest.raises(EngineError, match=r"left in update_weights: the learner .* ended the connection"):
        WeightReceiver(engine, deadline=20.0).load(address)
    let_go.set()
    end.join(HANGS)
    assert not any(call.startswith("finish") for call in engine.calls)


def test_nccl_itself_without_a_gpu() -> None:
    """The library loads and mints what all ranks share; what needs a device is refused in one line."""
    pytest.importorskip("nvidia.nccl")
    import jax
    from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo

    communicator = NcclCommunicator(jax.local_devices()[0], 2, 5.0)
    info = NCCLWeightTransferInitInfo(**communicator.init_info(), packed=True)
    assert info.nccl_unique_id_bytes is not None
    assert any(info.nccl_unique_id_bytes)
    with pytest.raises(TransferError, match="CUDA"):
        communicator.join()
    communicator.close()
