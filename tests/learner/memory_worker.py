"""What `test_memory` asks eight fake CPU devices (see `eight_devices`)."""

from __future__ import annotations

import collections
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np

from rljax.learner.checkpoints import Checkpoints
from rljax.learner.learner import Learner
from rljax.models.common.architecture import Architecture
from rljax.models.files import save_directory, stored_tensors
from rljax.models.hf_names import from_hf, tensor_shapes
from rljax.pipeline.assemble.learner import build_learner
from rljax.pipeline.assemble.run import Model
from rljax.weights import gathering
from rljax.weights.gathering import gathered
from rljax.weights.publisher import OrbaxPublisher
from sidecar.channels.files import read_version
from tests.learner.eight_devices import answer
from tests.learner.made_up import make_config

# Eight layers, each an eighth of all but the small embedding; every matrix can be cut into eight.
ARCHITECTURE = Architecture(
    family="qwen2",
    vocab_size=64,
    hidden_size=64,
    intermediate_size=128,
    num_layers=8,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    tie_embeddings=False,
    attention_bias=True,
)
CONFIG = make_config(mesh={"fsdp": 4, "tensor": 2}, learner={"rows_per_microbatch": 4}, model={"dtype": "bf16"})
SHAPES = tensor_shapes(ARCHITECTURE)
LAYER_BYTES = 2 * sum(int(np.prod(shape)) for name, shape in SHAPES.items() if ".layers.0." in name)


def live_bytes() -> int:
    """The most that any device holds."""
    found: dict[jax.Device, dict[int, int]] = collections.defaultdict(dict)
    for array in jax.live_arrays():
        for shard in array.addressable_shards:  # an array of its own, of the same buffer
            found[shard.device][shard.data.unsafe_buffer_pointer()] = shard.data.nbytes
    return max((sum(buffers.values()) for buffers in found.values()), default=0)


@dataclass
class Seen:
    """What was alive whenever a tensor was read: bytes of those read before, and on the fullest device."""

    read: list[weakref.ref] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    on_device: list[int] = field(default_factory=list)


@dataclass
class Watched:
    """A tensor that notes what is alive when it is read."""

    tensor: Any
    seen: Seen

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.tensor.shape
        return shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = np.asarray(self.tensor, dtype)
        self.seen.read.append(weakref.ref(array))
        self.seen.held.append(sum(a.nbytes for ref in self.seen.read if (a := ref()) is not None))
        self.seen.on_device.append(live_bytes())
        return array


def same(found: Any, expected: Any) -> bool:
    """Whether two trees have the same bits."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def load(model: Model) -> dict[str, Any]:
    """Loads the model's files onto the mesh."""
    learner = Learner(CONFIG, ARCHITECTURE)
    stored = stored_tensors(model.directory)
    seen = Seen()
    learner.load({name: Watched(tensor, seen) for name, tensor in stored.items()})  # type: ignore[arg-type]
    state = learner.state
    cut = {name: x.sharding.shard_shape(x.shape) for name, x in state.params["layers"].items() if x.ndim == 3}
    return {
        "same": same(state.params, from_hf(stored, ARCHITECTURE)),
        "host": max(seen.held),
        "device": max(seen.on_device),
        "stays": sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state.params)),
        "cut": [int(np.prod(state.params["layers"][n].shape) / np.prod(shape)) for n, shape in cut.items()],
        "reads": len(seen.read),
    }


def resume(model: Model, checkpoints: Checkpoints) -> dict[str, Any]:
    """Saves a state on one device, and resumes on eight from a model without weights."""
    alone = Learner(make_config(model={"dtype": "bf16"}), ARCHITECTURE)
    alone.load(stored_tensors(model.directory))
    checkpoints.save(3, alone.state, {"lineage": 1})
    checkpoints.wait()
    expected = jax.tree.map(np.array, alone.state)
    for leaf in jax.tree.leaves(alone.state):
        if isinstance(leaf, jax.Array):
            leaf.delete()
    (model.directory / "model.safetensors").unlink()
    before, restore = [], checkpoints.restore

    def watched(step: int, abstract: Any) -> Any:
        before.append(live_bytes())
        return restore(step, abstract)

    checkpoints.restore = watched  # type: ignore[method-assign]
    learner = build_learner(CONFIG, model, checkpoints, 3)
    shardings = [x.sharding for x in jax.tree.leaves(learner.state) if isinstance(x, jax.Array)]
    abstract = [x.sharding for x in jax.tree.leaves(learner.abstract_state) if hasattr(x, "sharding")]
    return {"same": same(learner.state, expected), "before": before, "as_asked": shardings == abstract}


def publish(learner: Learner, directory: Path) -> dict[str, Any]:
    """Publishes in groups of a layer, and reads the version as an engine does."""
    gathering.GROUP_BYTES = LAYER_BYTES
    state, on_device, sizes = live_bytes(), [], []
    for arrays in gathered(learner.export("bf16"), "bf16"):
        on_device.append(live_bytes() - state)
        sizes.append(sum(array.nbytes for array in arrays.values()))
    path = OrbaxPublisher(directory / "weights").publish(3, 1, learner.export("bf16"), model="", dtype="bf16")
    found = read_version(path)
    whole = from_hf({name: np.asarray(x) for name, x in learner.export("fp32").items()}, ARCHITECTURE)
    return {
        "device": max(on_device),
        "groups": sizes,
        "names": list(found.tensors) == list(SHAPES),
        "same": same(from_hf(found.tensors, ARCHITECTURE), jax.tree.map(_rounded, whole)),
    }


def _rounded(array: np.ndarray) -> np.ndarray:
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


def all_three(directory: Path) -> dict[str, Any]:
    """Loads, resumes and publishes."""
    rng = np.random.default_rng(0)
    tensors: Mapping[str, np.ndarray] = {name: rng.standard_normal(s, np.float32) for name, s in SHAPES.items()}
    save_directory(directory / "model", ARCHITECTURE, tensors, None, "bf16")
    model = Model(directory / "model", ARCHITECTURE, None, ())
    learner = Learner(CONFIG, ARCHITECTURE, from_hf(tensors, ARCHITECTURE))
    outcome = {"layer": LAYER_BYTES, "publish": publish(learner, directory)}
    del learner
    outcome["load"] = load(model)
    outcome["resume"] = resume(model, Checkpoints(directory / "checkpoints", keep=1))
    return outcome


if __name__ == "__main__":
    answer({"all": all_three})
