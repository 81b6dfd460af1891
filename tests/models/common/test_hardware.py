"""What programs are compiled for, and where they take it from."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

from rljax.models.common.hardware import ACTIVATIONS, CPU, Hardware

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("device", "platform", "capability"),
    [
        ({"platform": "gpu", "compute_capability": "9.0"}, "gpu", 9.0),
        ({"platform": "cuda", "compute_capability": "7.5"}, "gpu", 7.5),
        ({"platform": "rocm", "compute_capability": "gfx942"}, "gpu", 0.0),
        ({"platform": "tpu"}, "tpu", 0.0),
    ],
)
def test_a_device_says_what_it_is(device: Any, platform: str, capability: float) -> None:
    assert Hardware.of(SimpleNamespace(**device)) == Hardware(platform, None, capability)


def test_a_mesh_says_what_its_devices_are() -> None:
    mesh = Mesh(np.array(jax.devices("cpu")[:1]), ("data",))
    assert Hardware.of(mesh) == Hardware("cpu", mesh)
    assert not Hardware.of(mesh).shared
    assert hash(Hardware.of(mesh)) == hash(Hardware("cpu", mesh))


def test_axes_of_one_device_and_those_that_do_not_divide_cut_nothing() -> None:
    axes = ("data", "fsdp", "sequence", "expert", "tensor")
    hardware: Any = Hardware("tpu", AbstractMesh((2, 4, 1, 1, 2), axes))
    assert hardware.axes(ACTIVATIONS["heads"], (8, 64, 6, 16)) == (("data", "fsdp"), (), ("tensor",), ())
    assert hardware.axes(ACTIVATIONS["heads"], (1, 64, 3, 16)) == ((), (), (), ())
    assert hardware.parts(("data", "fsdp")) == 8
    assert CPU.axes(ACTIVATIONS["heads"], (8, 64, 6, 16)) == ((), (), (), ())


def test_no_program_asks_where_this_process_runs() -> None:
    files = [f for room in ("models", "learner", "sampler") for f in (ROOT / "rljax" / room).rglob("*.py")]
    assert len(files) > 40
    asking = [f.name for f in files if "default_backend" in f.read_text()]
    assert not asking, "it may be compiled for elsewhere: take `Hardware` along"


def test_a_gpu_is_told_to_repeat_itself_by_options_that_xla_knows() -> None:
    gpu = Hardware("gpu", capability=9.0)
    assert gpu.repeatable() == {"xla_gpu_exclude_nondeterministic_ops": True}
    assert gpu.repeatable(autotuned=False) == {"xla_gpu_deterministic_ops": True}
    assert Hardware("tpu").repeatable() is None
    assert CPU.repeatable() is None
    lowered = jax.jit(lambda x: x + 1).lower(1.0)
    for autotuned in (False, True):
        lowered.compile(compiler_options=gpu.repeatable(autotuned))
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        lowered.compile(compiler_options={"xla_gpu_no_such_thing": True})


def test_the_residual_stream_is_cut_along_time_where_that_is_asked_for() -> None:
    axes = ("data", "fsdp", "sequence", "expert", "tensor")
    hardware: Any = Hardware("tpu", AbstractMesh((1, 2, 2, 1, 4), axes))
    assert hardware.axes(ACTIVATIONS["residual"], (8, 64, 32)) == (("data", "fsdp")[1:], ("sequence", "tensor"), ())
    assert hardware.axes(ACTIVATIONS["residual"], (8, 60, 32))[1] == (), "no part of it: all of the row"


def test_the_residual_stream_is_gathered_before_a_product_and_cut_again_after_it() -> None:
    axes = ("data", "fsdp", "sequence", "expert", "tensor")
    mesh = Mesh(np.array(jax.devices("cpu")[:1]).reshape(1, 1, 1, 1, 1), axes)
    rows = ("data", "fsdp", "expert")
    hidden, residual = P(rows, "sequence", None), P(rows, ("sequence", "tensor"), None)

    def laid(function: Any) -> list[P]:
        found = jax.make_jaxpr(function)(jnp.zeros((2, 4, 8))).eqns
        return [equation.params["sharding"].spec for equation in found]

    whole, cut = Hardware("tpu", mesh), Hardware("tpu", mesh, sequence_parallel=True)
    assert (laid(whole.residual), laid(whole.gathered)) == ([hidden], [])
    assert (laid(cut.residual), laid(cut.gathered)) == ([residual], [hidden])
