"""Scores of a batch's trained tokens before its updates, computed by forward passes alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rljax.algorithms.kl import kl_penalty
from rljax.algorithms.ratios import log_difference
from rljax.learner.objective import Model, trained_mask
from rljax.learner.packing import Batch
from rljax.learner.train_step import microbatch
from rljax.models.common.transformer import Params

Score = Callable[[Params, Batch, Any], Float[Array, "slot row place"]]
Run = Callable[[Params, Batch], Float[Array, "row place"]]


def make_score(model: Model, run: Run) -> Score:
    """Compiles ``score(params, batch, microbatches)``: the results of ``run`` for each microbatch, 0 where not trained.

    One forward pass, microbatch by microbatch: neither logits nor activations of the whole batch exist at once.
    """

    @jax.jit
    def score(params: Params, batch: Batch, microbatches: Int[Array, ""]) -> Float[Array, "slot row place"]:
        computed = model.cast(params)

        def write(index: Int[Array, ""], scores: Float[Array, "slot row place"]) -> Float[Array, "slot row place"]:
            part = microbatch(batch, index)
            values = jnp.where(trained_mask(part), run(computed, part), 0.0)
            return jax.lax.dynamic_update_index_in_dim(scores, values, index, 0)

        return jax.lax.fori_loop(0, microbatches, write, jnp.zeros(batch.places.shape, jnp.float32))

    return score


@functools.partial(jax.jit, static_argnames="estimator")
def behaviour_divergence(
    batch: Batch, reference: Float[Array, "slot row place"], estimator: str
) -> Float[Array, "slot row place"]:
    """Computes `kl_penalty` of the policy that sampled from the reference policy, in nats; 0 where not trained.

    Args:
        batch: with the behaviour log-probabilities.
        reference: of the reference policy, as `make_score` gives them.
        estimator: see `kl_penalty`.
    """
    behaviour = jax.vmap(lambda part: part.trained(part.behaviour_logprobs))(batch)
    return jnp.where(trained_mask(batch), kl_penalty(behaviour, reference, estimator), 0.0)


@jax.jit
def sequence_gaps(
    logprobs: Float[Array, "slot row place"],
    reference: Float[Array, "slot row place"],
    batch: Batch,
    group_of: Int[Array, " trajectories"],
) -> tuple[Float[Array, "slot row place"], Float[Array, "slot row place"]]:
    """Computes Σ logπ − logπ_ref over each trajectory's trained tokens, and its mean over the members of the group.

    Args:
        logprobs: of the policy, as `make_score` gives them.
        reference: of the reference policy.
        batch: that they are of.
        group_of: number of each trajectory's group, counted from 0; -1 where there is no trajectory.

    Returns:
        Both at the places of every token of the trajectory.
    """
    count = len(group_of)
    owners = jax.vmap(jax.vmap(lambda values, places: jnp.take(values, places, mode="clip")))(
        batch.owners, batch.places
    )
    gaps = log_difference(logprobs, reference, trained_mask(batch))
    by_trajectory = jax.ops.segment_sum(gaps.reshape(-1), owners.reshape(-1), num_segments=count)
    there = (group_of >= 0).astype(jnp.float32)
    groups = jnp.where(group_of >= 0, group_of, count)
    members = jax.ops.segment_sum(there, groups, num_segments=count + 1)
    of_group = jax.ops.segment_sum(by_trajectory * there, groups, num_segments=count + 1) / jnp.maximum(members, 1)
    return by_trajectory[owners], of_group[groups][owners]
