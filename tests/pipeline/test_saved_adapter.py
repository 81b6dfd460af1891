"""Whether a checkpoint's adapter fits the run that goes on from it: real checkpoints, real models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rljax.config.model import LoraConfig, ModelConfig
from rljax.learner.checkpoints import CheckpointError, Checkpoints
from rljax.models.files import stored_tensors
from rljax.pipeline.assemble.learner import check_saved_adapter
from sidecar.fingerprint import fingerprint
from tests.learner.states import make_state
from tests.models.hf_models import random_model, save
from tests.pipeline.test_resume_learner import CONFIG

ADAPTED = replace(CONFIG, model=ModelConfig(lora=LoraConfig(rank=4, alpha=8)))


def saved(tmp_path: Path, metadata: dict[str, Any]) -> Checkpoints:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    checkpoints.save(2, make_state(2), {"lineage": 1} | metadata)
    checkpoints.wait()
    return checkpoints


def model(tmp_path: Path, seed: int) -> Any:
    return SimpleNamespace(directory=save(random_model("llama-untied", seed), tmp_path / f"model-{seed}"))


def test_another_base_is_refused_in_one_line_that_names_it(tmp_path: Path) -> None:
    trained_on, other = model(tmp_path, 0), model(tmp_path, 1)
    metadata = {"lora_scale": 2.0, "lora_base": fingerprint(stored_tensors(trained_on.directory))}
    checkpoints = saved(tmp_path, metadata)
    check_saved_adapter(ADAPTED, trained_on, checkpoints, 2)
    with pytest.raises(CheckpointError, match=r"^model\.path=.*model-1 is not the one .* step 2 .*run_dir$") as told:
        check_saved_adapter(ADAPTED, other, checkpoints, 2)
    assert "\n" not in str(told.value)


def test_all_weights_and_an_adapter_are_told_apart(tmp_path: Path) -> None:
    nothing: Any = None
    with pytest.raises(
        CheckpointError, match=r"^model\.lora\.rank=4: the checkpoint of step 2 in .* is of all weights"
    ):
        check_saved_adapter(ADAPTED, nothing, saved(tmp_path / "all", {}), 2)
    with pytest.raises(CheckpointError, match=r"^model\.lora\.rank=None: the checkpoint .* is of an adapter; write"):
        check_saved_adapter(CONFIG, nothing, saved(tmp_path / "adapter", {"lora_scale": 2.0, "lora_base": "x"}), 2)


def test_another_scale_is_refused(tmp_path: Path) -> None:
    nothing: Any = None
    with pytest.raises(CheckpointError, match=r"counts 2 times, and that of the checkpoint of step 2 .* 4 times"):
        check_saved_adapter(ADAPTED, nothing, saved(tmp_path, {"lora_scale": 4.0}), 2)


def test_a_checkpoint_of_all_weights_opens_no_model(tmp_path: Path) -> None:
    nothing: Any = None
    check_saved_adapter(CONFIG, nothing, saved(tmp_path, {}), 2)
