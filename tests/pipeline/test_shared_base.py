"""A run with an adapter on one device: its learner and its engines have the frozen weights once, while it trains."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import jax
import pytest

from rljax.config.model import LoraConfig, TinyConfig
from rljax.config.schema import Config, ModelConfig, SidecarConfig, TasksConfig, TasksetConfig
from rljax.run import Run

pytestmark = pytest.mark.slow

WIDTH = 56  # of no other model of the tests


def config(run_dir: Path, engines: int = 2, **sidecar: Any) -> Config:
    return Config(
        run_dir=str(run_dir),
        rollout_batch_size=8,
        group_size=4,
        max_steps=3,
        model=ModelConfig(
            tiny=TinyConfig(hidden_size=WIDTH), max_response_tokens=4, lora=LoraConfig(rank=2, alpha=4.0)
        ),
        sidecar=SidecarConfig(num_engines=engines, **sidecar),
        tasks=TasksConfig(train={"digits": TasksetConfig(source="reverse_digits", rewards=("exact",))}),
    )


def embeddings(run: Run) -> int:
    gc.collect()
    return sum(x.shape == (run.model.architecture.vocab_size, WIDTH) for x in jax.live_arrays())


@pytest.mark.parametrize(("sidecar", "most"), [({}, 1), ({"dtype": "bf16"}, 3)])
def test_two_engines_have_what_the_learner_has_and_all_of_it_goes(
    sidecar: dict[str, Any], most: int, tmp_path: Path
) -> None:
    with Run(config(tmp_path / "run", **sidecar)) as run:
        steps = iter(run)
        next(steps)
        next(steps)
        assert embeddings(run) == most
    assert embeddings(run) == 0
    assert run.audit()["balanced"]
