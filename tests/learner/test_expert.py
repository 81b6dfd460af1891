"""Demonstrations beside sampled groups: only imitation sees them, and nothing else changes for the samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms.credit_assignment import batch_advantages
from rljax.config.schema import RowsConfig, TasksConfig
from rljax.learner.learner import Learner
from rljax.trajectory import Trajectory
from tests.learner.made_up import (
    ARCHITECTURE,
    make_config,
    make_groups,
    make_params,
    make_trajectory,
    trajectories_of,
)
from tests.learner.test_aux_state import critic, kl, logprobs_of

pytestmark = pytest.mark.slow

TASKS = TasksConfig(expert=RowsConfig(source="reverse_digits"))


def make_learner(ratio: float = 0.2, **algorithm: Any) -> Learner:
    """16 sampled trajectories a batch; 0.2 is 4 demonstrations beside them."""
    keys = {"pg_variant": "mix", "expert_data_ratio": ratio, **algorithm}
    return Learner(make_config(tasks=TASKS, algorithm=keys), ARCHITECTURE, make_params())


def make_demonstrations(count: int = 4, seed: int = 100) -> list[Trajectory]:
    rng = np.random.default_rng(seed)
    made = [make_trajectory(rng, int(rng.integers(1, 8)), int(rng.integers(1, 16))) for _ in range(count)]
    nothing = [np.zeros(len(t.token_ids), np.float32) for t in made]
    return [
        replace(t, expert=True, logprobs=zeros, versions=np.full(len(zeros), -1, np.int32))
        for t, zeros in zip(made, nothing, strict=True)
    ]


def logprobs(trajectory: Trajectory) -> np.ndarray:
    return np.asarray(logprobs_of(make_params(), trajectory), np.float64)


def test_the_loss_is_the_mean_over_samples_and_the_mean_over_demonstrations_weighed_by_mu() -> None:
    groups, shown = make_groups(21), make_demonstrations()
    learner = make_learner(loss={"variant": "vanilla", "weight": 0.3}, allow_uncorrected=True)
    members, advantages = trajectories_of(groups), batch_advantages(groups, learner.config.algorithm)
    tokens = sum(t.loss_mask.sum() for t in [*members, *shown])
    reinforced = sum(
        -(a[t.loss_mask].astype(np.float64) * logprobs(t)).sum() for t, a in zip(members, advantages, strict=True)
    )
    imitated = sum(-logprobs(t).sum() for t in shown)
    metrics = learner.train(groups, demonstrations=shown)
    own, others = (sum(t.loss_mask.sum() for t in kind) for kind in (members, shown))
    assert metrics["loss"] == pytest.approx(0.7 * reinforced / own + 0.3 * imitated / others, rel=1e-5)
    assert metrics["policy/expert_fraction"] == pytest.approx(sum(t.loss_mask.sum() for t in shown) / tokens)
    assert (metrics["batch/demonstrations"], metrics["batch/trained_tokens"]) == (4.0, tokens)


def test_sft_imitates_the_demonstrations_alone() -> None:
    groups, shown = make_groups(22), make_demonstrations()
    tokens = sum(t.loss_mask.sum() for t in shown)
    metrics = make_learner(pg_variant="sft").train(groups, demonstrations=shown)
    assert metrics["loss"] == pytest.approx(sum(-logprobs(t).sum() for t in shown) / tokens, rel=1e-5)


def test_what_is_told_of_the_policys_own_tokens_does_not_change() -> None:
    """Ratios, entropy, divergence, correction: of what was sampled, with demonstrations as without."""
    keys = {"kl": kl(where="loss", coef=0.1), "loss": {"variant": "vanilla"}, "allow_uncorrected": True}
    keys["correction"] = replace(make_config().algorithm.correction, level="token", mode="mask")
    groups = make_groups(23)
    with_them, without = make_learner(**keys), make_learner(**keys)
    for learner in (with_them, without):  # so that the policy is not its own reference
        moved = jax.tree.map(lambda x: x + 0.05 * jnp.cos(x), learner.state.params)
        learner.state = replace(learner.state, params=moved)
    told, plain = with_them.train(groups, demonstrations=make_demonstrations()), without.train(groups)
    same = ["entropy", "policy/kl_reference", "policy/ess", "policy/approx_kl", "tokens/trained"]
    same += ["policy/ratio_mean", "policy/ratio_variance", "policy/ratio_max", "policy/approx_kl_staleness/0"]
    same += ["policy/correction_weight", "policy/correction_clipped"]
    for name in same:
        assert told[name] == pytest.approx(plain[name], rel=1e-5, abs=1e-7), name
    assert told["policy/ratio_drift"] == plain["policy/ratio_drift"]


def test_entropy_bonus_and_divergence_are_of_the_samples() -> None:
    groups, shown = make_groups(24), make_demonstrations()
    plain = make_learner(pg_variant="sft").train(groups, demonstrations=shown)
    bonus = make_learner(pg_variant="sft", entropy_coef=0.5).train(groups, demonstrations=shown)
    assert bonus["loss"] == pytest.approx(plain["loss"] - 0.5 * plain["entropy"], rel=1e-4)


@pytest.mark.parametrize("where", ["none", "reward"])
def test_advantages_are_those_of_the_samples_by_themselves(where: str) -> None:
    keys = {"norm_mean": "batch", "norm_std": "batch", "whiten_advantages": True, "minibatch_size": 8}
    keys |= {"kl": kl(where=where, coef=0.5)} if where != "none" else {}
    groups, shown = make_groups(25), make_demonstrations(3)
    alone, beside = make_learner(**keys).pack(groups), make_learner(**keys).pack(groups, demonstrations=shown)
    for packed in (*alone, *beside):
        assert not packed.batch.advantages[packed.batch.expert].any()
    values = [
        np.sort(np.concatenate([p.batch.advantages[p.batch.mask & ~p.batch.expert] for p in x]))
        for x in (alone, beside)
    ]
    np.testing.assert_allclose(*values, rtol=1e-4, atol=1e-6)  # packed otherwise, the reference rounds otherwise


def test_each_update_has_its_even_share_in_order() -> None:
    shown = make_demonstrations(7)
    counts = [int(t.loss_mask.sum()) for t in shown]
    packed = make_learner(ratio=0.3, minibatch_size=4).pack(make_groups(26), demonstrations=shown)
    assert [int(p.batch.expert.sum()) for p in packed] == [
        sum(counts[:1]), sum(counts[1:3]), sum(counts[3:5]), sum(counts[5:7])
    ]  # fmt: skip
    lengths = {p.batch.token_ids.shape for p in packed}
    assert len({shape[1:] for shape in lengths}) <= 3, "shapes depend on the config"


def test_the_critic_learns_nothing_of_demonstrations() -> None:
    keys = {"adv_estimator": "gae", "critic": critic(warmup_steps=5), "aggregation": "seq-mean-token-sum-norm"}
    groups = make_groups(27)
    with_them, without = make_learner(**keys), make_learner(**keys)
    told, plain = with_them.train(groups, demonstrations=make_demonstrations()), without.train(groups)
    for name in ("critic/loss", "critic/value", "critic/return", "critic/error"):
        assert told[name] == pytest.approx(plain[name], rel=1e-5, abs=1e-7), name


@pytest.mark.parametrize("variant", ["gspo", "decoupled_ppo", "opmd_pairwise"])
def test_no_loss_makes_a_nan_of_what_has_no_behaviour(variant: str) -> None:
    shown = [replace(t, logprobs=np.full_like(t.logprobs, -np.inf)) for t in make_demonstrations()]
    estimator = "opmd_mean" if variant == "opmd_pairwise" else "grpo"
    learner = make_learner(loss={"variant": variant}, adv_estimator=estimator, aggregation="seq-mean-token-mean")
    metrics = learner.train(make_groups(28), demonstrations=shown)
    assert metrics["policy/nonfinite_updates"] == 0
    assert np.isfinite([value for name, value in metrics.items()]).all()


def test_a_batch_of_demonstrations_alone_is_trained() -> None:
    groups = [
        replace(g, trajectories=tuple(replace(t, loss_mask=np.zeros_like(t.loss_mask)) for t in g.trajectories))
        for g in make_groups(29)
    ]
    learner = make_learner()
    before = jax.tree.map(np.asarray, learner.state.params)
    metrics = learner.train(groups, demonstrations=make_demonstrations())
    assert np.isfinite(list(metrics.values())).all()
    assert metrics["policy/ratio_drift"] == 0
    moved = jax.tree.map(lambda a, b: bool((np.asarray(a) != b).any()), learner.state.params, before)
    assert any(jax.tree.leaves(moved))


@pytest.mark.parametrize("minibatch", [None, 8])
def test_demonstrations_alone_are_cut_into_minibatches(minibatch: int | None) -> None:
    shown = make_demonstrations(16)
    learner = make_learner(1.0, pg_variant="sft", minibatch_size=minibatch)
    packed = learner.pack([], demonstrations=shown)
    trained = [
        sum(int(t.loss_mask.sum()) for t in part) for part in ([shown] if minibatch is None else [shown[:8], shown[8:]])
    ]
    assert [int(p.batch.expert.sum()) for p in packed] == trained
    if minibatch is None:
        metrics = learner.train([], demonstrations=shown)
        assert metrics["loss"] == pytest.approx(sum(-logprobs(t).sum() for t in shown) / trained[0], rel=1e-5)
        assert (metrics["batch/demonstrations"], metrics["batch/trained_tokens"]) == (16.0, trained[0])
        assert not [name for name in metrics if name.startswith(("policy/ratio_mean", "policy/advantage"))]
