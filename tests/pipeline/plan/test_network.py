"""What crosses the network between the machines of a learner, against numbers from hand."""

from __future__ import annotations

import pytest

from rljax.config.schema import MeshConfig
from rljax.pipeline.plan.traffic import Sent, traffic, version_traffic
from tests.pipeline.plan.shapes import THIRTY_TWO, estimated, target_named


def test_gpus_of_hosts_that_have_a_part_of_their_machines_meet_over_the_network() -> None:
    """Eight GPUs are of one machine, or of two that have four each: four adapters for all of them."""
    mesh = MeshConfig(fsdp=8)
    assert target_named("h100:2x8").link(mesh, "fsdp") == ("NVLink", 450e9)
    assert target_named("h100:2x8").link(mesh, "fsdp", hosts=2) == ("the network", 200e9)


HEAD = 151_936 * 5120
LAYERS = 2 * (32_762_123_264 - 2 * HEAD)  # bytes of Qwen3-32B in bf16, without embedding and head
WEIGHTS = LAYERS + 2 * HEAD


@pytest.mark.parametrize(
    ("target", "mesh", "hosts", "step", "version"),
    [
        # Weights twice and their gradients once come into each machine, but for the 64th of each that a GPU has.
        ("h100:8x8", {"fsdp": 64}, 8, 16 * 3 * WEIGHTS * 63 / 64, (WEIGHTS + 2 * HEAD) * 63 / 64),
        # Machines have all weights: their eight GPUs get the eighths of the gradients, twice, but for an eighth.
        ("h100:8x8", {"data": 8, "fsdp": 8}, 8, 16 * 2 * (WEIGHTS + 2 * HEAD) * 7 / 8, 0),
        # Quarters of the weights along `tensor`, within a machine: two GPUs of four groups of sixteen in each.
        ("h100:8x8", {"fsdp": 16, "tensor": 4}, 8, 16 * 3 * WEIGHTS * 15 / 16, (WEIGHTS + 2 * HEAD) * 15 / 16),
        ("v5p:4x4x4", {"fsdp": 64}, 16, 0, 0),
    ],
)
def test_what_comes_to_a_machine_over_its_network(
    target: str, mesh: dict[str, int], hosts: int, step: float, version: float
) -> None:
    """Of 1024 rows, 64 in each of 16 microbatches."""
    estimate, devices = estimated(THIRTY_TWO, mesh, 64, 2048), target_named(target)
    assert devices.hosts(64) == hosts

    def received(moved: list[Sent]) -> float:
        return sum(sent.size * devices.crossing(estimate.mesh, sent.axis) for sent in moved)

    assert estimate.steps()["microbatches"] == 16
    assert 16 * received(traffic(estimate)) == pytest.approx(step, rel=1e-3)
    assert received(version_traffic(estimate)) == pytest.approx(version, rel=1e-3)
