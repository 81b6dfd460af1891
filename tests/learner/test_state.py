import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.config.schema import OptimizerConfig
from rljax.learner.state import learning_rate, make_optimizer, updates_made, updates_per_step
from tests.learner.made_up import make_config


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", {0: 0.25, 1: 0.5, 3: 1.0, 4: 1.0, 9: 1.0, 14: 1.0}),
        # falls from 1 at update 4 to 0.1 at update 14
        ("linear", {0: 0.25, 3: 1.0, 4: 1.0, 9: 0.55, 14: 0.1, 99: 0.1}),
        ("cosine", {0: 0.25, 4: 1.0, 9: 0.55, 14: 0.1, 99: 0.1}),
    ],
)
def test_learning_rate_by_hand(schedule: str, expected: dict[int, float]) -> None:
    config = OptimizerConfig(learning_rate=2.0, schedule=schedule, warmup_steps=4, min_lr_ratio=0.1)
    rate = learning_rate(config, total_updates=14)
    for update, share in expected.items():
        assert float(rate(update)) == pytest.approx(2.0 * share, rel=1e-6), update


def test_cosine_a_quarter_of_the_way() -> None:
    rate = learning_rate(OptimizerConfig(learning_rate=1.0, schedule="cosine"), total_updates=100)
    assert float(rate(25)) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)), rel=1e-6)


def test_without_warm_up_the_first_update_is_at_the_peak() -> None:
    assert float(learning_rate(OptimizerConfig(learning_rate=3.0), 10)(0)) == 3.0


def test_updates_of_a_step() -> None:
    assert updates_per_step(make_config()) == 1
    assert updates_per_step(make_config(algorithm={"ppo_epochs": 3, "minibatch_size": 4})) == 12


def test_adamw_with_clipping_against_float64() -> None:
    config = OptimizerConfig(learning_rate=0.1, weight_decay=0.01, beta1=0.8, beta2=0.95, eps=1e-6, grad_clip=1.0)
    optimizer = make_optimizer(config, 100)
    rng = np.random.default_rng(0)
    weights = rng.normal(size=5)
    params = {"w": jnp.asarray(weights, jnp.float32)}
    state = optimizer.init(params)
    first, second = np.zeros(5), np.zeros(5)
    for n in range(1, 6):
        gradient = rng.normal(size=5) * (0.1 if n % 2 else 10)
        changes, state = optimizer.update({"w": jnp.asarray(gradient, jnp.float32)}, state, params)
        params = jax.tree.map(jnp.add, params, changes)
        gradient = gradient / max(1.0, np.linalg.norm(gradient))
        first = 0.8 * first + 0.2 * gradient
        second = 0.95 * second + 0.05 * gradient**2
        direction = first / (1 - 0.8**n) / (np.sqrt(second / (1 - 0.95**n)) + 1e-6)
        weights = weights - 0.1 * (direction + 0.01 * weights)
        assert int(updates_made(state)) == n
    np.testing.assert_allclose(params["w"], weights, rtol=1e-5)


def test_moments_in_bfloat16_are_kept_so_and_computed_with_in_float32() -> None:
    config = OptimizerConfig(learning_rate=0.1, beta1=0.8, beta2=0.95, eps=1e-6, mu_dtype="bf16", nu_dtype="bf16")
    optimizer = make_optimizer(config, 100)
    rng = np.random.default_rng(0)
    weights = rng.normal(size=50)
    params = {"w": jnp.asarray(weights, jnp.float32)}
    state = optimizer.init(params)
    first, second = np.zeros(50), np.zeros(50)
    for n in range(1, 30):
        gradient = rng.normal(size=50) * 0.1  # of norm below 1: not clipped
        changes, state = optimizer.update({"w": jnp.asarray(gradient, jnp.float32)}, state, params)
        params = jax.tree.map(jnp.add, params, changes)
        exact, exact_second = 0.8 * first + 0.2 * gradient, 0.95 * second + 0.05 * gradient**2
        weights = weights - 0.1 * exact / (1 - 0.8**n) / (np.sqrt(exact_second / (1 - 0.95**n)) + 1e-6)
        first, second = (x.astype(jnp.bfloat16).astype(np.float64) for x in (exact, exact_second))
    adam = state[1][0]
    assert (adam.mu["w"].dtype, adam.nu["w"].dtype) == (jnp.bfloat16, jnp.bfloat16)
    # a number next to the middle of two is rounded to either
    assert np.mean(np.asarray(adam.mu["w"], np.float64) == first) > 0.9
    assert np.mean(np.asarray(adam.nu["w"], np.float64) == second) > 0.9
    np.testing.assert_allclose(params["w"], weights, atol=2e-3)
    assert int(updates_made(state)) == 29


@pytest.mark.parametrize("kept", [{"mu_dtype": "bf16"}, {"nu_dtype": "bf16", "beta2": 0.99}])
def test_either_moment_alone_may_be_narrow(kept: dict[str, Any]) -> None:
    adam = make_optimizer(OptimizerConfig(grad_clip=None, **kept), 1).init({"w": jnp.zeros(3)})[0]
    narrow = {name for name, moment in (("mu", adam.mu), ("nu", adam.nu)) if moment["w"].dtype == jnp.bfloat16}
    assert narrow == {next(iter(kept)).removesuffix("_dtype")}
