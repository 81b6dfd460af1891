"""Which models can teach a policy, and which are refused, by one line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from rljax.config.schema import (
    AlgorithmConfig,
    Config,
    DistillConfig,
    LoraConfig,
    MeshConfig,
    ModelConfig,
    TasksConfig,
    TasksetConfig,
    TeacherConfig,
    TinyConfig,
)
from rljax.config.validate import ConfigError
from rljax.models.tiny import make_tiny
from rljax.pipeline.assemble.run import Model, open_model_at
from rljax.pipeline.assemble.teachers import open_teachers

DIGITS = "0123456789"


def tiny(**keys: Any) -> ModelConfig:
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_layers": 1, "head_dim": 8, "characters": DIGITS, **keys}
    return ModelConfig(path="tiny", max_prompt_tokens=6, max_response_tokens=3, tiny=TinyConfig(**shape))


def student(folder: Path, teacher: str) -> tuple[Config, Model]:
    config = Config(
        model=tiny(),
        algorithm=AlgorithmConfig(
            adv_estimator="none", distill=DistillConfig(teachers={"big": TeacherConfig(path=teacher)})
        ),
        tasks=TasksConfig(train={"digits": TasksetConfig(source="reverse_digits", rewards=())}),
    )
    return config, open_model_at(config, folder / "student")


def refusal(folder: Path, teacher: Path | str) -> str:
    with pytest.raises(ConfigError) as caught:
        open_teachers(*student(folder, str(teacher)))
    said = str(caught.value)
    assert said.startswith("algorithm.distill.teachers.big: ")
    assert "\n" not in said
    return said.removeprefix("algorithm.distill.teachers.big: ")


def test_another_architecture_with_the_same_tokens_teaches(tmp_path: Path) -> None:
    directory = make_tiny(tiny(family="llama", hidden_size=24, num_layers=2), 5, tmp_path / "teacher")
    found = open_teachers(*student(tmp_path, str(directory)))["big"]
    assert (found.architecture.family, found.architecture.num_layers) == ("llama", 2)
    assert found.tensors is not None
    assert "model.layers.1.mlp.up_proj.weight" in found.tensors


def test_a_teacher_need_not_take_the_adapter_of_its_student(tmp_path: Path) -> None:
    """It is not trained: a rank, and names of matrices, are said of the student alone."""
    directory = make_tiny(tiny(hidden_size=8), 5, tmp_path / "teacher")
    config, model = student(tmp_path, str(directory))
    lora = LoraConfig(rank=12, targets=("gate_proj",))
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, lora=lora))
    assert open_teachers(config, model)["big"].architecture.hidden_size == 8


def test_a_teacher_without_experts_teaches_a_student_that_has_some(tmp_path: Path) -> None:
    """The losses of routers, and devices by expert, are the student's: a teacher's rows are cut over these too."""
    directory = make_tiny(tiny(), 5, tmp_path / "teacher")
    config, model = student(tmp_path, str(directory))
    algorithm = dataclasses.replace(config.algorithm, router_aux_loss_coef=0.01)
    learner = dataclasses.replace(config.learner, mesh=MeshConfig(expert=2))
    config = dataclasses.replace(config, algorithm=algorithm, learner=learner)
    assert open_teachers(config, model)["big"].architecture.experts is None


def test_a_teacher_has_the_context_of_the_run(tmp_path: Path) -> None:
    """By it a longrope scaling chooses its factors, as the student's does."""
    directory = make_tiny(tiny(), 5, tmp_path / "teacher")
    assert open_teachers(*student(tmp_path, str(directory)))["big"].architecture.context == 6 + 3


def test_a_model_that_knows_more_tokens_teaches(tmp_path: Path) -> None:
    """Those of the policy have the same numbers: characters are numbered in their order."""
    directory = make_tiny(tiny(characters=DIGITS + "ab"), 5, tmp_path / "teacher")
    assert set(open_teachers(*student(tmp_path, str(directory)))) == {"big"}


def test_another_vocabulary_is_refused_with_the_first_token_that_differs(tmp_path: Path) -> None:
    swapped = make_tiny(tiny(characters="1023456789"), 5, tmp_path / "swapped")
    assert refusal(tmp_path, swapped).startswith("2 tokens of the policy are not the teacher's, the first is ")
    fewer = make_tiny(tiny(characters="012345678"), 5, tmp_path / "fewer")
    said = refusal(tmp_path, fewer)
    assert said.startswith("1 tokens of the policy are not the teacher's, the first is ")
    assert said.endswith(", '9', which is not there; write a teacher with the policy's vocabulary")


def test_a_head_of_fewer_rows_is_refused(tmp_path: Path) -> None:
    """As of a policy whose embedding is padded further than its teacher's."""
    directory = make_tiny(tiny(), 5, tmp_path / "teacher")
    config, model = student(tmp_path, str(directory))
    padded = dataclasses.replace(model.architecture, vocab_size=model.architecture.vocab_size + 8)
    with pytest.raises(ConfigError, match=r"^algorithm.distill.teachers.big: it gives a probability to \d+ tokens, an"):
        open_teachers(config, dataclasses.replace(model, architecture=padded))


def test_a_context_that_is_too_short_and_a_directory_that_is_none_are_refused(tmp_path: Path) -> None:
    directory = make_tiny(tiny(), 5, tmp_path / "teacher")
    fields = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(fields | {"max_position_embeddings": 8}))
    assert "= 9: more than the model's context of 8 tokens; lower it" in refusal(tmp_path, directory)
    (tmp_path / "empty").mkdir()
    assert "is no Hugging Face model directory: it has no config.json" in refusal(tmp_path, tmp_path / "empty")
    (directory / "config.json").write_text(json.dumps(fields))
    (directory / "model.safetensors").unlink()
    assert "only safetensors weights are read" in refusal(tmp_path, directory)
