"""Scores of a batch's trained tokens before its updates, computed by forward passes alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, Float, Int

from rljax.algorithms.kl import kl_penalty
from rljax.algorithms.ratios import log_difference
from rljax.learner.objective import DTYPES, Model, trained_mask
from rljax.learner.packing import Batch, Scores
from rljax.learner.train_step import microbatch
from rljax.models.common.experts.routing import spread_routes
from rljax.models.common.hardware import Hardware
from rljax.models.common.logprobs import token_logprobs
from rljax.models.common.ordered import sum_by_row
from rljax.models.common.params import Params
from rljax.models.transformer import routed_hidden_states

_SHORTEST_SCORE = 16
Run = Callable[[Params, Batch], Float[Array, "row place"]]


class Score:
    """Computes the results of ``run`` for each microbatch of a batch, 0 where not trained.

    One forward pass, microbatch by microbatch: neither logits nor activations of the whole batch exist at once.
    """

    def __init__(self, model: Model, run: Run) -> None:
        self._model = model
        self._run = run
        options = model.compiler_options
        self._sharded_as = functools.cache(
            lambda sharding: jax.jit(self.compute, out_shardings=sharding, compiler_options=options)
        )

    def __call__(self, params: Params, batch: Batch, microbatches: np.int32) -> Float[Array, "slot row place"]:
        """Computes them for a placed batch; they are sharded as its `places` are."""
        found: Array = self.program(batch)(params, bare(batch), microbatches)
        return found

    def program(self, batch: Batch) -> Any:
        """Returns the program for such a batch, as `jax.jit` does; it takes the batch `bare`."""
        return self._sharded_as(batch.places.sharding)

    def compute(self, params: Params, batch: Batch, microbatches: Int[Array, ""]) -> Float[Array, "slot row place"]:
        """Computes them for a batch that is `bare`."""
        computed = self._model.cast(params)

        def write(index: Int[Array, ""], scores: Float[Array, "slot row place"]) -> Float[Array, "slot row place"]:
            part = microbatch(batch, index)
            with self._model.precise():
                values = jnp.where(trained_mask(part), self._run(computed, part), 0.0)
            return jax.lax.dynamic_update_index_in_dim(scores, values, index, 0)

        return jax.lax.fori_loop(0, microbatches, write, jnp.zeros(batch.places.shape, jnp.float32))


def bare(batch: Batch) -> Batch:
    """Returns the batch without what a forward pass does not read: one program scores it before and after."""
    return replace(batch, returns=None, teacher_weights={}, scores=Scores())


@functools.partial(jax.jit, static_argnames="estimator")
def behaviour_divergence(
    batch: Batch, reference: Float[Array, "slot row place"], estimator: str
) -> Float[Array, "slot row place"]:
    """Computes `kl_penalty` of the policy that sampled from the reference policy, in nats; 0 where not trained.

    Args:
        batch: with the behaviour log-probabilities.
        reference: of the reference policy, as `Score` gives them.
        estimator: see `kl_penalty`.
    """
    behaviour = jax.vmap(lambda part: part.trained(part.behaviour_logprobs))(batch)
    return jnp.where(trained_mask(batch), kl_penalty(behaviour, reference, estimator), 0.0)


def sequence_gaps(
    logprobs: Float[Array, "slot row place"],
    reference: Float[Array, "slot row place"],
    batch: Batch,
    group_of: Int[Array, " trajectories"],
) -> tuple[Float[Array, "slot row place"], Float[Array, "slot row place"]]:
    """Computes Σ logπ − logπ_ref over each trajectory's trained tokens, and its mean over the members of the group.

    Args:
        logprobs: of the policy, as `Score` gives them.
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

    def summed(values: Float[Array, " values"], ids: Int[Array, " values"], rows: int) -> Float[Array, " rows"]:
        return sum_by_row(ids, values[:, None], rows)[:, 0]

    by_trajectory = summed(gaps.reshape(-1), owners.reshape(-1), count)
    there = (group_of >= 0).astype(jnp.float32)
    groups = jnp.where(group_of >= 0, group_of, count)
    members = summed(there, groups, count + 1)
    of_group = summed(by_trajectory * there, groups, count + 1) / jnp.maximum(members, 1)
    return by_trajectory[owners], of_group[groups][owners]


@functools.cache
def gaps_sharded_as(sharding: NamedSharding, autotuned: bool) -> Any:
    """Returns `sequence_gaps` under jit, with results of that sharding; for ``autotuned`` see `Hardware.repeatable`."""
    options = Hardware.of(sharding.mesh).repeatable(autotuned)
    return jax.jit(sequence_gaps, out_shardings=(sharding, sharding), compiler_options=options)


def probe_inputs(model: Model, token_ids: Int[np.ndarray, " time"]) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Returns what the program of `make_probe_score` takes for a probe: its tokens, 1 where there are some and 0 behind
    them, and the experts that they are sent to (`spread_routes`); None: each to its own.
    """
    count, experts = len(token_ids), model.architecture.experts
    length = max(_SHORTEST_SCORE, 1 << (count - 1).bit_length())
    padded = np.zeros((2, 1, length), np.int32)
    padded[0, 0, :count], padded[1, 0, :count] = token_ids, 1
    if experts is None or not model.config.probe_is_routed:
        return padded[0], padded[1], None
    return padded[0], padded[1], spread_routes(length, model.architecture.num_layers, experts)[None]


def make_probe_score(model: Model) -> Any:
    """Compiles ``score(params, token_ids, segments, routes)``: the log-probability at temperature 1 of the token after
    each place of one row, for what `probe_inputs` returns.
    """
    keys = model.config.model

    @functools.partial(jax.jit, compiler_options=model.compiler_options)
    def score(
        params: Params,
        token_ids: Int[Array, "1 time"],
        segments: Int[Array, "1 time"],
        routes: Int[Array, "1 time layers picked"] | None,
    ) -> Array:
        where, hardware = (model.cast(params), model.architecture), model.hardware
        positions, targets = jnp.arange(token_ids.shape[1])[None], jnp.roll(token_ids, -1, axis=1)
        options: dict[str, Any] = {"dtype": DTYPES[keys.dtype], "hardware": hardware}
        options |= {"routes": routes, "replay": routes is not None}
        with model.precise():
            hidden, _ = routed_hidden_states(*where, token_ids, positions, segments, **options)
            return token_logprobs(*where, hidden, targets, 1.0, chunk=keys.logprob_chunk, hardware=hardware)[0]

    return score
