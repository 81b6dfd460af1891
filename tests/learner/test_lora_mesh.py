"""An adapter over several devices."""

import contextlib
from pathlib import Path

import pytest

from tests.learner.eight_devices import EightDevices

pytestmark = pytest.mark.slow


def test_an_adapter_is_cut_as_its_matrices_are_and_trains_alike_under_every_mesh(tmp_path: Path) -> None:
    """Dropout too: what is dropped does not depend on the mesh."""
    with contextlib.closing(EightDevices("adapter_worker")) as devices:
        outcome = devices.ask("layouts", tmp_path)
    assert len(outcome) == 5
    for result in outcome:
        assert result["loss"] < 1e-5, result
        assert result["gradient"] < 2e-5, result
    specs = outcome[-1]["specs"]  # data 2, fsdp 2, tensor 2; the rank is 3
    rows = ["fsdp", "expert"]
    assert specs["query"] == {"lora_a": [None, rows, None], "lora_b": [None, None, "tensor"]}
    assert specs["down"] == {"lora_a": [None, "tensor", None], "lora_b": [None, None, rows]}
