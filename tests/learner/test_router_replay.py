"""Recorded experts in the learner."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

from rljax.learner.objective import PolicyObjective
from rljax.learner.packing import pack
from rljax.learner.routes import with_routes
from rljax.learner.rows import RowShape
from rljax.learner.train_step import loss_and_gradient
from rljax.models.cache import prefill
from rljax.models.common.architecture import Experts
from rljax.models.common.hardware import CPU
from tests.learner.made_up import make_config, make_groups, relative_error, trajectories_of
from tests.learner.test_routers import ROUTED, params

pytestmark = pytest.mark.slow

assert ROUTED.experts is not None
LAYERS, EXPERTS = ROUTED.num_layers, ROUTED.experts
PICKED = EXPERTS.per_token
TRAJECTORIES = trajectories_of(make_groups(1, groups=2))


def packed(routes: Any, experts: Experts = EXPERTS) -> Any:
    """A packed batch of trajectories of which each has the experts that ``routes`` makes of it."""
    given = [dataclasses.replace(t, routes=routes(t)) for t in TRAJECTORIES]
    advantages = [np.where(t.loss_mask, 1.0, 0.0).astype(np.float32) for t in given]
    batch = pack(given, advantages, np.full(len(given), 0.01), [RowShape(48, 4, 1)])
    return with_routes(batch, given, LAYERS, experts)


def all_to(*experts: int) -> Any:
    """Every token is sent to these experts."""
    return lambda t: np.tile(np.array(experts, np.int16), (len(t.token_ids), LAYERS, 1))


def by_number(trajectory: Any) -> np.ndarray:
    return np.tile(trajectory.token_ids[:, None, None], (1, LAYERS, PICKED)).astype(np.int16)


@functools.cache
def recorded() -> dict[bytes, np.ndarray]:
    """What an engine with the learner's weights records of each trajectory, by its tokens;
    `tests.sampler.test_engine_experts` holds it to others.
    """
    layers = [jax.tree.map(lambda w, n=n: w[n], params()["layers"]) for n in range(LAYERS)]
    tokens = [t.token_ids for t in TRAJECTORIES]
    lengths = np.array([len(row) for row in tokens], np.int32)
    rows = np.stack([np.pad(row, (0, lengths.max() - len(row))) for row in tokens])
    *_, routes = jax.jit(prefill, static_argnums=1)(params() | {"layers": layers}, ROUTED, rows, lengths)
    return {row.tobytes(): np.asarray(of_row)[: len(row)] for row, of_row in zip(tokens, routes, strict=True)}


def engines(trajectory: Any) -> np.ndarray:
    return recorded()[trajectory.token_ids.tobytes()]


@functools.cache
def compiled(mode: str) -> Any:
    objective = PolicyObjective(make_config(algorithm={"router_replay": mode}), ROUTED, CPU)
    return jax.jit(functools.partial(loss_and_gradient, objective))


def update(mode: str, routes: Any) -> tuple[float, Any, dict[str, float]]:
    batch = packed(routes)
    loss, gradient, metrics = compiled(mode)(params(), batch.batch, batch.microbatches)
    return float(loss), gradient, {name: float(value) for name, value in metrics.items()}


def test_experts_stand_beside_their_tokens_and_padding_has_none() -> None:
    batch = packed(by_number, dataclasses.replace(EXPERTS, count=ROUTED.vocab_size)).batch
    there = batch.segment_ids > 0
    np.testing.assert_array_equal(batch.routes[there], np.tile(batch.token_ids[there][:, None, None], (LAYERS, PICKED)))
    assert (batch.routes[~there] == -1).all()
    assert (packed(lambda t: None).batch.routes == -1).all()


def test_an_engine_with_the_same_weights_has_sent_every_token_to_the_same_experts() -> None:
    assert update("record", engines)[2]["router/routes_differing"] == 0
    for moved in (lambda t: np.roll(engines(t), 1, axis=0), lambda t: engines(t)[:, ::-1]):
        assert update("record", moved)[2]["router/routes_differing"] > 0.1


def test_unknown_experts_change_nothing_and_recorded_ones_are_compared_alone() -> None:
    plain = update("record", lambda t: None)
    assert np.isnan(plain[2]["router/routes_differing"]), "none were recorded, which is not agreement"
    for other in (update("replay", lambda t: None), update("replay", engines), update("record", all_to(0, 1))):
        assert other[0] == pytest.approx(plain[0], rel=1e-6)
        assert relative_error(other[1]["layers"]["router"], plain[1]["layers"]["router"]) < 1e-5
    assert other[2]["router/routes_differing"] > 0.2


def test_choices_that_sampled_tokens_came_of_are_counted_where_engines_recorded_them() -> None:
    """Of each trajectory the engine has lost one layer at the last token, which nothing was sampled from, and all at
    the prompt's first; of one trajectory also what its last token was sampled from.
    """

    def lossy(trajectory: Any) -> np.ndarray:
        kept = engines(trajectory).copy()
        kept[-1, 0], kept[0] = -1, -1
        kept[-2] = -1 if trajectory is TRAJECTORIES[0] else kept[-2]
        return kept

    shares = [update("replay", routes)[2]["router/routes_known"] for routes in (engines, lambda t: None)]
    assert shares == [1.0, 0.0]
    trained = sum(int(t.loss_mask.sum()) for t in TRAJECTORIES)
    assert all(not t.loss_mask[1] and t.loss_mask[-1] for t in TRAJECTORIES)
    assert update("replay", lossy)[2]["router/routes_known"] == pytest.approx(1 - 1 / trained, rel=1e-6)


def test_replayed_experts_are_those_that_compute() -> None:
    _, gradient, metrics = update("replay", all_to(0, 1))
    down = np.asarray(gradient["layers"]["expert_down"])
    assert (down[:, 2:] == 0).all()
    assert (np.abs(down[:, :2]).max(axis=(2, 3)) > 0).all()
    assert metrics["router/load_min"] == 0
    assert np.abs(np.asarray(gradient["layers"]["router"])).max() > 0


@pytest.mark.parametrize("expert", [-2, EXPERTS.count])
def test_an_expert_that_the_model_has_not_is_refused(expert: int) -> None:
    def routes(trajectory: Any) -> np.ndarray:
        made = all_to(0, 1)(trajectory)
        made[3, 1, 0] = expert
        return made

    said = (
        rf"routes of member 0: token 3 goes to expert {expert} of layer 1; the model has experts 0 to \d; they are an"
    )
    with pytest.raises(ValueError, match=said):
        packed(routes)


def test_routes_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"routes of member 0: 1 layers, 2 experts a token; the model has 2 layers, 2"):
        packed(lambda t: np.zeros((len(t.token_ids), 1, 2), np.int16))
