"""Train step: one optimizer update, as one compiled program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from rljax.config.schema import OptimizerConfig
from rljax.learner.objective import Objective, Progress
from rljax.learner.packing import Batch
from rljax.learner.ratio_metrics import Sums
from rljax.learner.state import learning_rate, make_optimizer, updates_made
from rljax.models.common.params import Params


def microbatch(batch: Batch, index: Int[Array, ""] | int) -> Batch:
    """Selects one microbatch of a batch."""
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), batch)


def loss_and_gradient(
    objective: Objective,
    params: Params,
    batch: Batch,
    microbatches: Int[Array, ""],
    progress: Progress | None = None,
    frozen: Params | None = None,
) -> tuple[Float[Array, ""], Params, Sums]:
    """Computes loss, gradient and metrics of a packed batch, however it is split into microbatches.

    Masters are cast once, before the loop over microbatches, unless the gradient is reduced in their own dtype. The
    loop runs as often as there are filled microbatches, a number that is data and not shape: one program serves every
    batch of the same row length, and padding beyond the last filled microbatch is never computed. Gradients are summed
    in float32. The weights of the tokens carry the global normalisation already, so that microbatches simply add up.

    Args:
        objective: what to differentiate.
        params: float32 masters of what is trained.
        batch: ``[slot, row, time]`` arrays.
        microbatches: filled slots.
        progress: of the training; None: its beginning.
        frozen: the base of an adapter; None where all weights are trained.

    Returns:
        Loss and gradient, float32, and metrics by name.
    """
    tokens = jnp.sum(batch.segment_ids > 0).astype(jnp.float32)
    progress = replace(Progress() if progress is None else progress, tokens=jnp.maximum(tokens, 1))
    computed = objective.differentiated(params)

    def loss_of(trained: Params, part: Batch, index: Int[Array, ""], frozen: Params | None, progress: Progress) -> Any:
        return objective.microbatch_loss(objective.whole(trained, frozen, progress, index), part, progress)

    # Traced once, for its shapes and for the loop: it reads no array but its arguments, and 0 below has the type of the
    # loop's index.
    @functools.partial(jax.jit, inline=True)
    def differentiate(*arguments: Any) -> Any:
        with objective.precise():
            return jax.value_and_grad(loss_of, has_aux=True)(*arguments)

    def add(index: Int[Array, ""], total: tuple[Any, ...]) -> tuple[Any, ...]:
        loss, gradient, sums, largest, trained = total
        part = microbatch(batch, index)
        (part_loss, (part_sums, part_largest)), part_gradient = differentiate(computed, part, index, frozen, progress)
        gradient = jax.tree.map(lambda g, p: g + p.astype(jnp.float32), gradient, part_gradient)
        sums = {name: value + part_sums[name] for name, value in sums.items()}
        largest = {name: jnp.maximum(value, part_largest[name]) for name, value in largest.items()}
        return loss + part_loss, gradient, sums, largest, trained + jnp.sum(part.mask)

    shapes = jax.eval_shape(lambda: differentiate(computed, microbatch(batch, 0), 0, frozen, progress))
    (_, (summed, compared)), _ = shapes
    zero = jnp.zeros((), jnp.float32)
    nothing = (*jax.tree.map(jnp.zeros_like, (summed, compared)), jnp.zeros((), jnp.int32))
    start = (zero, jax.tree.map(jnp.zeros_like, params), *nothing)
    loss, gradient, sums, largest, trained = jax.lax.fori_loop(0, microbatches, add, start)
    return loss, gradient, objective.metrics(sums, trained) | largest


Update = Callable[[Params, Any, Batch, Any, Progress, Params | None], tuple[Params, Any, Sums]]


def make_update(objective: Objective, config: OptimizerConfig, shardings: tuple[Any, Any]) -> Update:
    """Compiles ``update(params, opt_state, batch, microbatches, progress, frozen) -> (params, opt_state, metrics)``.

    Parameters and optimizer state are donated, and what is frozen is not. Where loss or gradient is not finite both are
    returned as they were, and the metric ``policy/nonfinite_updates`` is 1.

    Args:
        objective: what to minimise.
        config: of the optimizer.
        shardings: of parameters and optimizer state.
    """

    def update(
        params: Params,
        opt_state: Any,
        batch: Batch,
        microbatches: Int[Array, ""],
        progress: Progress,
        frozen: Params | None = None,
    ) -> tuple[Params, Any, Sums]:
        # The schedule is made of an argument: a run that goes on for longer runs the same program.
        optimizer = make_optimizer(config, progress.total_updates)
        rate = learning_rate(config, progress.total_updates)
        progress = replace(progress, updates=updates_made(opt_state))
        loss, gradient, metrics = loss_and_gradient(objective, params, batch, microbatches, progress, frozen)
        gradient = jax.lax.with_sharding_constraint(gradient, shardings[0])
        norm = optax.tree.norm(gradient)
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)
        changes, moved_state = optimizer.update(gradient, opt_state, params)
        moved = optax.apply_updates(params, changes)
        metrics |= {
            "loss": loss,
            "grad_norm": norm,
            "learning_rate": rate(updates_made(opt_state)),
            "policy/nonfinite_updates": 1.0 - finite,
        }
        params, opt_state = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old), (moved, moved_state), (params, opt_state)
        )
        return params, opt_state, metrics

    options = objective.compiler_options
    return jax.jit(update, donate_argnums=(0, 1), out_shardings=(*shardings, None), compiler_options=options)
