"""The learner: trains the policy on groups, scores tokens, exports weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from rljax.algorithms.credit import batch_advantages
from rljax.algorithms.registry import aggregations, check_names
from rljax.config import Config
from rljax.learner.checkpoints import Checkpoints
from rljax.learner.packing import Batch, PackedBatch, pack, row_shapes, trained_counts
from rljax.learner.sharding import (
    batch_sharding,
    constrain_activations,
    make_mesh,
    parameter_shardings,
    select_devices,
)
from rljax.learner.state import TrainState, make_optimizer, updates_per_step
from rljax.learner.train_step import DTYPES, Objective, make_update
from rljax.models.architecture import Architecture
from rljax.models.hf_names import to_hf
from rljax.models.logprobs import token_logprobs
from rljax.models.transformer import Params, hidden_states
from rljax.trajectory import Group

_SHORTEST_SCORE = 16
_LAST = "learning_rate"
_LARGEST = "policy/ratio_max"
_SUMMED = "policy/nonfinite_updates"


class NonFiniteError(RuntimeError):
    """Too many updates in a row had a loss or gradient that is not finite."""


class Learner:
    """Owns the training state on its mesh. One thread uses it at a time.

    Args:
        config: of the run.
        architecture: of the model.
        params: float32 weights to start from, numpy or JAX; copied.
        devices: of the mesh; None: what ``learner.devices`` names.

    Raises:
        ConfigError: a device, or a name in ``config.algorithm``, is not there.
    """

    def __init__(
        self,
        config: Config,
        architecture: Architecture,
        params: Params,
        devices: Sequence[jax.Device] | None = None,
    ) -> None:
        check_names(config.algorithm)
        self.config = config
        self.architecture = architecture
        mesh_config = config.learner.mesh
        self.mesh = make_mesh(mesh_config, devices or select_devices(config.learner.devices, mesh_config.size))
        optimizer = make_optimizer(config.learner.optimizer, config.max_steps * updates_per_step(config))
        self._shardings = (
            parameter_shardings(params, self.mesh),
            parameter_shardings(jax.eval_shape(optimizer.init, params), self.mesh),
        )
        # Training donates these buffers: they must not be the caller's.
        placed = jax.tree.map(
            lambda x, s: jax.device_put(
                np.asarray(x, np.float32) if isinstance(x, np.ndarray) else x, s, may_alias=False
            ),
            params,
            self._shardings[0],
        )
        opt_state = jax.jit(optimizer.init, out_shardings=self._shardings[1])(placed)
        self.state = TrainState(placed, opt_state, 0)
        self.objective = Objective(config, architecture, constrain_activations(self.mesh))
        self._update = make_update(self.objective, self._shardings)
        self._aggregate = aggregations.get(config.algorithm.aggregation)
        self._minibatch = config.algorithm.minibatch_size or config.rollout_batch_size
        self._shapes = row_shapes(
            config.row_tokens, config.learner.rows_per_microbatch, self._minibatch, mesh_config.sequence
        )
        self._nonfinite_in_a_row = 0

    @property
    def steps(self) -> int:
        """Batches trained."""
        return self.state.step

    @property
    def abstract_state(self) -> TrainState:
        """Shapes, dtypes and shardings of the state, for `Checkpoints.restore`."""
        arrays = (self.state.params, self.state.opt_state)
        params, opt_state = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), arrays)
        return TrainState(params, opt_state, 0)

    def restore(self, checkpoints: Checkpoints, step: int) -> None:
        """Goes on from a committed checkpoint, which any mesh may have written.

        The present state is given up first: two never have to fit. If this raises, the learner cannot be used.

        Raises:
            CheckpointError: the checkpoint is not there or is not of this model.
        """
        abstract = self.abstract_state
        jax.tree.map(lambda x: x.delete(), (self.state.params, self.state.opt_state))
        self.state = checkpoints.restore(step, abstract)
        self._nonfinite_in_a_row = 0

    def train(self, groups: Sequence[Group]) -> dict[str, float]:
        """One step: trains a batch, in `ppo_epochs` passes over minibatches cut in the batch's order.

        The same groups from the same state give the same bits (promise P13). A minibatch in which no token is trained
        makes no update; the batch counts all the same.

        Args:
            groups: the batch, whole groups.

        Returns:
            Metrics by name, averaged over the updates where there are several.

        Raises:
            NonFiniteError: ``learner.max_nonfinite_steps`` updates in a row, this step's included, were not finite.
            ValueError: a trajectory does not fit a row.
        """
        packed = self.pack(groups)
        placed = [(self.place(p.batch), np.int32(p.microbatches)) for p in packed if p.microbatches]
        params, opt_state = self.state.params, self.state.opt_state
        updates = []
        for _ in range(self.config.algorithm.ppo_epochs):
            for batch, microbatches in placed:
                params, opt_state, metrics = self._update(params, opt_state, batch, microbatches)
                self.state = TrainState(params, opt_state, self.state.step)
                updates.append(metrics)
        fetched = jax.device_get(updates)  # the step's one wait for the device
        self._count_nonfinite(fetched)
        self.state = replace(self.state, step=self.state.step + 1)
        return {**_summarise(fetched), **_describe(packed)}

    def score(self, token_ids: Int[np.ndarray, " time"]) -> Float[np.ndarray, " time-1"]:
        """Log-probability of every token but the first, given those before: temperature 1, untruncated (promise P7)."""
        length = max(_SHORTEST_SCORE, 1 << (len(token_ids) - 1).bit_length())
        padded = np.zeros((2, 1, length), np.int32)
        padded[0, 0, : len(token_ids)] = token_ids
        padded[1, 0, : len(token_ids)] = 1
        return np.asarray(self._score(self.state.params, padded[0], padded[1]))[0, : len(token_ids) - 1]

    def export(self, dtype: str) -> dict[str, jax.Array]:
        """The weights under Hugging Face names, as ``fp32`` or ``bf16`` arrays that training never touches again."""
        return self._export[dtype](self.state.params)

    @functools.cached_property
    def _export(self) -> Mapping[str, Any]:
        def exported(params: Params, dtype: Any) -> dict[str, Array]:
            # jit hands an output that is an input through as it is, and training would donate it: hence the copy.
            return {name: jnp.copy(x).astype(dtype) for name, x in to_hf(params, self.architecture).items()}

        return {name: jax.jit(functools.partial(exported, dtype=dtype)) for name, dtype in DTYPES.items()}

    @functools.cached_property
    def _score(self) -> Any:
        model = self.config.model

        @jax.jit
        def score(params: Params, token_ids: Int[Array, "1 time"], segments: Int[Array, "1 time"]) -> Array:
            computed = self.objective.cast(params)
            positions = jnp.arange(token_ids.shape[1])[None]
            hidden = hidden_states(
                computed, self.architecture, token_ids, positions, segments, dtype=DTYPES[model.dtype], remat="none"
            )
            targets = jnp.roll(token_ids, -1, axis=1)
            return token_logprobs(computed, self.architecture, hidden, targets, 1.0, chunk=model.logprob_chunk)[0]

        return score

    def pack(self, groups: Sequence[Group]) -> list[PackedBatch]:
        """The minibatches of a batch, as numpy arrays: advantages by group, weights by the counts of each minibatch."""
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        advantages = batch_advantages(groups, self.config.algorithm)
        packed = []
        for start in range(0, len(trajectories), self._minibatch):
            cut = slice(start, start + self._minibatch)
            weights = self._aggregate(trained_counts(trajectories[cut]), self.config.model.max_response_tokens)
            packed.append(pack(trajectories[cut], advantages[cut], weights, self._shapes))
        return packed

    def place(self, batch: Batch) -> Batch:
        """A packed batch on the mesh."""
        sharding = batch_sharding(batch.mask.shape, self.mesh)
        return jax.device_put(batch, jax.tree.map(lambda _: sharding, batch))

    def _count_nonfinite(self, updates: Sequence[Mapping[str, np.ndarray]]) -> None:
        limit = self.config.learner.max_nonfinite_steps
        for metrics in updates:
            self._nonfinite_in_a_row = self._nonfinite_in_a_row + 1 if metrics[_SUMMED] else 0
            if self._nonfinite_in_a_row >= limit:
                raise NonFiniteError(
                    f"learner: {limit} updates in a row had a loss or gradient that is not finite, the last in step "
                    f"{self.steps} (loss {metrics['loss']}, gradient norm {metrics['grad_norm']}); they were skipped. "
                    "Lower learner.optimizer.learning_rate, or look at the rewards of that batch"
                )


def _summarise(updates: Sequence[Mapping[str, np.ndarray]]) -> dict[str, float]:
    if not updates:
        return {"loss": 0.0, "grad_norm": 0.0, _SUMMED: 0.0}
    reduce: dict[str, Callable[..., Any]] = {_LAST: lambda values: values[-1], _LARGEST: max, _SUMMED: sum}
    return {name: float(reduce.get(name, np.mean)([m[name] for m in updates])) for name in updates[0]}


def _describe(packed: Sequence[PackedBatch]) -> dict[str, float]:
    return {
        "batch/trained_tokens": float(sum(p.trained_tokens for p in packed)),
        "batch/microbatches": float(sum(p.microbatches for p in packed)),
        "batch/fill": float(np.mean([p.fill for p in packed])) if packed else 1.0,
    }
