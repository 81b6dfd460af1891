from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from rljax.config.schema import MeshConfig
from rljax.config.validate import ConfigError
from rljax.learner.sharding import AXES, make_mesh, parameter_rules, parameter_shardings, select_devices
from rljax.models.common.architecture import Architecture
from rljax.models.common.hardware import ACTIVATIONS, spec
from rljax.models.transformer import abstract_params


def mesh_of(**sizes: int) -> AbstractMesh:
    return AbstractMesh(tuple(sizes.get(axis, 1) for axis in AXES), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def test_a_dimension_that_does_not_divide_is_replicated() -> None:
    mesh = mesh_of(fsdp=4, tensor=8)
    assert spec((None, "fsdp", "tensor"), (2, 64, 64), mesh) == P(None, "fsdp", "tensor")
    assert spec((None, "fsdp", "tensor"), (2, 64, 12), mesh) == P(None, "fsdp", None)
    assert spec((("data", "fsdp"), None), (6, 3), mesh_of(data=2, fsdp=2)) == P(None, None)
    assert spec((("data", "fsdp"), None), (8, 3), mesh_of(data=2, fsdp=2)) == P(("data", "fsdp"), None)


def test_a_rule_may_not_use_an_axis_twice_nor_have_another_rank() -> None:
    with pytest.raises(ValueError, match="twice"):
        spec(("fsdp", ("data", "fsdp")), (8, 8), mesh_of(fsdp=2))
    with pytest.raises(ValueError, match="2 dimensions"):
        spec(("fsdp", None), (8, 8, 8), mesh_of(fsdp=2))


def test_no_rule_collides() -> None:
    for rule in [*parameter_rules().values(), *ACTIVATIONS.values()]:
        spec(rule, (8,) * len(rule), mesh_of(data=2, fsdp=2, tensor=2))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tie", [False, True])
def test_every_parameter_of_every_family_has_a_rule(family: str, tie: bool) -> None:
    architecture = Architecture(
        family,
        vocab_size=16,
        hidden_size=8,
        intermediate_size=16,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        tie_embeddings=tie,
        attention_bias=family != "qwen3",
        qk_norm=family == "qwen3",
    )
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    parameter_shardings(abstract_params(architecture), mesh)


def test_a_parameter_without_a_rule_is_named() -> None:
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    with pytest.raises(ValueError, match="'novelty' has no sharding rule"):
        parameter_shardings({"layers": {"novelty": jax.ShapeDtypeStruct((2, 2), "float32")}}, mesh)


def test_the_mesh_has_five_auto_axes() -> None:
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    assert mesh.axis_names == ("data", "fsdp", "sequence", "expert", "tensor")
    assert set(mesh.axis_types) == {AxisType.Auto}
    with pytest.raises(ValueError, match="needs 2 devices, got 1"):
        make_mesh(MeshConfig(fsdp=2), jax.devices()[:1])


def test_devices_that_are_not_there_are_refused() -> None:
    assert select_devices("auto", 1) == jax.devices()[:1]
    assert select_devices("cpu:0", 1) == jax.devices("cpu")[:1]
    with pytest.raises(ConfigError, match=r"learner.mesh: multiplies to 999 devices, learner.devices='cpu'"):
        select_devices("cpu", 999)
    with pytest.raises(ConfigError, match=r"learner.devices='tpu': this machine has no tpu"):
        select_devices("tpu", 1)
    with pytest.raises(ConfigError, match=r"learner.devices='cpu:0,63': this machine has 1 "):
        select_devices("cpu:0,63", 1)


def test_a_platform_that_is_not_there_is_told_of_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of CUDA JAX asserts without a word that it is there."""

    def nothing(platform: str = "") -> NoReturn:
        raise AssertionError

    monkeypatch.setattr(jax, "devices", nothing)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    with pytest.raises(ConfigError) as refused:
        select_devices("cpu", 4)
    line = "JAX_PLATFORMS=cuda: JAX does not start with it on this machine; unset it, or name what is here"
    assert str(refused.value) == line


@dataclass(frozen=True)
class Chip:
    """What says where a device stands, of one that is not here."""

    id: int
    platform: str
    coords: tuple[int, int, int] = (0, 0, 0)
    process_index: int = 0
    device_kind: str = "TPU v4"
    core_on_chip: int = 0


def torus(*sides: int, kind: str = "TPU v4") -> list[Any]:
    """Chips in an order that has nothing to do with where they stand."""
    places = [(int(x), int(y), int(z)) for x, y, z in np.ndindex(sides)]
    chips = [Chip(i, "tpu", place, device_kind=kind) for i, place in enumerate(places)]
    return [chips[i] for i in np.random.default_rng(0).permutation(len(chips))]


def spread(group: Any) -> int:
    """Chips in the smallest box around a group."""
    places = np.array([chip.coords for chip in group])
    return int(np.prod(places.max(axis=0) - places.min(axis=0) + 1))


@pytest.mark.parametrize(
    ("kind", "sides", "sizes"),
    [
        ("TPU v4", (4, 4, 1), {"fsdp": 4, "tensor": 4}),
        ("TPU v4", (4, 4, 1), {"fsdp": 2, "sequence": 2, "tensor": 4}),  # sides have to be split
        ("TPU v4", (2, 2, 4), {"fsdp": 2, "tensor": 8}),
        ("TPU v4", (4, 4, 4), {"data": 4, "fsdp": 4, "tensor": 4}),
        ("TPU v5 lite", (2, 4, 1), {"fsdp": 2, "tensor": 4}),
        ("TPU v5", (2, 2, 1), {"data": 2, "tensor": 2}),
    ],
)
def test_chips_along_tensor_stand_together_on_the_torus(
    kind: str, sides: tuple[int, ...], sizes: dict[str, int]
) -> None:
    chips = torus(*sides, kind=kind)
    mesh = make_mesh(MeshConfig(**sizes), chips)
    assert set(mesh.devices.flat) == set(chips)
    for group in mesh.devices.reshape(-1, sizes["tensor"]):
        assert spread(group) == sizes["tensor"]


@pytest.mark.parametrize("taken", [[0, 1, 4], [0, 5, 10, 15], [0, 1, 2, 3, 4, 5, 6]])
def test_some_chips_of_a_slice_are_taken_in_their_order_and_it_is_said(
    taken: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    chips = sorted(torus(4, 4, 1), key=lambda chip: chip.id)
    some = [chips[i] for i in taken]
    assert list(make_mesh(MeshConfig(tensor=len(some)), some).devices.flat) == some
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith(f"learner.mesh: its {len(some)} chips are no part of the torus")


def test_tensor_stays_within_a_host_of_gpus() -> None:
    gpus: list[Any] = [Chip(i, "gpu", process_index=i % 2, device_kind="NVIDIA H100") for i in range(16)]
    mesh = make_mesh(MeshConfig(fsdp=2, tensor=8), gpus)
    assert [{gpu.process_index for gpu in row} for row in mesh.devices.reshape(2, 8)] == [{0}, {1}]
