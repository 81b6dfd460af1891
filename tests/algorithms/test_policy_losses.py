import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms.inputs import LossInputs
from rljax.algorithms.registry import policy_losses
from rljax.config.schema import AlgorithmConfig

CASES = {
    "vanilla": AlgorithmConfig(pg_variant="vanilla"),
    "ppo": AlgorithmConfig(pg_variant="ppo"),
    "ppo-asymmetric": AlgorithmConfig(pg_variant="ppo", loss={"clip_low": 0.1, "clip_high": 0.4}),
    "ppo-dual": AlgorithmConfig(pg_variant="ppo", loss={"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0}),
    "tis": AlgorithmConfig(pg_variant="tis", loss={"low": 0.5, "high": 2.0}),
    "tis-default": AlgorithmConfig(pg_variant="tis"),
}


def make_inputs(logprobs: object, behaviour: object, advantages: object, mask: object = None) -> LossInputs:
    arrays = [jnp.atleast_2d(jnp.asarray(x, jnp.float32)) for x in (logprobs, behaviour, advantages)]
    shape = arrays[0].shape
    return LossInputs(
        *arrays,
        rewards=jnp.zeros(shape),
        mask=jnp.ones(shape, bool) if mask is None else jnp.atleast_2d(jnp.asarray(mask)),
        segment_ids=jnp.ones(shape, jnp.int32),
        turn_ids=jnp.zeros(shape, jnp.int32),
        updates=jnp.zeros((), jnp.int32),
    )


def by_hand(config: AlgorithmConfig, logprob: float, behaviour: float, advantage: float) -> tuple[float, float]:
    """Loss of one token and its derivative by logπ, in Python floats, written case by case."""
    ratio, keys = math.exp(logprob - behaviour), config.loss
    if config.pg_variant == "vanilla":
        return -advantage * logprob, -advantage
    if config.pg_variant == "tis":
        weight = keys.low if ratio < keys.low else keys.high if ratio > keys.high else ratio
        return -weight * advantage * logprob, -weight * advantage
    if advantage > 0 and ratio > 1 + keys.clip_high:
        return -(1 + keys.clip_high) * advantage, 0.0
    if advantage < 0 and ratio < 1 - keys.clip_low:
        return -(1 - keys.clip_low) * advantage, 0.0
    if advantage < 0 and keys.dual_clip is not None and ratio > keys.dual_clip:
        return -keys.dual_clip * advantage, 0.0
    return -ratio * advantage, -ratio * advantage


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_against_float64(case: str) -> None:
    config = CASES[case]
    rng = np.random.default_rng(0)
    behaviour = -rng.exponential(1.0, (4, 64))
    logprobs = behaviour + rng.normal(0, 0.8, behaviour.shape)
    advantages = rng.normal(0, 1, behaviour.shape) * (rng.random(behaviour.shape) > 0.1)
    loss = policy_losses.bound(config.pg_variant, config.loss)

    def total(values: jax.Array) -> jax.Array:
        return jnp.sum(loss(make_inputs(values, behaviour, advantages))[0])

    got = loss(make_inputs(logprobs, behaviour, advantages))[0]
    gradient = jax.grad(total)(jnp.asarray(logprobs, jnp.float32))
    cells = [by_hand(config, *args) for args in zip(logprobs.flat, behaviour.flat, advantages.flat, strict=True)]
    expected = np.array(cells).reshape(*behaviour.shape, 2)
    np.testing.assert_allclose(got, expected[..., 0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradient, expected[..., 1], rtol=1e-5, atol=1e-5)


def test_ppo_by_hand() -> None:
    ratios = np.array([1.5, 1.5, 0.5, 0.5, 1.1, 5.0])
    advantages = np.array([2.0, -2.0, 2.0, -2.0, 1.0, -1.0])
    config = AlgorithmConfig(loss={"clip_low": 0.2, "clip_high": 0.3, "dual_clip": 4.0})
    loss, metrics = policy_losses.bound("ppo", config.loss)(make_inputs(np.log(ratios), np.zeros(6), advantages))
    np.testing.assert_allclose(loss[0], [-2.6, 3.0, -1.0, 1.6, -1.1, 4.0], rtol=1e-6)
    np.testing.assert_array_equal(metrics["clip_fraction"][0], [1, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(metrics["dual_clip_fraction"][0], [0, 0, 0, 0, 0, 1])


def test_tis_by_hand() -> None:
    logprobs = np.log([0.5, 0.25, 0.125])
    behaviour = np.log([0.25, 0.25, 0.5])
    config = AlgorithmConfig(pg_variant="tis", loss={"low": 0.5, "high": 1.5})
    loss, metrics = policy_losses.bound("tis", config.loss)(make_inputs(logprobs, behaviour, [1.0, -2.0, 4.0]))
    # weights 1.5 (of 2), 1, 0.5 (of 0.25)
    np.testing.assert_allclose(loss[0], [1.5 * math.log(2), -2 * math.log(4), 2 * math.log(8)], rtol=1e-6)
    np.testing.assert_array_equal(metrics["clip_fraction"][0], [1, 0, 1])


def test_on_policy_all_losses_have_the_gradient_of_vanilla() -> None:
    logprobs, advantages = np.log([0.5, 0.1]), np.array([1.0, -3.0])
    for config in CASES.values():
        loss = policy_losses.bound(config.pg_variant, config.loss)
        gradient = jax.grad(lambda x, f=loss: jnp.sum(f(make_inputs(x, logprobs, advantages))[0]))(
            jnp.asarray(logprobs, jnp.float32)
        )
        np.testing.assert_allclose(gradient, -advantages, rtol=1e-6)


def test_a_masked_token_has_ratio_one_whatever_its_log_probabilities() -> None:
    inputs = make_inputs([-1.0, 200.0, -np.inf], [-1.0, -300.0, 0.0], [1.0, 1.0, 1.0], [True, False, False])
    np.testing.assert_array_equal(inputs.log_ratio, [[0, 0, 0]])
    np.testing.assert_array_equal(inputs.ratio, [[1, 1, 1]])


def test_a_sequence_level_ratio_fits_the_interface() -> None:
    """GSPO (https://arxiv.org/abs/2507.18071) as a user would add it: the segments tell trajectories apart."""

    @policy_losses.register("test-gspo")
    def gspo(inputs: LossInputs) -> tuple[jax.Array, dict[str, jax.Array]]:
        same = (inputs.segment_ids[:, :, None] == inputs.segment_ids[:, None, :]) & inputs.mask[:, None, :]
        mean = jnp.sum(same * inputs.log_ratio[:, None, :], -1) / jnp.maximum(jnp.sum(same, -1), 1)
        return -jnp.exp(mean) * inputs.advantages, {}

    inputs = LossInputs(
        logprobs=jnp.log(jnp.array([[2.0, 8.0, 3.0, 5.0]])),
        behaviour_logprobs=jnp.zeros((1, 4)),
        advantages=jnp.ones((1, 4)),
        rewards=jnp.zeros((1, 4)),
        mask=jnp.array([[True, True, True, False]]),
        segment_ids=jnp.array([[1, 1, 2, 2]]),
        turn_ids=jnp.zeros((1, 4), jnp.int32),
        updates=jnp.zeros((), jnp.int32),
    )
    loss, _ = policy_losses.bound("test-gspo")(inputs)
    np.testing.assert_allclose(loss[0, :3], [-4, -4, -3], rtol=1e-6)  # √(2·8), 3


def test_each_token_of_a_gspo_sequence_moves_by_the_mean_of_its_advantages() -> None:
    """At ratio 1 the sum −Σ s·A_t over 4 tokens has the gradient −ΣA/4 at each; verl's has −A_t."""
    logprobs = jnp.array([[-1.0, -2.0, -0.5, -1.5]])

    def total(by: jax.Array) -> jax.Array:
        inputs = make_inputs(by, logprobs, [[3.0, 1.0, 0.0, -2.0]])
        return policy_losses.bound("gspo", {"clip_low": 0.5, "clip_high": 0.5})(inputs)[0].sum()

    np.testing.assert_allclose(jax.grad(total)(logprobs), [[-0.5] * 4], rtol=1e-6)
