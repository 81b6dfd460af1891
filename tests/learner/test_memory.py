"""What loading, resuming and publishing hold beside what stays, on eight fake devices (see `memory_worker`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import HANGS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("memory")
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    subprocess.run(
        [sys.executable, "-m", "tests.learner.memory_worker", str(directory)],
        env={**os.environ, "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}", "JAX_PLATFORMS": "cpu"},
        cwd=Path(__file__).parents[2],
        check=True,
        timeout=HANGS,
    )
    found: dict[str, Any] = json.loads((directory / "outcome.json").read_text())
    return found


def test_a_model_is_read_tensor_by_tensor_into_its_shards(outcome: dict[str, Any]) -> None:
    load, layer = outcome["load"], outcome["layer"]
    assert load["same"]
    assert set(load["cut"]) == {8}
    assert load["reads"] == 3 + 8 * 12, "each tensor once"
    assert load["host"] <= 2 * layer
    # two layers under way, in the bfloat16 of the files, an eighth each; vectors are not cut over all devices
    assert load["stays"] < load["device"] <= load["stays"] + 2 * layer / 8 + 4096


def test_a_resume_opens_no_weight_file_and_begins_with_nothing_on_the_devices(outcome: dict[str, Any]) -> None:
    resume = outcome["resume"]
    assert resume["same"]
    assert resume["as_asked"]
    assert len(resume["before"]) == 1
    assert resume["before"][0] < 4096, "nothing of the size of a model"


def test_a_version_is_gathered_and_written_layer_by_layer(outcome: dict[str, Any]) -> None:
    publish, layer = outcome["publish"], outcome["layer"]
    assert publish["same"]
    assert publish["names"]
    assert len(publish["groups"]) >= 8
    assert max(publish["groups"]) < 2 * layer
    assert publish["device"] <= 2 * layer / 8 + 4096, "of the version, a layer at a time is on the devices"
