"""Values that follow from several keys."""

from __future__ import annotations

import dataclasses

import pytest

from rljax.config.environments import TrainEnvManagerConfig
from rljax.config.schema import AlgorithmConfig, LearnerConfig, MeshConfig, ModelConfig, RolloutConfig, staleness_credit
from rljax.config.validate_placement import device_indices
from tests.config.making import make


def test_the_schema_of_a_run_is_the_last_part_of_its_directory() -> None:
    assert make(run_dir="/shared/runs/first").resolved_ledger_schema == "first"
    assert make(run_dir="/shared/runs/first", ledger_schema="mine").resolved_ledger_schema == "mine"


@pytest.mark.parametrize(
    ("alpha", "k", "given", "bound"),
    [(0, 1, None, 0), (0.5, 1, None, 1), (1, 1, None, 1), (2.5, 4, None, 6), (7, 2, None, 8), (1, 1, 5, 5)],
)
def test_the_staleness_bound(alpha: float, k: int, given: int | None, bound: int) -> None:
    config = make(async_generation_ratio=alpha, sync_interval=k, max_staleness=given)
    assert config.staleness_bound == bound


@pytest.mark.parametrize("hundredths", range(0, 301))
def test_what_may_be_generated_ahead_is_the_floor_of_the_decimal(hundredths: int) -> None:
    """By integers alone; ⌊(1 + α)·b⌋ in floating point differs in some of these."""
    for groups in range(1, 65):
        ahead = hundredths * groups // 100
        assert staleness_credit(float(f"{hundredths / 100:.2f}"), groups) == groups + ahead
        assert staleness_credit(float(f"{hundredths / 100:.2f}"), groups, 10, fill_interval=True) == 10 * groups + ahead


def test_environments_are_made_for_all_that_may_be_generated_ahead() -> None:
    # (1 + 0.15)·20 is 22.999999999999996 in floating point
    manager = TrainEnvManagerConfig(tags=("FrozenLake",))
    config = make(
        async_generation_ratio=0.15, rollout_batch_size=20, group_size=1,
        algorithm=AlgorithmConfig(adv_estimator="gae"), rollout=RolloutConfig(train_env_manager=manager),
    )  # fmt: skip
    assert config.train_groups == {"FrozenLake": 23}


def test_derived_values() -> None:
    config = make(rollout_batch_size=48, group_size=6, model=ModelConfig(dtype="bf16"))
    assert config.groups_per_batch == 8
    assert config.row_tokens == 128
    assert config.resolved_sync_dtype == "bf16"
    assert dataclasses.replace(config, sync_dtype="fp32").resolved_sync_dtype == "fp32"
    assert make(learner=LearnerConfig(max_tokens_per_row=500)).row_tokens == 500
    assert MeshConfig(data=2, fsdp=3, tensor=4).size == 24


def test_device_indices() -> None:
    assert device_indices("gpu:0-3,6") == ("gpu", frozenset({0, 1, 2, 3, 6}))
    assert device_indices("tpu") == ("tpu", None)
