"""Targets of a plan: how many devices and in which shape, and what they are called."""

from __future__ import annotations

import os
import re
from types import SimpleNamespace

import jax
import pytest
from jax.experimental import topologies

from rljax.config.schema import Config, PlanConfig
from rljax.config.validate import ConfigError
from rljax.pipeline.plan.targets import GIB, devices_of
from tests.pipeline.plan.shapes import Device, target_named


def test_so_many_tpus_are_a_torus(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {name: target_named(name).shape for name in ("v5e:8", "v5e", "v6e:16", "v5p:4", "v5p:2x2x4", "v4:16")}
    flat = {"v5e:8": (2, 4), "v5e": (1, 1), "v6e:16": (4, 4)}
    assert shapes == flat | {"v5p:4": (2, 2, 1), "v5p:2x2x4": (2, 2, 4), "v4:16": (2, 2, 4)}
    assert target_named("v4:512").shape == (8, 8, 8), "and not 4x4x32, which has as many"
    here = [Device("tpu", "TPU v5 lite", 15.75, (x, y, 0)) for y in range(4) for x in range(2)]
    monkeypatch.setattr(jax, "devices", lambda *_: here)
    assert target_named("here").shape == (2, 4, 1)


@pytest.mark.parametrize(("name", "devices"), [("v5e:4x4", 16), ("v5p:2x2x1", 4), ("h100:8", 8), ("h100:8x8", 64)])
def test_targets_have_as_many_devices_as_their_shape(name: str, devices: int) -> None:
    assert target_named(name).devices == devices


def test_the_cuda_plug_in_is_told_that_it_only_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, it refuses to load where there is no driver."""
    monkeypatch.setenv("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "")  # so that it is as it was in the end
    monkeypatch.delenv("JAX_SKIP_CUDA_CONSTRAINTS_CHECK")

    def described(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(devices=[os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"]])

    monkeypatch.setattr(topologies, "get_topology_desc", described)
    assert devices_of("h100:8") == ["1"]


@pytest.mark.parametrize("name", ["h300:8", "v5e:", "v5e:4x", "here:8", "h100:0"])
def test_other_targets_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^plan\.target='.*': write here, or a chip and how many"):
        Config(mode="plan", plan=PlanConfig(target=name))


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("v5e:3x5", "v5e:4x4, v5e:2x4, v5e:4x8"),  # 15 chips: there are 16, 8 and 32
        ("v5e:4x2", "v5e:2x4, v5e:2x2, v5e:4x4"),
        ("v6e:12", "v6e:4x4, v6e:2x4, v6e:4x8"),
        ("v5p:2x2", "v5p:2x2x1, v5p:2x2x2, v5p:2x2x4"),
        # 96 chips: 128 are a third more, 64 a third less
        ("v4:4x4x6", "v4:4x4x8, v4:4x4x4, v4:4x4x12"),
        ("v5p", "v5p:2x2x1, v5p:2x2x2, v5p:2x2x4"),
    ],
)
def test_a_slice_that_nobody_has_is_refused_with_those_near_it(name: str, near: str) -> None:
    said = re.escape(f"plan.target='{name}': there is no such slice of TPUs; near it are {near}")
    with pytest.raises(ConfigError, match=f"^{said}$"):
        Config(mode="plan", plan=PlanConfig(target=name))


@pytest.mark.parametrize(("name", "devices"), [("v4:2x2x1", 4), ("v4:4x4x4", 64), ("v6e:2x4", 8), ("v5p:128", 128)])
def test_slices_of_every_chip_are_planned(name: str, devices: int) -> None:
    """Of a v4 JAX has a device a chip, though it has two cores."""
    assert target_named(name).devices == devices


@pytest.mark.parametrize(
    ("platform", "kind", "gib", "name", "whole"),
    [
        ("tpu", "TPU v5 lite", 15.75, "v5e", 15.75),
        ("tpu", "TPU v6 lite", 31.25, "v6e", 31.25),
        ("gpu", "NVIDIA H100 80GB HBM3", 59.3, "h100", 79.1),
        ("gpu", "NVIDIA A100-SXM4-40GB", 29.6, "a100-40", 39.5),
        ("gpu", "NVIDIA GeForce RTX 4090", 17.7, None, 23.6),
        ("cpu", "cpu", None, None, None),
    ],
)
def test_the_chip_that_is_here_is_known_by_jax_name_of_it(
    monkeypatch: pytest.MonkeyPatch, platform: str, kind: str, gib: float | None, name: str | None, whole: float | None
) -> None:
    monkeypatch.delenv("XLA_CLIENT_MEM_FRACTION", raising=False)
    monkeypatch.setattr(jax, "devices", lambda *_: [Device(platform, kind, gib)])
    target = target_named("here")
    assert (target.kind, target.chip.name if target.chip else None) == (kind, name)
    if whole is not None:
        assert target.memory / GIB == pytest.approx(whole, rel=0.01)
        assert target.memory * target.share == pytest.approx(gib * GIB if gib else None)
