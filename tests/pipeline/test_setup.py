"""What is refused once the model is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rljax.config import Config, ModelConfig, TasksConfig, TasksetConfig
from rljax.config_checks import ConfigError
from rljax.models.tiny import make_tiny
from rljax.pipeline.run_dir import RunDir
from rljax.pipeline.setup import open_model, probe_tokens


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


def test_probe_is_the_same_everywhere_and_fits(tmp_path: Path) -> None:
    config = small_config(tmp_path / "run", ModelConfig(max_prompt_tokens=6, max_response_tokens=4))
    model = open_model(config, RunDir.create(config))
    tokens = probe_tokens(config, model.architecture)
    assert len(tokens) == 10
    assert (tokens == probe_tokens(config, model.architecture)).all()
    assert tokens.min() >= 0
    assert tokens.max() < model.architecture.vocab_size
