"""What a learner hands to an engine of its own process: the weights of a version, laid out as the engine reads them."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.config.model import LoraConfig
from rljax.config.schema import Config, ExplorerConfig, RowsConfig, SidecarConfig, TasksConfig, TasksetConfig
from rljax.learner.export import Exporter
from rljax.learner.learner import Learner
from rljax.models.files import load_directory
from rljax.models.hf_names import under_layer
from rljax.models.layered import LayeredTensors
from rljax.sampler import programs
from rljax.weights.memory import MemoryPublisher, SharedDevicePublisher
from rljax.weights.publisher import OrbaxPublisher, PublishError
from sidecar.channels.files import read_version
from sidecar.channels.versions import receive
from tests.learner.made_up import ARCHITECTURE, make_config, make_params
from tests.models.hf_models import FAMILIES, save, shared_model

FUSED_TIED_AND_EXPERTS = sorted({*FAMILIES, "qwen3_moe-untied", "phi3"})


DEMONSTRATIONS = TasksConfig(expert=RowsConfig(source="add_numbers", args={"digits": 1}))


def shared(**changes: Any) -> Config:
    tasks = TasksConfig(train={"sums": TasksetConfig(source="add_numbers")})
    return make_config(**{"mode": "both", "tasks": tasks, **changes})


def layered_of(learner: Learner, dtype: str = "fp32") -> LayeredTensors:
    found = learner.weights(dtype).by_layer()
    assert found is not None
    return found


def pointers(tree: Any) -> set[int]:
    return {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree)}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", FUSED_TIED_AND_EXPERTS)
def test_it_is_what_an_engine_makes_of_the_files_of_every_family(name: str, dtype: str, tmp_path: Path) -> None:
    architecture, params = load_directory(save(shared_model(name), tmp_path))
    params = jax.tree.map(jnp.asarray, params)
    exported = Exporter(shared(), architecture).tensors(params, params, dtype)
    found = exported.by_layer()
    assert found is not None
    by_name = {name: np.asarray(tensor) for name, tensor in exported.items()}
    assert list(found) == list(by_name)
    for name, tensor in by_name.items():
        np.testing.assert_array_equal(found[name], tensor)
        assert found.shapes[name] == tensor.shape
    numpy_dtype, device = {"fp32": "float32", "bf16": "bfloat16"}[dtype], jax.devices()[0]
    assert found.dtype == numpy_dtype
    placed = programs.place(by_name, architecture=architecture, dtype=numpy_dtype, device=device)
    handed = found.on(architecture, numpy_dtype, device)
    assert handed is found.params
    assert jax.tree.structure(handed) == jax.tree.structure(placed)
    for ours, theirs in zip(jax.tree.leaves(handed), jax.tree.leaves(placed), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.sharding == theirs.sharding, "a program compiled for the one serves the other"
    assert found.on(dataclasses.replace(architecture, rope_theta=7.0), numpy_dtype, device) is None
    assert found.on(architecture, "float16", device) is None


def test_training_does_not_touch_what_was_handed_over() -> None:
    learner = Learner(shared(), ARCHITECTURE, make_params())
    layered = layered_of(learner)
    before = jax.tree.map(np.array, layered.params)
    assert pointers(layered.params).isdisjoint(pointers(learner.state.params))
    learner.state = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)(learner.state)
    jax.block_until_ready(learner.state)
    jax.tree.map(np.testing.assert_array_equal, layered.params, before)


@pytest.mark.parametrize(
    "apart",
    [
        {"mode": "train"},
        {"launcher": "ray"},
        {"explorer": ExplorerConfig(own_process=True)},
        {"sidecar": SidecarConfig(engine="vllm")},
        {"model": {"lora": LoraConfig(rank=2)}},
        {"sidecar": SidecarConfig(dtype="bf16")},
        {"sync_dtype": "bf16"},
        {"sync_dtype": "bf16", "sync_deltas": 4},
        {"algorithm": {"pg_variant": "sft", "expert_data_ratio": 1.0}, "tasks": DEMONSTRATIONS},
    ],
)
def test_engines_that_are_elsewhere_or_compute_with_something_else_are_handed_nothing(
    apart: dict[str, Any],
) -> None:
    config = shared(**apart)
    exporter = Exporter(config, ARCHITECTURE)
    assert exporter.tensors(make_params(), {}, "fp32").by_layer() is None


def test_engines_of_another_device_are_sent_tensors_by_name(tmp_path: Path) -> None:
    publisher = MemoryPublisher(tmp_path)
    taken = publisher.take(Learner(shared(), ARCHITECTURE, make_params()).export("fp32"))
    assert type(taken) is dict
    assert publisher.spare == 1
    received = receive(publisher.publish(1, 1, taken, model="tiny", dtype="fp32"))
    assert all(tensor.checksum for tensor in received.manifest.tensors.values())


def test_where_the_device_has_no_room_for_all_layers_they_are_written_and_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = Learner(shared(), ARCHITECTURE, make_params()).weights("fp32")
    began: list[weakref.ref[jax.Array]] = []
    let_go: list[bool] = []

    def full() -> LayeredTensors:
        first = jnp.ones(3)
        began.append(weakref.ref(first))
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.")

    weights._by_layer = full
    weights.before = lambda layer: let_go.append(began[-1]() is None)
    publisher = SharedDevicePublisher(tmp_path)
    for version in (1, 2):
        taken = publisher.take(weights)
        assert all(isinstance(tensor, np.ndarray) for tensor in taken.values())
        found = receive(publisher.publish(version, 1, taken, model="tiny", dtype="fp32"))
        assert all(tensor.checksum for tensor in found.manifest.tensors.values()), "of the files"
    assert let_go
    assert all(let_go), "what had found room makes room for the layers that are written"
    assert [record.message for record in caplog.records] == [
        "the device has no room for a version beside the engine's: engines read the files"
    ]


@pytest.mark.parametrize("channel", [functools.partial(MemoryPublisher, adopted=True), SharedDevicePublisher])
def test_engines_receive_the_very_arrays_and_files_hold_the_same(channel: Any, tmp_path: Path) -> None:
    learner = Learner(shared(), ARCHITECTURE, make_params())
    expected = {name: np.asarray(tensor) for name, tensor in learner.export("fp32").items()}
    publisher = channel(tmp_path)
    taken = publisher.take(learner.export("fp32"))
    assert publisher.take(taken) is taken
    path = publisher.publish(1, 1, taken, model="tiny", dtype="fp32")
    received = receive(path)
    assert received.tensors is taken
    infos = received.manifest.tensors
    assert {n: (i.shape, i.dtype) for n, i in infos.items()} == {n: (t.shape, "float32") for n, t in expected.items()}
    if channel is SharedDevicePublisher:
        read = read_version(path).tensors
        assert list(read) == list(expected)
        for name, tensor in expected.items():
            np.testing.assert_array_equal(read[name], tensor)
        publisher.take(learner.export("fp32"))
        assert isinstance(receive(path).tensors, dict), "the device keeps none but the newest"
    with pytest.raises(PublishError, match="float32, to be published as bf16"):
        MemoryPublisher(tmp_path, adopted=True).publish(2, 1, taken, model="tiny", dtype="bf16")
    assert OrbaxPublisher(tmp_path).published() == ([(1, 1)] if channel is SharedDevicePublisher else [])


def test_the_programs_that_make_it_are_listed() -> None:
    """As those by name are, for a learner whose engines are elsewhere."""

    def listed(config: Config) -> tuple[Learner, Any, Any]:
        learner = Learner(config, ARCHITECTURE, make_params())
        top, layer = (p for p in learner.programs(8) if p.kind.startswith("export"))
        return learner, *(jax.eval_shape(program.function, *program.arguments) for program in (top, layer))

    learner, top, layer = listed(shared())
    expected = jax.tree.map(lambda x: x.shape, top | {"layers": (layer,) * ARCHITECTURE.num_layers})
    assert jax.tree.map(lambda x: x.shape, layered_of(learner).params) == expected
    learner, top, layer = listed(shared(mode="train"))
    by_name = {name: x.shape for name, x in (top | under_layer(0, layer)).items()}
    assert by_name.items() <= {name: x.shape for name, x in learner.export("fp32").items()}.items()
