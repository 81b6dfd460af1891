"""Expert parallelism: the same numbers on every mesh, and no expert where it does not belong."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.learner.eight_devices import EightDevices

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def devices() -> Iterator[EightDevices]:
    with contextlib.closing(EightDevices("experts_worker")) as started:
        yield started


def test_loss_gradient_and_load_do_not_depend_on_the_mesh(devices: EightDevices, tmp_path: Path) -> None:
    outcome = devices.ask("layouts", tmp_path)
    assert {math.prod(result["layout"].values()) for result in outcome} == {1, 2, 4, 8}
    for result in outcome:
        assert result["loss"] < 1e-5, result
        assert result["gradient"] < 1e-5, result
        assert result["metrics"] < 1e-5, result
        expert, fsdp, tensor = (result["layout"].get(axis, 1) for axis in ("expert", "fsdp", "tensor"))
        # layers, experts, hidden, width
        assert result["shard"] == [2, 8 // expert, 32 // fsdp, 40 // tensor], result
        if expert > 1:
            # Of all eight, and what fsdp and tensor leave of each.
            every = re.compile(r"(.*,)?8,((32|16),(40|20)|(40|20),(32|16))")
            whole = [shape for shape in result["gathered"] if every.fullmatch(shape)]
            assert not whole, f"experts of other devices are gathered: {result}"


def test_recorded_experts_are_those_of_the_same_tokens_on_every_mesh(devices: EightDevices, tmp_path: Path) -> None:
    outcome = devices.ask("replays", tmp_path)
    assert {math.prod(result["layout"].values()) for result in outcome} == {1, 2, 4}
    assert {result["remat"] for result in outcome} == {"none", "dots", "full"}
    for result in outcome:
        assert result["loss"] < 1e-5, result
        assert result["gradient"] < 1e-5, result
        assert result["metrics"] < 1e-5, result
        assert result["differing"] > 0.3, "they are none that a router would choose"
        assert result["without"] > 1e-3, result
        assert result["gradient without"] > 0.1, result


def test_both_exchanges_drop_nothing_whatever_the_load(devices: EightDevices, tmp_path: Path) -> None:
    outcome = devices.ask("exchanges", tmp_path)
    assert {(result["routes"], result["sends"]) for result in outcome} == {
        (routes, sends) for routes in ("even", "all to three", "one without") for sends in (False, True)
    }
    for result in outcome:
        assert result["error"] < 1e-5, result
