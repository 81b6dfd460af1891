"""What is refused once the model is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljax.config.schema import (
    Config,
    GeneratingConfig,
    LearnerConfig,
    MeshConfig,
    ModelConfig,
    SidecarConfig,
    TasksConfig,
    TasksetConfig,
    TinyConfig,
)
from rljax.config.validate import ConfigError
from rljax.models.tiny import make_tiny
from rljax.pipeline.assemble.run import open_model, probe_tokens, validation_fingerprint
from rljax.pipeline.run_dir import RunDir


def small_config(run_dir: Path, model: ModelConfig) -> Config:
    tasks = TasksConfig(train={"digits": TasksetConfig(source="reverse_digits")})
    return Config(run_dir=str(run_dir), tasks=tasks, model=model)


def test_prompt_and_response_longer_than_the_context_are_refused(tmp_path: Path) -> None:
    directory = make_tiny(ModelConfig(), 0, tmp_path / "model")
    fields = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**fields, "max_position_embeddings": 100}))
    policy = ModelConfig(path=str(directory), max_prompt_tokens=60, max_response_tokens=40)
    fits = small_config(tmp_path / "run", policy)
    run = RunDir.create(fits)
    model = open_model(fits, run)
    assert model.tokenizer.eos_token_id in model.stop_token_ids
    (directory / "config.json").write_text(json.dumps({**fields, "max_position_embeddings": 99}))
    with pytest.raises(ConfigError, match=r"max_prompt_tokens \+ .* = 100: more than the model's context of 99"):
        open_model(fits, run)


def test_a_tensor_axis_that_does_not_divide_the_heads_is_refused(tmp_path: Path) -> None:
    config = small_config(tmp_path / "run", ModelConfig())
    odd = replace(config, learner=LearnerConfig(mesh=MeshConfig(tensor=3)))
    with pytest.raises(ConfigError, match=r"learner.mesh.tensor=3: must divide the model's 4 heads; write 1, 2, 4"):
        open_model(odd, RunDir.create(odd))


def test_probe_is_the_same_everywhere_and_fits(tmp_path: Path) -> None:
    config = small_config(tmp_path / "run", ModelConfig(max_prompt_tokens=6, max_response_tokens=4))
    model = open_model(config, RunDir.create(config))
    tokens = probe_tokens(config, model.architecture)
    assert len(tokens) == 10
    assert (tokens == probe_tokens(config, model.architecture)).all()
    assert tokens.min() >= 0
    assert tokens.max() < model.architecture.vocab_size


def test_a_model_is_told_from_another_wherever_it_lies(tmp_path: Path) -> None:
    def fingerprint(name: str, policy: ModelConfig) -> str:
        config = small_config(tmp_path / name, ModelConfig(path=str(make_tiny(policy, 0, tmp_path / name / "model"))))
        return open_model(config, RunDir.create(config)).fingerprint

    one = fingerprint("one", ModelConfig())
    assert one == fingerprint("again", ModelConfig())
    wider = fingerprint("two", ModelConfig(tiny=TinyConfig(hidden_size=128)))
    spoken = fingerprint(
        "three", ModelConfig(tiny=TinyConfig(characters="0123456789abcdefghijklmnopqrstuvwxyz:>.<|_ "))
    )
    assert len({one, wider, spoken}) == 3


def test_a_validation_is_told_from_another_by_what_it_measures() -> None:
    def fingerprint(source: str = "data/held.jsonl", temperature: float = 0.0, **others: Any) -> str:
        held = {"held": TasksetConfig(source=source)}
        tasks = TasksConfig(train={"digits": TasksetConfig(source="reverse_digits")}, validation=held)
        sidecar = SidecarConfig(val_generating_args=GeneratingConfig(temperature=temperature))
        return validation_fingerprint(Config(tasks=tasks, sidecar=sidecar, **others))

    same = {fingerprint(), fingerprint("elsewhere/held.jsonl"), fingerprint(max_steps=3, mode="explore")}
    assert len(same) == 1
    others = {fingerprint("data/other.jsonl"), fingerprint(temperature=0.5), fingerprint(val_batch_size=7)}
    assert len(others | same) == 4
