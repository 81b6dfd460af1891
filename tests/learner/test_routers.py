"""Losses and metrics of routers in an update."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

from rljax.learner.learner import Learner
from rljax.learner.objective import PolicyObjective
from rljax.learner.packing import pack
from rljax.learner.rows import RowShape
from rljax.learner.train_step import loss_and_gradient
from rljax.models.common.architecture import Experts
from rljax.models.common.hardware import CPU
from rljax.models.common.params import Params
from tests.learner.made_up import ARCHITECTURE, make_config, make_groups, make_params, relative_error, trajectories_of

pytestmark = pytest.mark.slow

ROUTED = dataclasses.replace(ARCHITECTURE, family="qwen3_moe", experts=Experts(4, 2, 16))
TRAJECTORIES = trajectories_of(make_groups(1, groups=2))


@functools.cache
def params() -> Params:
    return make_params(architecture=ROUTED)


@functools.cache
def compiled(aux: float = 0.0, z: float = 0.0) -> Any:
    config = make_config(algorithm={"router_aux_loss_coef": aux, "router_z_loss_coef": z})
    return jax.jit(functools.partial(loss_and_gradient, PolicyObjective(config, ROUTED, CPU)))


def update(shape: RowShape, aux: float = 0.0, z: float = 0.0) -> tuple[float, Any, dict[str, float]]:
    advantages = [np.where(t.loss_mask, 1.0, 0.0).astype(np.float32) for t in TRAJECTORIES]
    packed = pack(TRAJECTORIES, advantages, np.full(len(TRAJECTORIES), 0.01), [shape])
    loss, gradient, metrics = compiled(aux, z)(params(), packed.batch, packed.microbatches)
    return float(loss), gradient, {name: float(value) for name, value in metrics.items()}


ONE = RowShape(24, 8, 1)
"""All trajectories in one microbatch, each in a row of its own."""


def test_what_routers_add_to_the_loss_is_what_they_log_times_its_weight() -> None:
    loss, gradient, metrics = update(ONE)
    with_both, other, logged = update(ONE, aux=0.5, z=0.25)
    added = 0.5 * metrics["router/aux_loss"] + 0.25 * metrics["router/z_loss"]
    assert with_both - loss == pytest.approx(added, rel=1e-4)
    assert logged["router/aux_loss"] == pytest.approx(metrics["router/aux_loss"])
    assert relative_error(other["layers"]["router"], gradient["layers"]["router"]) > 0.01


def test_padding_is_counted_neither_in_losses_nor_in_the_load() -> None:
    _, _, metrics = update(ONE)
    _, _, longer = update(RowShape(72, 8, 1))
    names = {name for name in metrics if name.startswith("router/")}
    assert names == {f"router/{name}" for name in ("aux_loss", "z_loss", "load_max", "load_min", "unused")}
    for name in names:
        assert longer[name] == pytest.approx(metrics[name], rel=1e-5), name
    assert 0 < metrics["router/load_min"] < 1 < metrics["router/load_max"] <= 2, "an expert gets each token once"


def test_microbatches_change_the_balance_alone() -> None:
    """Which is each microbatch's own."""
    _, _, metrics = update(ONE)
    _, _, several = update(RowShape(24, 2, 4))
    for name in ("z_loss", "load_max", "load_min", "unused"):
        assert several[f"router/{name}"] == pytest.approx(metrics[f"router/{name}"], rel=1e-5), name
    one, parts = metrics["router/aux_loss"], several["router/aux_loss"]
    assert one <= parts < 1.5 * one, "parts are less even than the whole, and count by their tokens"


def test_a_loss_of_balance_makes_the_use_of_experts_even() -> None:
    def trained(aux: float) -> float:
        config = make_config(algorithm={"router_aux_loss_coef": aux}, optimizer={"learning_rate": 1e-3})
        learner = Learner(config, ROUTED, params())
        return [learner.train(make_groups(1))["router/aux_loss"] for _ in range(8)][-1]

    assert trained(1.0) < trained(0.0) - 0.01


def test_a_dense_model_logs_nothing_of_routers() -> None:
    learner = Learner(make_config(), ARCHITECTURE, make_params())
    assert not [name for name in learner.train(make_groups(0)) if name.startswith("router/")]
