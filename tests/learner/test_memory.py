"""What loading, resuming and publishing hold beside what stays, on eight fake devices (see `memory_worker`)."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.learner.eight_devices import EightDevices

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("memory")
    with contextlib.closing(EightDevices("memory_worker")) as devices:
        found: dict[str, Any] = devices.ask("all", directory)
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
