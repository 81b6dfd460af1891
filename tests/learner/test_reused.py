"""Groups that are trained again beside a batch: part of it in all that is computed, whole in one update each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms.credit_assignment import batch_advantages
from rljax.learner.learner import Learner
from rljax.trajectory import Trajectory
from tests.learner.made_up import ARCHITECTURE, make_config, make_groups, make_params, trajectories_of
from tests.learner.test_aux_state import critic, logprobs_of

pytestmark = pytest.mark.slow


def make_learner(**algorithm: Any) -> Learner:
    """4 groups of 4 a batch, and up to 4 more that are reused."""
    keys = {"max_uses": 2, "pg_variant": "vanilla", "allow_uncorrected": True, **algorithm}
    return Learner(make_config(algorithm=keys), ARCHITECTURE, make_params())


def test_the_loss_is_that_of_all_of_them_as_one_batch() -> None:
    groups, reused = make_groups(31), make_groups(32, groups=3)
    learner = make_learner(norm_mean="batch", norm_std="batch")
    members = trajectories_of([*groups, *reused])
    advantages = batch_advantages([*groups, *reused], learner.config.algorithm)
    expected = sum(
        -(a[t.loss_mask].astype(np.float64) * np.asarray(logprobs_of(make_params(), t), np.float64)).sum()
        for t, a in zip(members, advantages, strict=True)
    ) / sum(t.loss_mask.sum() for t in members)
    metrics = learner.train(groups, reused=reused)
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
    assert metrics["batch/trained_tokens"] == sum(t.loss_mask.sum() for t in members)


def test_each_update_has_whole_groups_and_its_even_share() -> None:
    groups, reused = make_groups(33), make_groups(34, groups=3)
    learner = make_learner(minibatch_size=8)
    alone, beside = learner.pack(groups), learner.pack(groups, reused=reused)
    assert [len(packs) for packs in (alone, beside)] == [2, 2], "as many updates, so that schedules keep their length"
    added = [b.trained_tokens - a.trained_tokens for a, b in zip(alone, beside, strict=True)]
    tokens = [sum(int(t.loss_mask.sum()) for t in group.trajectories) for group in reused]
    assert added == [tokens[0], tokens[1] + tokens[2]]


def test_advantages_go_to_whom_they_are_of() -> None:
    """In two updates the order of the batch is not that of the updates."""
    groups, reused = make_groups(35), make_groups(36, groups=2)
    learner = make_learner(minibatch_size=8)
    advantages = batch_advantages([*groups, *reused], learner.config.algorithm)
    members = trajectories_of([*groups, *reused])
    ends = [0, 8, 16, 20, 24]
    first = [*range(*ends[0:2]), *range(*ends[2:4])]
    second = [*range(*ends[1:3]), *range(*ends[3:5])]
    for packed, places in zip(learner.pack(groups, reused=reused), (first, second), strict=True):
        found = packed.batch.advantages.reshape(-1)[packed.spots]
        wanted = np.concatenate([advantages[p] for p in places])[packed.sources]
        np.testing.assert_array_equal(found, wanted)
        assert packed.trained_tokens == sum(members[p].loss_mask.sum() for p in places)


def test_the_critics_values_go_to_whom_they_are_of() -> None:
    """Returns are made of values: cut into two updates or not, each token's is the same."""
    groups, reused = make_groups(37), make_groups(38, groups=2)
    keys = {"adv_estimator": "gae", "critic": critic()}
    found = []
    for size in (None, 8):
        learner = make_learner(minibatch_size=size, **keys)
        own = learner.state.aux_state
        head = jax.tree.map(lambda x: x + 0.05 * jnp.cos(x), own["critic"])  # so that not every value is 0
        learner.state = replace(learner.state, aux_state=own | {"critic": head})
        packed = learner.pack(groups, reused=reused)
        found.append(np.sort(np.concatenate([p.batch.returns.reshape(-1)[p.spots] for p in packed])))
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)


def test_groups_of_a_minibatch_are_counted_from_its_own_first() -> None:
    """What is summed over groups has room for as many as a minibatch holds trajectories."""
    learner = make_learner(minibatch_size=4, reuse_ratio=0.2)
    minibatches, _ = learner._preparation.minibatches(
        make_groups(37), 0, learner.state.params, learner.state.aux_state, reused=make_groups(38, groups=1)
    )
    numbers = [m.group_of[: len(m.places)].tolist() for m in minibatches]
    assert numbers == [[0] * 4, [0] * 4, [0] * 4, [0] * 4 + [1] * 4]


@pytest.mark.parametrize("again", [False, True])
def test_what_the_policy_was_fitted_to_is_not_doubted(again: bool) -> None:
    def shifted(t: Trajectory) -> Trajectory:
        logprobs = t.logprobs.copy()
        logprobs[t.loss_mask] = np.asarray(logprobs_of(make_params(), t)) - 1
        return replace(t, logprobs=logprobs)

    groups = [replace(g, trajectories=tuple(map(shifted, g.trajectories))) for g in make_groups(39)]
    metrics = make_learner().train(groups, reused=make_groups(40, groups=1) if again else ())
    assert metrics["policy/ratio_drift"] == (not again)
