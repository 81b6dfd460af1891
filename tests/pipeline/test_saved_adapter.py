"""Whether a checkpoint's adapter fits the run that goes on from it: real checkpoints, real models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rljax.config.model import LoraConfig, ModelConfig
from rljax.config.validate import ConfigError
from rljax.learner.checkpoints import Checkpoints
from rljax.models.files import load_architecture, stored_tensors
from rljax.models.tiny import tiny_architecture
from rljax.pipeline.assemble.learner import check_saved_adapter
from sidecar.fingerprint import fingerprint
from tests.learner.states import make_state
from tests.models.hf_models import random_model, save
from tests.pipeline.test_resume_learner import CONFIG

EVERY = "down_proj,gate_proj,k_proj,o_proj,q_proj,up_proj,v_proj"
TINY: Any = SimpleNamespace(architecture=tiny_architecture(CONFIG.model), directory=None)
ADAPTED = replace(CONFIG, model=ModelConfig(lora=LoraConfig(rank=4, alpha=8)))


def saved(tmp_path: Path, metadata: dict[str, Any]) -> Checkpoints:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    checkpoints.save(2, make_state(2), {"lineage": 1} | metadata)
    checkpoints.wait()
    return checkpoints


def model(tmp_path: Path, seed: int) -> Any:
    directory = save(random_model("llama-untied", seed), tmp_path / f"model-{seed}")
    return SimpleNamespace(directory=directory, architecture=load_architecture(directory))


def said(targets: str = EVERY, **others: Any) -> dict[str, Any]:
    """What a checkpoint of `ADAPTED` says of its adapter, but for the base."""
    return {"lora": {"rank": 4, "alpha": 8.0, "rslora": False, "targets": targets} | others}


def test_another_base_is_refused_in_one_line_that_names_it(tmp_path: Path) -> None:
    trained_on, other = model(tmp_path, 0), model(tmp_path, 1)
    metadata = said() | {"lora_base": fingerprint(stored_tensors(trained_on.directory))}
    checkpoints = saved(tmp_path, metadata)
    check_saved_adapter(ADAPTED, trained_on, checkpoints, 2)
    with pytest.raises(ConfigError, match=r"^model\.path=.*model-1 is not the one .* step 2 .*run_dir$") as told:
        check_saved_adapter(ADAPTED, other, checkpoints, 2)
    assert "\n" not in str(told.value)


def test_of_one_that_does_not_say_what_its_adapter_is_nobody_can_tell(tmp_path: Path) -> None:
    trained_on = model(tmp_path, 0)
    metadata = {"lora_scale": 2.0, "lora_base": fingerprint(stored_tensors(trained_on.directory))}
    with pytest.raises(ConfigError, match=r"an rljax of before 2026-11-29 wrote that checkpoint"):
        check_saved_adapter(ADAPTED, trained_on, saved(tmp_path, metadata), 2)


def test_all_weights_and_an_adapter_are_told_apart(tmp_path: Path) -> None:
    nothing: Any = None
    with pytest.raises(ConfigError, match=r"^model\.lora\.rank=4: the checkpoint of step 2 in .* is of all weights"):
        check_saved_adapter(ADAPTED, nothing, saved(tmp_path / "all", {}), 2)
    whole = "write model.lora.rank=4, model.lora.alpha=8.0, model.lora.rslora=False, model.lora.targets=.*, or choose"
    with pytest.raises(ConfigError, match=rf"^model\.lora\.rank=None: the checkpoint .* is of an adapter; {whole}"):
        check_saved_adapter(CONFIG, nothing, saved(tmp_path / "adapter", said() | {"lora_base": "x"}), 2)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"rank": 8}, "model.lora.rank=8: {where} has others; write model.lora.rank=4, or"),
        ({"alpha": 16.0}, "model.lora.alpha=16.0: {where} has others; write model.lora.alpha=8.0, or"),
        ({"rslora": True}, "model.lora.rslora=True: {where} has others; write model.lora.rslora=False, or"),
        (
            {"targets": ("q_proj", "v_proj")},
            f"model.lora.targets=q_proj,v_proj: {{where}} has others; write model.lora.targets={EVERY}, or",
        ),
        (
            {"rank": 2, "alpha": 4.0},
            "model.lora.rank=2, model.lora.alpha=4.0: {where} has others; write model.lora.rank=4, "
            "model.lora.alpha=8.0, or",
        ),
    ],
)
def test_another_adapter_is_refused_by_its_keys(tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    """The last counts as much as the checkpoint's (4/2 = 8/4), and is another all the same."""
    checkpoints = saved(tmp_path, said() | {"lora_base": "x"})
    other = replace(ADAPTED, model=replace(ADAPTED.model, lora=replace(ADAPTED.model.lora, **changes)))
    with pytest.raises(ConfigError) as told:
        check_saved_adapter(other, TINY, checkpoints, 2)
    where = f"the adapter of the checkpoint of step 2 in {checkpoints.directory}"
    assert str(told.value) == f"{line.format(where=where)} choose another run_dir"


def test_targets_may_be_written_in_another_way(tmp_path: Path) -> None:
    trained_on = model(tmp_path, 0)
    metadata = said() | {"lora_base": fingerprint(stored_tensors(trained_on.directory))}
    named = replace(ADAPTED.model.lora, targets=tuple(reversed(EVERY.split(","))))
    check_saved_adapter(replace(ADAPTED, model=ModelConfig(lora=named)), trained_on, saved(tmp_path, metadata), 2)


def test_a_checkpoint_of_all_weights_opens_no_model(tmp_path: Path) -> None:
    nothing: Any = None
    check_saved_adapter(CONFIG, nothing, saved(tmp_path, {}), 2)
