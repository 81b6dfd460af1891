"""What the learner keeps beside the policy: a reference, a critic, and what is adapted from step to step."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.learner.checkpoints import Checkpoints
from rljax.learner.learner import Learner
from rljax.learner.train_step import loss_and_gradient
from rljax.models.common.logprobs import token_logprobs
from rljax.models.common.params import Params
from rljax.models.transformer import hidden_states
from rljax.trajectory import Group, Trajectory
from tests.learner.made_up import (
    ARCHITECTURE,
    MAX_PROMPT,
    MAX_RESPONSE,
    make_config,
    make_groups,
    make_params,
    relative_error,
    trajectories_of,
)

pytestmark = pytest.mark.slow

LONGEST = MAX_PROMPT + MAX_RESPONSE


def make_learner(seed: int = 0, **changes: Any) -> Learner:
    return Learner(make_config(**changes), ARCHITECTURE, make_params(seed))


def kl(**keys: Any) -> Any:
    from rljax.config.algorithm import KlConfig

    return KlConfig(**keys)


def critic(**keys: Any) -> Any:
    from rljax.config.algorithm import CriticConfig, OptimizerConfig

    return CriticConfig(**{"optimizer": OptimizerConfig(learning_rate=1e-2), **keys})


@jax.jit
def by_place(params: Params, ids: jax.Array, temperatures: jax.Array) -> jax.Array:
    here = ids[:, :-1]
    positions = jnp.broadcast_to(jnp.arange(LONGEST - 1), here.shape)
    hidden = hidden_states(params, ARCHITECTURE, here, positions, jnp.ones_like(here))
    return token_logprobs(params, ARCHITECTURE, hidden, ids[:, 1:], temperatures[:, None], chunk=1024)[0]


def trained_logprobs(params: Params, trajectories: Sequence[Trajectory]) -> tuple[jax.Array, np.ndarray]:
    """Log-probabilities of trajectories in a row each, and which of them are of trained tokens."""
    ids, trained = np.zeros((len(trajectories), LONGEST), np.int32), np.zeros((len(trajectories), LONGEST), bool)
    for row, trajectory in enumerate(trajectories):
        ids[row, : len(trajectory.token_ids)] = trajectory.token_ids
        trained[row, : len(trajectory.token_ids)] = trajectory.loss_mask
    temperatures = np.asarray([t.temperature for t in trajectories], np.float32)
    return by_place(params, ids, temperatures), trained[:, 1:]


def logprobs_of(params: Params, *trajectories: Trajectory) -> np.ndarray:
    """Log-probabilities of the trained tokens of each trajectory, one trajectory after the other."""
    found, trained = trained_logprobs(params, trajectories)
    return np.asarray(found)[trained]


def gaps_of(params: Params, reference: Params, groups: Sequence[Group]) -> list[jax.Array]:
    """Σ(logπ − logπ_ref) of the trajectories of each group."""
    members = trajectories_of(list(groups))
    found, trained = trained_logprobs(params, members)
    gaps = jnp.sum((found - trained_logprobs(reference, members)[0]) * trained, axis=1)
    return jnp.split(gaps, np.cumsum([len(g.trajectories) for g in groups])[:-1])


def test_the_reference_is_what_the_run_began_with_until_it_is_refreshed() -> None:
    learner = make_learner(algorithm={"kl": kl(where="loss", coef=0.1, refresh_steps=3)})
    seen = [learner.train(make_groups(step))["policy/kl_reference"] for step in range(4)]
    assert seen[0] == pytest.approx(0.0, abs=1e-6)
    assert min(seen[1], seen[2]) > 0.01
    assert seen[3] == pytest.approx(0.0, abs=1e-6), "after three steps the policy became its own reference"


def test_a_divergence_in_the_loss_is_k2_of_the_policy_and_the_reference() -> None:
    """Value and metric against log-probabilities of single trajectories."""
    groups = make_groups(5)
    plain = make_learner()
    held = make_learner(algorithm={"kl": kl(where="loss", estimator="k2", coef=0.5)})
    reference = make_params()
    for learner in (plain, held):
        learner.state = type(learner.state)(
            jax.tree.map(lambda x: x + 0.05 * jnp.cos(x), learner.state.params),
            learner.state.opt_state,
            0,
            learner.state.aux_state,
        )
    members = trajectories_of(groups)
    gaps = (logprobs_of(held.state.params, *members) - logprobs_of(reference, *members)).astype(np.float64)
    expected = float(np.mean(gaps**2 / 2))
    without, with_it = plain.train(groups), held.train(groups)
    assert with_it["policy/kl_reference"] == pytest.approx(expected, rel=1e-4)
    assert with_it["loss"] - without["loss"] == pytest.approx(0.5 * expected, rel=1e-3)


def test_a_divergence_in_the_reward_lowers_the_advantage_of_what_it_comes_after() -> None:
    keys = {"kl": kl(where="reward", estimator="k1", coef=0.1)}
    plain, charged = make_learner(), make_learner(algorithm=keys)
    groups = make_groups(6)
    trajectory = groups[0].trajectories[0]
    charges = 0.1 * (trajectory.logprobs[trajectory.loss_mask] - logprobs_of(make_params(), trajectory))
    before, after = (learner.pack(groups)[0] for learner in (plain, charged))
    counts = [len(t.token_ids) for g in groups for t in g.trajectories]
    one, other = (p.by_token(laid(p, p.batch.advantages), counts)[0] for p in (before, after))
    to_go = np.cumsum(charges[::-1])[::-1]
    np.testing.assert_allclose((one - other)[trajectory.loss_mask], to_go, rtol=1e-4, atol=1e-5)


def test_a_reward_that_drives_the_policy_from_the_reference_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    for fine in (kl(), kl(where="reward"), kl(where="reward", estimator="k1"), kl(where="loss", estimator="k2")):
        make_learner(algorithm={"kl": fine})
    assert not caplog.records
    make_learner(algorithm={"kl": kl(where="reward", estimator="k2")})
    (record,) = caplog.records
    assert record.getMessage().startswith("algorithm.kl.estimator=k2: in the reward it also charges tokens that")


def test_a_limit_below_the_age_that_tokens_mostly_have_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    for alpha, limit in ((0.5, 0), (1.5, 1), (2.0, None), (2.0, 2)):
        make_learner(async_generation_ratio=alpha, algorithm={"drop_staler_than": limit})
    assert not caplog.records
    make_learner(async_generation_ratio=2.5, algorithm={"drop_staler_than": 1})
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "algorithm.drop_staler_than=1: what engines sample async_generation_ratio=2.5"
    )
    assert "is mostly 2 steps stale or more" in record.getMessage()


def test_a_limit_below_the_age_of_a_filled_intervals_last_batch_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    filled = {"async_generation_ratio": 0.0, "sync_interval": 10, "fill_interval": True}
    make_learner(**filled, algorithm={"drop_staler_than": 9})
    assert not caplog.records
    make_learner(**filled, algorithm={"drop_staler_than": 8})
    (record,) = caplog.records
    assert "the last batches of sync_interval=10 are up to 9 steps stale" in record.getMessage()


def test_a_run_that_trains_its_critic_alone_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    keys = {"adv_estimator": "gae"}
    make_learner(max_steps=10, algorithm=keys | {"critic": critic(warmup_steps=9)})
    assert not caplog.records
    make_learner(max_steps=10, algorithm=keys | {"critic": critic(warmup_steps=10)})
    (record,) = caplog.records
    assert record.getMessage() == (
        "algorithm.critic.warmup_steps=10: none of the max_steps=10 steps trains the policy; lower it, or raise "
        "max_steps"
    )


def test_the_coefficient_follows_the_divergence() -> None:
    learner = make_learner(algorithm={"kl": kl(where="loss", coef=0.1, target=1e-6, horizon=16)})
    coefs = [learner.train(make_groups(step))["policy/kl_coef"] for step in range(3)]
    # 16 trajectories a step: the first measures 0 and takes a fifth off, the second far too much and adds a fifth
    np.testing.assert_allclose(coefs, [0.1, 0.08, 0.096], rtol=1e-6)


def pairwise_objective(params: Params, reference: Params, groups: list[Group], tau: float) -> jax.Array:
    """Mean over groups of 1/(2τK²)·Σ_{i<j} (a_i − a_j)², a = R − τ·Σ(logπ − logπ_ref), from its definition."""
    total = jnp.zeros(())
    for group, gaps in zip(groups, gaps_of(params, reference, groups), strict=True):
        a = [t.reward - tau * gap for t, gap in zip(group.trajectories, gaps, strict=True)]
        total += sum((x - y) ** 2 for x, y in itertools.combinations(a, 2)) / (2 * tau * len(a) ** 2)
    return total / len(groups)


def kimi_objective(params: Params, reference: Params, groups: list[Group], tau: float) -> jax.Array:
    """Mean over trajectories of 1/(2τ)·(R − τ·log Ẑ − τ·Σ(logπ − logπ_ref))²."""
    squares = []
    for group, gaps in zip(groups, gaps_of(params, reference, groups), strict=True):
        log_z = np.log(np.mean(np.exp(group.rewards.astype(np.float64) / tau)))
        squares += [(t.reward - tau * log_z - tau * gap) ** 2 for t, gap in zip(group.trajectories, gaps, strict=True)]
    return jnp.mean(jnp.stack(squares)) / (2 * tau)


@pytest.mark.parametrize(
    ("variant", "estimator", "objective"),
    [("opmd_pairwise", "opmd_mean", pairwise_objective), ("opmd_kimi", "opmd_logavgexp", kimi_objective)],
)
def test_losses_of_whole_trajectories_have_the_gradient_of_their_objective(
    variant: str, estimator: str, objective: Any
) -> None:
    """However trajectories are packed and groups are cut over rows and microbatches."""
    keys: dict[str, Any] = {"pg_variant": variant, "adv_estimator": estimator, "aggregation": "seq-mean-token-sum"}
    keys["loss"] = {"tau": 0.5}
    keys["advantage"] = {"tau": 0.5} if estimator == "opmd_logavgexp" else {}
    learner = make_learner(algorithm=keys)
    groups = make_groups(2, temperature=1.0)
    learner.train(groups)  # so that policy and reference differ
    state = learner.state
    minibatches, _ = learner._preparation.minibatches(groups, 1, state.params, state.aux_state)
    (minibatch,) = minibatches
    batch = learner._preparation.summed(learner._preparation.placed(minibatch), minibatch, state.params)
    gradient_of = jax.jit(partial(loss_and_gradient, learner.objective))
    _, gradient, _ = gradient_of(state.params, batch, minibatch.microbatches)
    reference = jax.tree.map(jnp.asarray, make_params())
    expected = jax.jit(jax.grad(lambda params: objective(params, reference, groups, 0.5)))(state.params)
    assert relative_error(gradient, expected) < 2e-4


def test_the_proximal_policy_is_that_of_before_the_batch() -> None:
    """The second minibatch is compared with what the policy was before the first."""
    keys = {"pg_variant": "decoupled_ppo", "minibatch_size": 8}
    learner, groups = make_learner(algorithm=keys), make_groups(3)
    params = jax.tree.map(np.asarray, learner.state.params)
    minibatches, _ = learner._preparation.minibatches(groups, 0, learner.state.params, learner.state.aux_state)
    for minibatch in minibatches:
        assert minibatch.scores.proximal_logprobs is not None
        found = minibatch.by_token(minibatch.scores.proximal_logprobs)
        for trajectory, logprobs in zip(minibatch.trajectories, found, strict=True):
            expected = logprobs_of(params, trajectory)
            np.testing.assert_allclose(logprobs[trajectory.loss_mask], expected, atol=1e-5)
    assert np.isfinite(learner.train(groups)["loss"])


def test_a_critic_learns_what_returns_are() -> None:
    keys = {"adv_estimator": "gae", "critic": critic(warmup_steps=2)}
    learner, groups = make_learner(algorithm=keys), make_groups(4)
    before = np.asarray(learner.state.params["embedding"]).copy()
    seen = [learner.train(groups) for _ in range(2)]
    np.testing.assert_array_equal(learner.state.params["embedding"], before)
    seen += [learner.train(groups) for _ in range(10)]
    assert np.any(np.asarray(learner.state.params["embedding"]) != before), "the warm-up is over"
    # the head begins at zero, and lambda makes the first targets those of values of 0
    assert seen[0]["critic/value"] == pytest.approx(0.0, abs=1e-6)
    assert seen[-1]["critic/loss"] < 0.5 * seen[0]["critic/loss"]
    assert seen[-1]["critic/explained_variance"] > 0.5


def test_value_clip_takes_the_larger_error() -> None:
    """From values of 0, clipped to within 0.1 of what they were: ½·max((v − r)², (v_clipped − r)²), token by token."""
    learner, groups = make_learner(algorithm={"adv_estimator": "gae", "critic": critic(value_clip=0.1)}), make_groups(4)
    minibatches, given = learner._preparation.minibatches(groups, 0, learner.state.params, learner.state.aux_state)
    (minibatch,) = minibatches
    batch = learner._preparation.placed(minibatch)
    assert learner._critic is not None
    params = dict(learner.state.aux_state["critic"])
    params["value_head"] = params["value_head"] + 0.3
    objective = learner._critic.objective
    loss, _, metrics = jax.jit(partial(loss_and_gradient, objective))(params, batch, minibatch.microbatches)
    found = minibatch.by_token(learner._preparation.values(params, batch, minibatch.microbatches))
    assert given.returns is not None
    errors = []
    for trajectory, values, returns in zip(minibatch.trajectories, found, given.returns, strict=True):
        for v, r in zip(values[trajectory.loss_mask], returns[trajectory.loss_mask], strict=True):
            errors.append(max((v - r) ** 2, (max(min(v, 0.1), -0.1) - r) ** 2))
    assert float(loss) == pytest.approx(0.5 * np.mean(errors), rel=1e-4)
    assert 0 < float(metrics["critic/clip_fraction"]) < 1


def test_sample_weights_multiply_the_loss_and_what_is_masked_is_not_trained() -> None:
    groups = make_groups(8)
    lengths = np.array([t.loss_mask.sum() for g in groups for t in g.trajectories], np.float64)
    factors = 1.5 - (lengths - lengths.min()) / (lengths.max() - lengths.min())
    packed = make_learner(algorithm={"length_loss_weight": True}).pack(groups)[0]
    counts = [len(t.token_ids) for g in groups for t in g.trajectories]
    weights = [w.max() * lengths.sum() for w in packed.by_token(laid(packed, packed.batch.weights), counts)]
    np.testing.assert_allclose(weights, factors / factors.mean(), rtol=1e-5)

    cut = [
        replace(g, trajectories=(replace(g.trajectories[0], finish_reason="length"), *g.trajectories[1:]))
        for g in groups
    ]
    masked = make_learner(algorithm={"overlong": "mask"}).pack(cut)[0]
    kept = [t.loss_mask.sum() for g in cut for t in g.trajectories[1:]]
    assert masked.trained_tokens == sum(kept)
    advantages = masked.by_token(laid(masked, masked.batch.advantages), counts)
    plain = make_learner().pack(groups)[0]
    expected = plain.by_token(laid(plain, plain.batch.advantages), counts)
    for index in range(1, len(counts)):
        if index % 4:
            np.testing.assert_array_equal(advantages[index], expected[index], "those that are cut still count beside")


def test_what_a_mask_leaves_out_is_not_counted_as_trained(caplog: pytest.LogCaptureFixture) -> None:
    groups, learner = make_groups(8), make_learner(algorithm={"drop_staler_than": 0})
    sampled = sum(t.loss_mask.sum() for g in groups for t in g.trajectories)
    assert learner.train(groups)["tokens/trained"] == sampled  # all of version 0, in step 0
    before = jax.device_get(learner.state.params)
    for _ in range(2):
        assert learner.train(groups)["tokens/trained"] == 0
    for one, other in zip(jax.tree.leaves(before), jax.tree.leaves(learner.state.params), strict=True):
        np.testing.assert_array_equal(one, other)
    warned = [record.getMessage() for record in caplog.records if "trained no sampled token" in record.getMessage()]
    assert len(warned) == 1
    assert warned[0].startswith("step 2 trained no sampled token: every response was empty, or left out by a mask")


def laid(packed: Any, values: Any) -> np.ndarray:
    """A ``[slot, row, time]`` array at the trained places."""
    return np.take_along_axis(values, np.minimum(packed.batch.places, packed.batch.mask.shape[-1] - 1), -1)


def test_everything_beside_the_policy_is_resumed_to_the_bit(tmp_path: Path) -> None:
    """P13 with critic, reference, adapted coefficient and running moments."""
    keys = {
        "adv_estimator": "gae",
        "critic": critic(value_clip=0.2),
        "kl": kl(where="reward", coef=0.05, target=0.01, horizon=100, refresh_steps=2),
        "norm_mean": "running",
        "norm_std": "running",
        "minibatch_size": 8,
    }
    learner = make_learner(algorithm=keys)
    learner.train(make_groups(0))
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, learner.state, {})
    first = [learner.train(make_groups(step)) for step in (1, 2)]
    checkpoints.wait()

    again = make_learner(9, algorithm=keys)
    again.restore(checkpoints, 1)
    assert [again.train(make_groups(step)) for step in (1, 2)] == first
    for mine, theirs in zip(jax.tree.leaves(again.state), jax.tree.leaves(learner.state), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_checkpoint_without_a_reference_is_refused_in_one_line(tmp_path: Path) -> None:
    learner = make_learner()
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, learner.state, {})
    checkpoints.wait()
    held = make_learner(algorithm={"kl": kl(where="loss")})
    with pytest.raises(Exception, match="it lacks kl_coef, reference: ") as caught:
        held.restore(checkpoints, 1)
    assert "\n" not in str(caught.value)
