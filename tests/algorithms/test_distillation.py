"""The advantage of teachers: by hand, and its gradient against that of the KL, computed by torch, on stale data too."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from rljax.algorithms.distillation import distilled
from rljax.algorithms.inputs import LossInputs
from rljax.algorithms.registry import policy_losses

VOCABULARY = 7


def inputs(logprobs: Any, behaviour: Any, advantages: Any = 0.0, mask: Any = True) -> LossInputs:
    logprobs = jnp.asarray(logprobs, jnp.float32)

    def full(value: Any) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(value), logprobs.shape)

    return LossInputs(
        logprobs=logprobs,
        behaviour_logprobs=full(behaviour),
        advantages=full(advantages),
        rewards=full(0.0),
        mask=full(mask),
        segment_ids=full(1),
        turn_ids=full(0),
        updates=jnp.zeros((), jnp.int32),
    )


def test_the_advantage_by_hand() -> None:
    """w·(logπ_k − logπ) of two teachers beside the reward's 0.5; a masked place keeps what it has."""
    given = inputs([[-1.0, -2.0, -3.0]], -9.0, 0.5, [[True, True, False]])
    teachers = {"a": jnp.array([[-0.5, -4.0, -1.0]]), "b": jnp.array([[-2.0, -1.0, -1.0]])}
    weights = {"a": jnp.array([[2.0, 2.0, 2.0]]), "b": jnp.array([[0.0, 3.0, 3.0]])}
    found = distilled(given, teachers, weights, None)
    # 0.5 + 2·(−0.5+1) + 0·(−2+1); 0.5 + 2·(−4+2) + 3·(−1+2)
    np.testing.assert_allclose(found.advantages, [[1.5, -0.5, 0.5]])
    np.testing.assert_allclose(distilled(given, teachers, weights, 0.4).advantages, [[0.4, -0.4, 0.4]], rtol=1e-6)


def test_a_token_that_a_teacher_never_says_has_a_finite_advantage_and_a_demonstration_none() -> None:
    given = inputs([[-1.0, -1.0]], -1.0)
    given = jax.tree.map(lambda x: x, given)
    expert = LossInputs(**{**vars(given), "expert": jnp.array([[False, True]])})
    found = distilled(expert, {"a": jnp.array([[-jnp.inf, -jnp.inf]])}, {"a": jnp.ones((1, 2))}, None)
    np.testing.assert_allclose(found.advantages, [[-99.0, 0.0]])


def expected_gradient(variant: str, keys: Any, policy: Any, behaviour: Any, teachers: Any, weights: Any) -> np.ndarray:
    """Gradient of the mean loss over draws of the behaviour policy, by the sum over the whole vocabulary."""
    loss = policy_losses.bound(variant, keys)

    def mean_loss(logits: jax.Array) -> jax.Array:
        given = inputs(jax.nn.log_softmax(logits)[None], np.log(behaviour)[None])
        taught = {name: jnp.asarray(np.log(p), jnp.float32)[None] for name, p in teachers.items()}
        each = {name: jnp.full((1, VOCABULARY), weights[name]) for name in teachers}
        return jnp.sum(loss(distilled(given, taught, each, None))[0][0] * behaviour)

    return np.asarray(jax.grad(mean_loss)(jnp.asarray(policy, jnp.float32)))


def kl_gradient(policy: Any, teachers: Any, weights: Any) -> np.ndarray:
    """Gradient of Σ_k w_k·KL(π ‖ π_k) with respect to π's logits, by torch."""
    logits = torch.tensor(policy, dtype=torch.float64, requires_grad=True)
    student = torch.distributions.Categorical(logits=logits)
    total = sum(
        weights[name] * torch.distributions.kl_divergence(student, torch.distributions.Categorical(torch.tensor(p)))
        for name, p in teachers.items()
    )
    total.backward()
    return logits.grad.numpy()


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum()


@pytest.mark.parametrize("stale", [0.0, 0.7])
@pytest.mark.parametrize(
    ("variant", "keys"),
    [("tis", {"high": 1e6}), ("cispo", {"clip_high": 1e6}), ("ppo", {"clip_low": 1.0, "clip_high": 1e6})],
)
def test_the_expected_gradient_is_that_of_the_reverse_kl_also_on_stale_data(
    variant: str, keys: dict[str, float], stale: float
) -> None:
    """With a ratio that no bound cuts, whoever sampled: the policy itself, or one that it has moved away from."""
    rng = np.random.default_rng(5)
    policy, teachers = rng.normal(size=VOCABULARY), {n: softmax(2 * rng.normal(size=VOCABULARY)) for n in "ab"}
    behaviour, weights = softmax(policy + stale * rng.normal(size=VOCABULARY)), {"a": 1.0, "b": 0.5}
    found = expected_gradient(variant, keys, policy, behaviour, teachers, weights)
    np.testing.assert_allclose(found, kl_gradient(policy, teachers, weights), rtol=2e-4, atol=2e-6)


def test_at_the_teacher_nothing_moves_whoever_sampled() -> None:
    """With the recorded log-probabilities in the place of the policy's own it would: AsyncOPD's finding."""
    rng = np.random.default_rng(6)
    policy = rng.normal(size=VOCABULARY)
    behaviour = softmax(policy + rng.normal(size=VOCABULARY))
    given = ("tis", {"high": 1e6}, policy, behaviour, {"a": softmax(policy)}, {"a": 1.0})
    np.testing.assert_allclose(expected_gradient(*given), 0.0, atol=1e-6)
