"""Tiny models and made-up groups, for the tests of this directory and for the scripts that they start."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from rljax.config.schema import AlgorithmConfig, Config, LearnerConfig, MeshConfig, ModelConfig, OptimizerConfig
from rljax.models.common.architecture import Architecture
from rljax.models.common.params import Params
from rljax.models.transformer import init_params
from rljax.trajectory import Group, TaskId, Trajectory

ARCHITECTURE = Architecture(
    family="qwen3",
    vocab_size=32,
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_heads=8,
    num_kv_heads=4,
    head_dim=4,
    qk_norm=True,
)
MAX_PROMPT, MAX_RESPONSE = 8, 16


def make_config(**changes: Any) -> Config:
    """A config of this directory's size: 16 trajectories a batch, 4 a group."""
    algorithm = AlgorithmConfig(**changes.pop("algorithm", {}))
    model = ModelConfig(
        **{"max_prompt_tokens": MAX_PROMPT, "max_response_tokens": MAX_RESPONSE, **changes.pop("model", {})}
    )
    optimizer = OptimizerConfig(**{"learning_rate": 1e-2, **changes.pop("optimizer", {})})
    mesh = MeshConfig(**changes.pop("mesh", {}))
    learner = LearnerConfig(
        **{"rows_per_microbatch": 2, "mesh": mesh, "optimizer": optimizer, **changes.pop("learner", {})}
    )
    sizes = {"rollout_batch_size": 16, "group_size": 4, "mode": "evaluate"}
    return Config(**{**sizes, **changes}, algorithm=algorithm, model=model, learner=learner)


def make_params(seed: int = 0, architecture: Architecture = ARCHITECTURE) -> Params:
    """Initial weights, numpy."""
    return jax.tree.map(np.asarray, init_params(architecture, seed))


def make_trajectory(
    rng: np.random.Generator, prompt: int, response: int, reward: float = 0.0, temperature: float = 1.0
) -> Trajectory:
    """Random tokens; behaviour log-probabilities near those of an untrained model."""
    length = prompt + response
    mask = np.arange(length) >= prompt
    return Trajectory(
        token_ids=rng.integers(0, ARCHITECTURE.vocab_size, length).astype(np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, rng.normal(-3.5, 0.5, length), 0).astype(np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        turns=np.array([[prompt, length]] if response else np.zeros((0, 2)), np.int32),
        reward=reward,
        temperature=temperature,
    )


def make_groups(seed: int = 0, groups: int = 4, size: int = 4, **fields: Any) -> list[Group]:
    """Groups of random prompts, response lengths (1 to the budget), rewards and temperatures."""
    rng = np.random.default_rng(seed)
    made = []
    for index in range(groups):
        prompt = int(rng.integers(1, MAX_PROMPT + 1))
        members = [
            make_trajectory(
                rng,
                prompt,
                int(rng.integers(1, MAX_RESPONSE + 1)),
                float(rng.integers(0, 3)),
                float(rng.choice([0.7, 1.0])),
            )
            for _ in range(size)
        ]
        made.append(Group(TaskId("made-up", 0, index), tuple(dataclasses.replace(m, **fields) for m in members)))
    return made


def trajectories_of(groups: list[Group]) -> list[Trajectory]:
    """All trajectories, in batch order."""
    return [trajectory for group in groups for trajectory in group.trajectories]


def relative_error(got: Any, expected: Any) -> float:
    """Over all tensors of two trees: the largest error of a tensor over its largest magnitude."""
    errors = jax.tree.map(
        lambda g, e: np.abs(np.asarray(g, np.float64) - np.asarray(e)).max() / np.abs(np.asarray(e)).max(),
        got,
        expected,
    )
    return float(max(jax.tree.leaves(errors)))
