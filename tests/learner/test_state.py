import math

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
