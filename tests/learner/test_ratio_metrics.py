"""What a step says of its importance ratios, against plain numpy over single trajectories."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rljax.config.environments import TrainEnvManagerConfig
from rljax.config.schema import GeneratingConfig, RolloutConfig, SidecarConfig
from rljax.learner.learner import Learner
from rljax.learner.ratio_metrics import divergence, ratio_drift, ratio_sums
from tests.algorithms.loss_batches import random_cells
from tests.learner.made_up import ARCHITECTURE, make_config, make_groups, make_params
from tests.learner.test_aux_state import logprobs_of

pytestmark = pytest.mark.slow


def test_ratios_are_told_by_staleness() -> None:
    """Versions differ from token to token: 3, 2 and 1 steps stale at step 3, none of staleness 0."""
    groups = []
    for group in make_groups(11):
        members = []
        for trajectory in group.trajectories:
            versions = np.where(trajectory.loss_mask, np.cumsum(trajectory.loss_mask) % 3, -1)
            members.append(replace(trajectory, versions=versions.astype(np.int32)))
        groups.append(replace(group, trajectories=tuple(members)))
    learner = Learner(make_config(async_generation_ratio=3.0), ARCHITECTURE, make_params())
    learner.state = replace(learner.state, step=3)

    members = [t for group in groups for t in group.trajectories]
    log_ratios, stale, advantages = [], [], []
    for trajectory in members:
        found = np.asarray(logprobs_of(make_params(), trajectory), np.float64)
        log_ratios.append(found - trajectory.logprobs[trajectory.loss_mask])
        stale.append(3 - trajectory.versions[trajectory.loss_mask])
    for group in groups:
        rewards = np.array([t.reward for t in group.trajectories])
        advantages += [np.full(t.loss_mask.sum(), t.reward - rewards.mean()) for t in group.trajectories]
    log_ratio, staleness, advantage = map(np.concatenate, (log_ratios, stale, advantages))
    ratio = np.exp(log_ratio)
    divergences = ratio - 1 - log_ratio
    clipped = ((advantage > 0) & (ratio > 1.2)) | ((advantage < 0) & (ratio < 0.8))

    metrics = learner.train(groups)
    expected = {
        "policy/ratio_mean": ratio.mean(),
        "policy/ratio_variance": ratio.var(),
        "policy/ess": ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum()),
        "policy/ratio_max": ratio.max(),
        "policy/approx_kl": divergences.mean(),
        "policy/clip_fraction": clipped.mean(),
    }
    for n in (1, 2, 3):
        of, count = ratio[staleness == n], np.sum(staleness == n)
        expected |= {
            f"policy/ratio_mean_staleness/{n}": of.mean(),
            f"policy/ratio_variance_staleness/{n}": of.var(),
            f"policy/ess_staleness/{n}": of.sum() ** 2 / (count * (of**2).sum()),
            f"policy/clip_fraction_staleness/{n}": clipped[staleness == n].mean(),
            f"policy/approx_kl_staleness/{n}": divergences[staleness == n].mean(),
        }
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, rel=1e-4), name
    assert not [name for name in metrics if name.endswith("_staleness/0")], "no token was as new"


def test_what_is_staler_than_the_bound_is_counted_with_the_stalest() -> None:
    cells = random_cells(0)
    staleness = np.arange(cells.mask.size).reshape(cells.mask.shape) % 5 - 1
    inputs = cells.inputs(sequence_gap=None, group_gap=None)
    sums = ratio_sums(inputs, jnp.asarray(staleness), bound=2, clipped=None)
    expected = [np.sum(cells.mask & where) for where in (staleness <= 0, staleness == 1, staleness >= 2)]
    np.testing.assert_array_equal(sums["tokens"], expected)


def test_a_loss_that_does_not_clip_has_no_clipped_fraction() -> None:
    learner = Learner(make_config(algorithm={"pg_variant": "vanilla"}), ARCHITECTURE, make_params())
    metrics = learner.train(make_groups(11))
    assert metrics["policy/ess_staleness/0"] == metrics["policy/ess"], "all tokens are as new"
    assert not [name for name in metrics if "clip_fraction" in name]


@pytest.mark.parametrize("scale", [1e-7, 1e-4, 1e-2, 1.0, 10.0])
def test_a_divergence_is_never_negative(scale: float) -> None:
    """float32 against float64; ρ − 1 − log ρ as it stands is negative for half of the smallest."""
    log_ratio = np.random.default_rng(0).normal(0, scale, 1000).astype(np.float32)
    found = np.asarray(divergence(jnp.asarray(log_ratio)))
    assert (found >= 0).all()
    wide = log_ratio.astype(np.float64)
    grown = np.expm1(np.clip(wide, -20, 20))
    # e^x − 1 and what is taken off it are each right to a few roundings of float32
    assert (np.abs(found - (grown - wide)) <= 2.0**-21 * np.maximum(np.abs(grown), np.abs(wide))).all()


def test_the_entropy_bonus_is_taken_off_the_loss() -> None:
    groups = make_groups(12)
    plain, bonus = (
        Learner(make_config(algorithm={"entropy_coef": coef}), ARCHITECTURE, make_params()).train(groups)
        for coef in (0.0, 0.5)
    )
    assert plain["entropy"] > 1.0
    assert bonus["loss"] == pytest.approx(plain["loss"] - 0.5 * plain["entropy"], rel=1e-4)


@pytest.mark.parametrize(
    ("mean", "variance", "tokens", "doubted"),
    [
        (1.0, 0.5, 1000.0, False),
        (1.04, 0.0, 10.0, False),  # within 0.05
        (1.15, 1.0, 1000.0, False),  # 0.05 + 6·√(1/1000) = 0.24
        (1.3, 1.0, 1000.0, True),
        (0.6, 0.1, 1000.0, False),  # what is rare and large may not have been drawn
        (0.4, 0.1, 1000.0, True),
        (5.0, 0.0, 0.0, False),  # nothing was trained
    ],
)
def test_which_ratios_are_doubted(mean: float, variance: float, tokens: float, doubted: bool) -> None:
    assert ratio_drift({"policy/ratio_mean": mean, "policy/ratio_variance": variance}, tokens) is doubted


@pytest.mark.parametrize(
    ("changes", "doubted"),
    [
        ({}, True),
        ({"algorithm": {"filters": ("group_variance",)}}, False),
        ({"algorithm": {"overlong": "mask"}}, False),
        ({"algorithm": {"overlong": "penalty", "overlong_buffer": 2}}, True),  # shapes the reward, selects nothing
        ({"rollout": RolloutConfig(train_env_manager=TrainEnvManagerConfig(group_size_redundancy=1))}, False),
        ({"sidecar": SidecarConfig(generating_args=GeneratingConfig(top_k=5))}, False),
        ({"sidecar": SidecarConfig(generating_args=GeneratingConfig(top_p=0.9))}, False),
    ],
    ids=str,
)
def test_what_is_selected_or_truncated_is_not_doubted(changes: dict[str, Any], doubted: bool) -> None:
    learner = Learner(make_config(**changes), ARCHITECTURE, make_params())
    assert learner._ratio_drift({"policy/ratio_mean": 1.4, "policy/ratio_variance": 1.0}, 1000) is doubted
