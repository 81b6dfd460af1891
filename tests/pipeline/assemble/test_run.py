"""What is refused once the model is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rljax.config.environments import EnvironmentConfig, ValEnvManagerConfig
from rljax.config.schema import (
    AlgorithmConfig,
    Config,
    GeneratingConfig,
    JudgeConfig,
    LearnerConfig,
    MeshConfig,
    ModelConfig,
    RolloutConfig,
    SidecarConfig,
    TasksConfig,
    TasksetConfig,
    TinyConfig,
)
from rljax.config.validate import ConfigError
from rljax.learner.scoring import probe_inputs
from rljax.models.tiny import make_tiny
from rljax.pipeline.assemble.run import Model, open_model, probe_routes, probe_tokens, validation_fingerprint
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


def test_a_model_knows_the_context_of_its_run_and_is_the_same_one_in_another(tmp_path: Path) -> None:
    """The context chooses the factors of a longrope scaling: in vLLM, and so in what is trained."""

    def opened(response: int) -> Model:
        policy = ModelConfig(path=str(directory), max_prompt_tokens=60, max_response_tokens=response)
        config = small_config(tmp_path / str(response), policy)
        return open_model(config, RunDir.create(config))

    directory = make_tiny(ModelConfig(), 0, tmp_path / "model")
    short, long = opened(40), opened(80)
    assert (short.architecture.context, long.architecture.context) == (100, 140)
    assert short.fingerprint == long.fingerprint


def test_a_tensor_axis_that_does_not_divide_the_heads_is_refused(tmp_path: Path) -> None:
    config = small_config(tmp_path / "run", ModelConfig())
    odd = replace(config, learner=LearnerConfig(mesh=MeshConfig(tensor=3)))
    with pytest.raises(ConfigError, match=r"learner.mesh.tensor=3: must divide the model's 4 heads; write 1, 2, 4"):
        open_model(odd, RunDir.create(odd))


@pytest.mark.parametrize(
    ("family", "keys", "said"),
    [
        (
            "qwen3_moe",
            {"mesh": {"expert": 3}},
            "learner.mesh.expert=3: must divide the model's 8 experts; write 1, 2, 4",
        ),
        ("qwen3", {"mesh": {"expert": 2}}, "learner.mesh.expert=2: the model has no experts; leave it out"),
        ("qwen3", {"router_aux_loss_coef": 0.1}, "algorithm.router_aux_loss_coef=0.1: the model has no experts; leave"),
        ("qwen3", {"router_z_loss_coef": 0.1}, "algorithm.router_z_loss_coef=0.1: the model has no experts; leave it"),
        ("qwen3", {"router_replay": "record"}, "algorithm.router_replay=record: the model has no experts; leave it"),
    ],
)
def test_what_is_of_experts_is_refused_where_they_are_not(
    family: str, keys: dict[str, Any], said: str, tmp_path: Path
) -> None:
    config = small_config(tmp_path / "run", ModelConfig(tiny=TinyConfig(family=family)))
    mesh = MeshConfig(**keys.pop("mesh", {}))
    learner = LearnerConfig(mesh=mesh, rows_per_microbatch=mesh.expert)
    odd = replace(config, learner=learner, algorithm=AlgorithmConfig(**keys))
    with pytest.raises(ConfigError, match=rf"^{said}"):
        open_model(odd, RunDir.create(odd))


def test_probe_is_the_same_everywhere_and_fits(tmp_path: Path) -> None:
    config = small_config(tmp_path / "run", ModelConfig(max_prompt_tokens=6, max_response_tokens=4))
    model = open_model(config, RunDir.create(config))
    tokens = probe_tokens(config, model.architecture)
    assert len(tokens) == 10
    assert (tokens == probe_tokens(config, model.architecture)).all()
    assert tokens.min() >= 0
    assert tokens.max() < model.architecture.vocab_size


@pytest.mark.parametrize(("engine", "follows"), [("embedded", True), ("vllm", False), ("vllm_async", False)])
def test_the_probe_has_routes_where_engines_follow_some(engine: str, follows: bool, tmp_path: Path) -> None:
    """What the learner scores it along is what its engines do."""
    config = small_config(tmp_path / "run", ModelConfig(tiny=TinyConfig(family="qwen3_moe")))
    config = replace(
        config, algorithm=AlgorithmConfig(router_replay="replay"), sidecar=replace(config.sidecar, engine=engine)
    )
    model = open_model(config, RunDir.create(config))
    learner: Any = SimpleNamespace(config=config, architecture=model.architecture)
    tokens = probe_tokens(config, model.architecture)
    theirs, ours = probe_routes(config, model.architecture), probe_inputs(learner, tokens)[2]
    assert (theirs is not None, ours is not None) == (follows, follows)


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


def measured(source: str = "data/held.jsonl", generating: dict[str, Any] | None = None, **others: Any) -> str:
    """The fingerprint of a validation."""
    held = {"held": TasksetConfig(source=source)}
    tasks = TasksConfig(train={"digits": TasksetConfig(source="reverse_digits")}, validation=held)
    sidecar = SidecarConfig(
        engine="vllm", val_generating_args=GeneratingConfig(**{"temperature": 0.0, **(generating or {})})
    )
    return validation_fingerprint(Config(tasks=tasks, sidecar=sidecar, **others))


def test_a_validation_is_told_from_another_by_what_it_measures() -> None:
    same = {measured(), measured("elsewhere/held.jsonl"), measured(max_steps=3, mode="explore")}
    assert len(same) == 1
    others = {
        measured("data/other.jsonl"),
        measured(val_batch_size=7),
        *(measured(generating=one) for one in ({"temperature": 0.5}, {"min_p": 0.1}, {"repetition_penalty": 1.1})),
    }
    assert len(others | same) == 6


def test_fingerprints_of_runs_that_an_earlier_program_began_stay_as_they_are() -> None:
    """Both were computed by the program of commit d195282."""
    assert measured() == "52af5e6d458ee6f4"
    manager = ValEnvManagerConfig(tags=("lake",), num_env_groups=4, num_groups_partition=(4,))
    full = measured(
        generating={"temperature": 0.5, "top_p": 0.9, "top_k": 20, "max_new_tokens": 9, "stop": ("\n",)},
        val_batch_size=7,
        custom_envs={"lake": EnvironmentConfig(id="envs/FrozenLakeText-v0", max_actions=5)},
        rollout=RolloutConfig(val_env_manager=manager),
        model=ModelConfig(max_prompt_tokens=40, max_response_tokens=24, sequence_length=80),
    )
    assert full == "2a40f84f02e2003d"


def test_a_judge_is_told_from_another_by_what_it_measures() -> None:
    def judged(**keys: Any) -> str:
        return measured(judges={"grader": JudgeConfig(**{"path": "models/small", **keys})})

    placed = {"devices": "gpu:2-3", "num_engines": 2, "max_concurrency": 8, "engine_args": {"swap_space": 0}}
    same = {judged(), judged(path="/mnt/elsewhere/small"), judged(engine="vllm", **placed)}
    assert len(same) == 1
    changes: list[dict[str, Any]] = [
        {"path": "models/large"},
        {"dtype": "bf16"},
        {"max_prompt_tokens": 99},
        {"max_response_tokens": 9},
        {"system_prompt": "Be fair."},
        {"template": "{response}?"},
        {"generating_args": GeneratingConfig(temperature=0.5)},
    ]
    assert len({judged(**change) for change in changes} | same | {measured()}) == len(changes) + 2


def test_a_chat_template_is_told_from_another_by_its_text(tmp_path: Path) -> None:
    def spoken(name: str, text: str) -> str:
        file = tmp_path / name
        file.write_text(text)
        return measured(model=ModelConfig(chat_template=str(file)))

    one = spoken("one.jinja", "{{ messages }}")
    assert one == spoken("two.jinja", "{{ messages }}")
    assert one != spoken("one.jinja", "{{ messages[0] }}")
    with pytest.raises(ConfigError, match=r"model.chat_template=.*cannot be read"):
        measured(model=ModelConfig(chat_template=str(tmp_path / "nowhere.jinja")))
