"""Routers against numpy and transformers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from rljax.models.common.architecture import Experts
from rljax.models.common.experts.routing import RouterSums, balance_loss, route, router_sums, z_loss

RNG = np.random.default_rng(0)
X, ROUTER = RNG.standard_normal((2, 9, 8)).astype(np.float32), RNG.standard_normal((8, 6)).astype(np.float32)
COUNTED = np.arange(9) < np.array([[9], [4]])  # the second row ends in padding


@pytest.mark.parametrize("normalised", [False, True])
def test_a_token_gets_its_likeliest_experts_with_their_probabilities(normalised: bool) -> None:
    found = route(X, ROUTER, Experts(6, 3, 4, normalised))
    logits = X.astype(np.float64) @ ROUTER
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    chosen = np.argsort(-logits, axis=-1)[..., :3]
    gates = np.take_along_axis(probabilities, chosen, -1)
    gates = gates / gates.sum(-1, keepdims=True) if normalised else gates
    np.testing.assert_array_equal(found.chosen, chosen)
    np.testing.assert_allclose(found.gates, gates, rtol=1e-5)


def test_the_router_computes_in_float32() -> None:
    x, router = X.astype(jnp.bfloat16), ROUTER.astype(jnp.bfloat16)
    found = route(x, router, Experts(6, 2, 4))
    assert (found.logits.dtype, found.gates.dtype) == (jnp.float32, jnp.float32)
    np.testing.assert_allclose(found.logits, np.asarray(x, np.float64) @ np.asarray(router, np.float64), rtol=1e-5)


def test_the_gates_gradient_reaches_the_logits_of_all_experts() -> None:
    """Were it taken of the chosen ones' alone, a softmax over all would not be what is differentiated."""
    experts = Experts(6, 2, 4, normalised=False)
    gradient = jax.grad(lambda router: route(X, router, experts).gates[0, 0, 0])(ROUTER)
    logits = X[0, 0].astype(np.float64) @ ROUTER
    p = np.exp(logits) / np.exp(logits).sum()
    best = logits.argmax()
    expected = np.outer(X[0, 0], p[best] * (np.eye(6)[best] - p))
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def sums_of_layers(layers: int, experts: Experts) -> tuple[RouterSums, list[np.ndarray]]:
    routers = [ROUTER * (1 + layer) for layer in range(layers)]
    each = [router_sums(route(X, router, experts), COUNTED) for router in routers]
    return jax.tree.map(lambda *x: jnp.stack(x), *each), [X.reshape(-1, 8) @ router for router in routers]


def test_the_losses_are_those_of_transformers_and_of_the_formula_without_padding() -> None:
    experts = Experts(6, 2, 4)
    sums, logits = sums_of_layers(3, experts)
    mask = torch.from_numpy(COUNTED.astype(np.int64))
    expected = [load_balancing_loss_func((torch.from_numpy(layer),), 6, 2, mask).item() for layer in logits]
    assert float(balance_loss(sums)) == pytest.approx(np.mean(expected), rel=1e-5)
    counted = np.stack(logits)[:, COUNTED.ravel()].astype(np.float64)
    squares = np.log(np.exp(counted).sum(-1)) ** 2
    assert float(z_loss(sums, jnp.float32(13))) == pytest.approx(squares.mean(), rel=1e-5)
    np.testing.assert_array_equal(np.asarray(sums.load).sum(-1), [26, 26, 26])
    assert float(balance_loss(sums_of_layers(1, experts)[0])) >= 2 - 1e-5, "even use has the least, k"


def test_the_gradient_of_balance_is_that_of_transformers() -> None:
    router = torch.from_numpy(ROUTER).requires_grad_()
    logits = torch.from_numpy(X).reshape(-1, 8) @ router
    load_balancing_loss_func((logits,), 6, 2, torch.from_numpy(COUNTED.astype(np.int64))).backward()
    found = jax.grad(
        lambda w: balance_loss(jax.tree.map(lambda x: x[None], router_sums(route(X, w, Experts(6, 2, 4)), COUNTED)))
    )(ROUTER)
    np.testing.assert_allclose(found, router.grad.numpy(), atol=1e-6)


def test_a_replayed_choice_has_the_gates_of_the_live_logits_and_an_unknown_one_is_the_routers() -> None:
    live = route(X, ROUTER, Experts(6, 2, 4))
    replayed = np.full((2, 9, 2), -1, np.int16)
    replayed[0, 1], replayed[1, 2], replayed[1, 3] = (4, 0), (0, 5), (2, -1)
    found = route(X, ROUTER, Experts(6, 2, 4), replayed=jnp.asarray(replayed))
    known = (replayed != -1).all(-1)
    assert known.sum() == 2
    np.testing.assert_array_equal(found.chosen, np.where(known[..., None], replayed, live.chosen))
    logits = X.astype(np.float64) @ ROUTER
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    gates = np.take_along_axis(probabilities, np.asarray(found.chosen), -1)
    np.testing.assert_allclose(found.gates, gates / gates.sum(-1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(found.likeliest, live.chosen)


def test_a_router_learns_from_a_choice_that_it_would_not_make() -> None:
    """Gates gathered from what the top k leave of the logits would be 0 there, and so would their gradient."""
    least = np.argmin(X @ ROUTER, axis=-1)[..., None].astype(np.int16)

    def gate(router: jax.Array) -> jax.Array:
        return jnp.sum(route(X, router, Experts(6, 1, 4, False), replayed=jnp.asarray(least)).gates)

    def expected(router: jax.Array) -> jax.Array:
        return jnp.sum(jnp.min(jax.nn.softmax(X @ router), axis=-1))

    np.testing.assert_allclose(jax.grad(gate)(ROUTER), jax.grad(expected)(ROUTER), atol=1e-5)
    assert np.abs(jax.grad(gate)(ROUTER)).max() > 0.01


def test_choices_that_differ_are_counted_where_they_were_recorded_and_are_no_padding() -> None:
    found = route(X, ROUTER, Experts(6, 2, 4))
    live = np.asarray(found.chosen)
    recorded = live[..., ::-1].copy()  # in another order they are the same
    others = next(e for e in range(6) if e not in live[0, 0])
    recorded[0, 0, 1] = others
    recorded[0, 1] = -1
    recorded[1, 8] = (live[1, 8] + 1) % 6  # padding
    sums = router_sums(found, jnp.asarray(COUNTED), jnp.asarray(recorded, jnp.int16))
    assert (float(sums.recorded), float(sums.differing)) == (2 * (9 + 4 - 1), 1)
    nothing = router_sums(found, jnp.asarray(COUNTED))
    assert (float(nothing.recorded), float(nothing.differing)) == (0, 0)
