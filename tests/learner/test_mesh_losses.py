import contextlib
import itertools
from pathlib import Path

import pytest

from rljax.algorithms.registry import policy_losses
from tests.learner.eight_devices import EightDevices

pytestmark = pytest.mark.slow
AXES = ("data", "fsdp", "sequence", "tensor")


def test_every_loss_and_its_gradient_are_those_of_one_device(tmp_path: Path) -> None:
    """With a reference and a bonus of entropy in the loss, and a critic besides: over every pair of axes."""
    with contextlib.closing(EightDevices("losses_worker")) as devices:
        outcome = devices.ask("all", tmp_path)
    names = {result["name"] for result in outcome}
    assert names == {*policy_losses.names(), "critic"}
    for name in names:
        layouts = {frozenset(result["layout"]) for result in outcome if result["name"] == name}
        assert layouts == {frozenset(axes) for count in (0, 2) for axes in itertools.combinations(AXES, count)}
    for result in outcome:
        assert abs(result["value"]) > 1e-3, "a loss, of which a share can be wrong"
        assert result["loss"] < 1e-5, result
        assert result["gradient"] < 1e-5, result
