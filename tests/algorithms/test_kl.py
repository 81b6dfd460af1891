"""KL estimators against float64 numpy, what they are the gradients of, and the adaptive weight."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljax.algorithms.kl import adapted, kl_penalty
from rljax.config.schema import KlConfig

VALUES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "k1": lambda d: d,
    "k2": lambda d: 0.5 * d * d,
    "k3": lambda d: np.expm1(-d) + d,
    "k3_clamped": lambda d: np.minimum(np.expm1(-d) + d, 10),
}
SLOPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "k1": np.ones_like,
    "k2": lambda d: d,
    "k3": lambda d: -np.expm1(-d),
    "k3_clamped": lambda d: np.where(np.expm1(-d) + d < 10, -np.expm1(-d), 0),
}


def computed(logprobs: np.ndarray, reference: np.ndarray, estimator: str) -> tuple[np.ndarray, np.ndarray]:
    with jax.enable_x64(True):
        value = kl_penalty(jnp.asarray(logprobs), jnp.asarray(reference), estimator)
        total = lambda x: jnp.sum(kl_penalty(x, jnp.asarray(reference), estimator))  # noqa: E731
        return np.asarray(value), np.asarray(jax.grad(total)(jnp.asarray(logprobs)))


@pytest.mark.parametrize("estimator", VALUES)
@settings(max_examples=10, derandomize=True, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([0.01, 1.0, 5.0]))
def test_value_and_gradient(estimator: str, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    reference = -rng.exponential(1.0, (3, 10))
    gap = rng.normal(0, scale, reference.shape)
    value, gradient = computed(reference + gap, reference, estimator)
    np.testing.assert_allclose(value, VALUES[estimator](gap), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(gradient, SLOPES[estimator](gap), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("estimator", VALUES)
def test_extremes_are_finite_in_float32(estimator: str) -> None:
    logprobs = jnp.array([-jnp.inf, -1.0, -jnp.inf, -1e5, 0.0, -1.0])
    reference = jnp.array([-1.0, -jnp.inf, -jnp.inf, 0.0, -1e5, -1.0])
    value, gradient = jax.value_and_grad(lambda x: jnp.sum(kl_penalty(x, reference, estimator)))(logprobs)
    assert np.isfinite(value)
    assert np.isfinite(np.asarray(gradient)).all()


def test_k3_of_policies_that_nearly_agree_is_not_rounding_in_float32() -> None:
    gaps = np.array([1e-4, -1e-4, 3e-5, -3e-5, 1e-3], np.float32)
    value = np.asarray(kl_penalty(jnp.asarray(gaps), jnp.zeros(5), "k3"))
    assert (value > 0).all()
    np.testing.assert_allclose(value, gaps.astype(np.float64) ** 2 / 2, rtol=1e-2)  # and rounding


def test_where_the_clamps_are() -> None:
    """By hand: e^20 − 1 − 20 where the reference is far likelier; 30 − 1 + e^−30 where the policy is."""
    logprobs, reference = np.array([-30.0, -1.0, -4.0]), np.array([-1.0, -31.0, 0.0])
    value, gradient = computed(logprobs, reference, "k3")
    np.testing.assert_allclose(value, [np.exp(20) - 21, 29, np.exp(4) - 5], rtol=1e-8)
    np.testing.assert_allclose(gradient, [0, 1, 1 - np.exp(4)], rtol=1e-8)
    value, gradient = computed(logprobs, reference, "k3_clamped")
    np.testing.assert_array_equal(value, [10, 10, 10])
    np.testing.assert_array_equal(gradient, [0, 0, 0])


def test_equal_policies_are_at_distance_0() -> None:
    for estimator in VALUES:
        assert not computed(np.full(3, -2.0), np.full(3, -2.0), estimator)[0].any()


def test_expected_gradients_are_what_the_docstring_says() -> None:
    """Exactly, by summing over three outcomes: parameters are the logits of a softmax policy."""
    logits, reference = np.array([0.3, -1.0, 0.8]), np.log([0.5, 0.2, 0.3])
    policy = np.exp(logits) / np.exp(logits).sum()
    d = np.log(policy) - reference
    # ∂KL(π‖ref)/∂logit_k = π_k·(d_k − KL); ∂KL(ref‖π)/∂logit_k = π_k − ref_k
    reverse, forward = policy * (d - policy @ d), policy - np.exp(reference)
    score = np.eye(3) - policy  # ∂logπ(a)/∂logits
    for estimator, wanted in (("k1", np.zeros(3)), ("k2", reverse), ("k3", forward)):
        slopes = computed(np.log(policy), reference, estimator)[1]
        np.testing.assert_allclose((policy * slopes) @ score, wanted, atol=1e-12)


def test_where_no_estimator_is_named_the_expected_gradient_is_that_of_a_divergence() -> None:
    """As above; of a reward the estimate is a constant and the policy gradient is what moves."""
    logits, reference = np.array([0.3, -1.0, 0.8]), np.log([0.5, 0.2, 0.3])
    policy = np.exp(logits) / np.exp(logits).sum()
    d, score = np.log(policy) - reference, np.eye(3) - policy
    charged = computed(np.log(policy), reference, KlConfig(where="reward").resolved_estimator)[0]
    np.testing.assert_allclose((policy * charged) @ score, policy * (d - policy @ d), atol=1e-12)
    slopes = computed(np.log(policy), reference, KlConfig(where="loss").resolved_estimator)[1]
    np.testing.assert_allclose((policy * slopes) @ score, policy - np.exp(reference), atol=1e-12)
    assert KlConfig(where="reward", estimator="k3").resolved_estimator == "k3"


def test_an_unknown_estimator_is_named() -> None:
    with pytest.raises(ValueError, match="estimator='k4': not one of k1, k2, k3, k3_clamped"):
        kl_penalty(jnp.zeros(1), jnp.zeros(1), "k4")


@pytest.mark.parametrize(
    ("measured", "n", "expected"),
    [
        (1.0, 10, 0.5),  # on target
        (1.1, 10, 0.505),  # e = 0.1
        (0.9, 10, 0.495),
        (7.0, 10, 0.51),  # e clipped to 0.2
        (0.0, 10, 0.49),
        (0.0, 1000, 0.0),  # 1 − 0.2·10 would be negative
        (float("nan"), 10, 0.5),
        (float("inf"), 10, 0.5),
    ],
)
def test_the_weight_adapts(measured: float, n: int, expected: float) -> None:
    assert adapted(0.5, measured, 1.0, 100, n) == pytest.approx(expected)


def test_the_error_is_relative_to_the_target() -> None:
    assert adapted(0.5, 0.021, 0.02, 100, 100) == pytest.approx(0.525)
