"""Engines compute where the config says."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from rljax.config.schema import Config, SidecarConfig, TasksConfig, TasksetConfig
from rljax.config.validate import ConfigError
from rljax.pipeline.assemble.devices import engine_devices, engine_gpus
from tests.waiting import HANGS

ROOT = Path(__file__).parents[3]
ON_FOUR = """
import json
from rljax.config.schema import Config, LearnerConfig, SidecarConfig, TasksConfig, TasksetConfig
from rljax.pipeline.assemble.devices import engine_devices

def placed(sidecar, learner="auto", mode="both"):
    tasks = TasksConfig(train={"t": TasksetConfig(source="reverse_digits")})
    parts = {"learner": LearnerConfig(devices=learner), "sidecar": SidecarConfig(devices=sidecar)}
    return [device.id for device in engine_devices(Config(mode=mode, tasks=tasks, **parts))]

print(json.dumps([placed("auto"), placed("cpu:1-2"), placed("auto", "cpu:3"), placed("auto", mode="explore")]))
"""


def config(devices: str) -> Config:
    tasks = TasksConfig(train={"t": TasksetConfig(source="reverse_digits")})
    return Config(tasks=tasks, sidecar=SidecarConfig(devices=devices))


def test_engines_take_what_is_named_or_what_the_learner_leaves() -> None:
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    ran = subprocess.run(
        [sys.executable, "-c", ON_FOUR],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [[1, 2, 3], [1, 2], [0, 1, 2], [0, 1, 2, 3]]


def test_a_device_that_is_not_there_is_refused() -> None:
    assert engine_devices(config("auto")) == jax.devices()[:1]
    with pytest.raises(ConfigError, match=r"sidecar\.devices='tpu': this machine has no tpu"):
        engine_devices(config("tpu"))
    with pytest.raises(ConfigError, match=r"sidecar\.devices='cpu:7': this machine has 1"):
        engine_devices(dataclasses.replace(config("cpu:7"), mode="explore"))


def test_an_accelerator_is_not_shared_with_the_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gpu:
        platform = "gpu"

        def __repr__(self) -> str:
            return "gpu:0"

    only = [Gpu()]
    monkeypatch.setattr(jax, "devices", lambda platform=None: only)
    with pytest.raises(ConfigError, match=r"sidecar\.devices='auto': the learner has gpu:0; .* of its own, or cpu"):
        engine_devices(config("auto"))


def engines_on(devices: str, **sidecar: int) -> list[list[str]]:
    asked = dataclasses.replace(config(devices).sidecar, engine="vllm_async", **sidecar)
    whole = dataclasses.replace(config(devices), sidecar=asked)
    return [engine_gpus(whole, index) for index in range(asked.num_engines)]


def test_engines_in_child_processes_see_their_own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert engines_on("auto", num_engines=2) == [["4"], ["5"]]
    assert engines_on("gpu:1-2", num_engines=2) == [["5"], ["6"]]
    assert engines_on("gpu", num_engines=2, tensor_parallel_size=2) == [["4", "5"], ["6", "7"]]


def test_gpus_that_are_not_there_or_the_learners_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match=r"sidecar\.devices='gpu:0': this machine has 0 GPUs"):
        engines_on("gpu:0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    with pytest.raises(ConfigError, match=r"sidecar\.devices='gpu:1-2': this machine has 2 GPUs, counted from 0"):
        engines_on("gpu:1-2")

    class Gpu:
        platform, id = "gpu", 0

    monkeypatch.setattr(jax, "devices", lambda platform=None: [Gpu()])
    assert engines_on("auto") == [["5"]]
    with pytest.raises(ConfigError, match=r"the learner has \[0\]; an engine needs a GPU of its own"):
        engines_on("gpu:0")
    with pytest.raises(ConfigError, match=r"needs 2 GPUs, and the learner leaves 1 of 2"):
        engines_on("auto", num_engines=2)
