"""The regression forms of OPMD have, exactly, the gradient of the objectives that they stand for."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljax.algorithms.registry import aggregations, policy_losses
from rljax.config.schema import AlgorithmConfig
from tests.algorithms.loss_batches import Cells, random_cells

GROUPS, MEMBERS, LONGEST, STEP = 3, 4, 6, 1e-5
N = GROUPS * MEMBERS


def gaps(logprobs: np.ndarray, reference: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Σ logπ − logπ_ref of each trajectory, by group and member."""
    return np.array([sum((x - r)[m]) for x, r, m in zip(logprobs, reference, mask, strict=True)]).reshape(
        GROUPS, MEMBERS
    )


def pairwise(gap: np.ndarray, rewards: np.ndarray, tau: float) -> float:
    """Mean over groups of 1/(2τK²)·Σ_{i<j} (a_i − a_j)², pair by pair."""
    a = rewards - tau * gap
    squares = [(of[i] - of[j]) ** 2 for of in a for j in range(MEMBERS) for i in range(j)]
    return sum(squares) / (2 * tau * MEMBERS**2) / GROUPS


def kimi(gap: np.ndarray, rewards: np.ndarray, tau: float) -> float:
    """Mean over trajectories of 1/(2τ)·(R − τ·log Ẑ − τ·g)²."""
    log_z = np.log(np.mean(np.exp(rewards / tau), axis=1, keepdims=True))
    return float(np.mean((rewards - tau * log_z - tau * gap) ** 2)) / (2 * tau)


@pytest.mark.parametrize("name", ["opmd_pairwise", "opmd_kimi"])
@settings(max_examples=10, derandomize=True, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), tau=st.sampled_from([0.1, 1.0, 5.0]))
def test_the_gradient_is_that_of_the_objective_over_whole_groups(name: str, seed: int, tau: float) -> None:
    rng = np.random.default_rng(seed)
    mask = np.arange(LONGEST) < rng.integers(1, LONGEST + 1, N)[:, None]
    logprobs = -rng.exponential(1.0, mask.shape)
    reference = logprobs + rng.normal(0, 0.5, mask.shape)
    rewards = rng.normal(0, 1, (GROUPS, MEMBERS))
    objective = {"opmd_pairwise": pairwise, "opmd_kimi": kimi}[name]
    expected = np.zeros(mask.shape)
    for place in zip(*np.nonzero(mask), strict=True):
        up, down = logprobs.copy(), logprobs.copy()
        up[place] += STEP
        down[place] -= STEP
        values = [objective(gaps(moved, reference, mask), rewards, tau) for moved in (up, down)]
        expected[place] = (values[0] - values[1]) / (2 * STEP)

    baseline = rewards.mean(1) if name == "opmd_pairwise" else tau * np.log(np.exp(rewards / tau).mean(1))
    gap = gaps(logprobs, reference, mask)

    def by_token(values: np.ndarray) -> np.ndarray:
        return np.broadcast_to(values.reshape(N, 1), mask.shape)

    cells = dataclasses.replace(
        random_cells(0),
        logprobs=logprobs,
        behaviour_logprobs=rng.normal(-3, 1, mask.shape),  # data of any policy
        advantages=by_token(rewards - baseline[:, None]),
        rewards=by_token(rewards),
        mask=mask,
        sequence_gap=by_token(gap),
        group_gap=by_token(np.repeat(gap.mean(1), MEMBERS)),
    )
    np.testing.assert_allclose(
        gradient(cells, AlgorithmConfig(pg_variant=name, loss={"tau": tau})), expected, 1e-6, 1e-8
    )


def gradient(cells: Cells, config: AlgorithmConfig) -> np.ndarray:
    weights = aggregations.bound("seq-mean-token-sum")(cells.mask.sum(1), LONGEST)

    def total(logprobs: jax.Array) -> jax.Array:
        loss, _ = policy_losses.bound(config.pg_variant, config.loss)(cells.inputs(logprobs))
        return jnp.sum(jnp.where(jnp.asarray(cells.mask), loss * weights[:, None], 0.0))

    with jax.enable_x64(True):
        return np.asarray(jax.grad(total)(jnp.asarray(cells.logprobs)))


@pytest.mark.parametrize(("name", "share"), [("opmd_pairwise", 0.5), ("opmd_kimi", 1.0)])
def test_gaps_are_constants_even_where_they_come_from_the_policy(name: str, share: float) -> None:
    """The factor is not differentiated: gradient −(A − τ·g), and for pairs g less the group's, here half of it."""
    cells, config = random_cells(1, density=1.0), AlgorithmConfig(pg_variant=name, loss={"tau": 0.5})

    def total(logprobs: jax.Array) -> jax.Array:
        gap = jnp.broadcast_to(jnp.sum(logprobs, axis=1, keepdims=True), logprobs.shape)
        inputs = cells.inputs(logprobs, sequence_gap=gap, group_gap=gap / 2)
        return jnp.sum(policy_losses.bound(name, config.loss)(inputs)[0])

    with jax.enable_x64(True):
        found = np.asarray(jax.grad(total)(jnp.asarray(cells.logprobs)))
    gap = cells.logprobs.sum(1, keepdims=True)
    np.testing.assert_allclose(found, -(cells.advantages - 0.5 * share * gap), rtol=1e-12)
