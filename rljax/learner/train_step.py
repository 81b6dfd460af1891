"""One optimizer update, as one compiled program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from rljax.algorithms.inputs import LossInputs
from rljax.algorithms.registry import PolicyLoss, policy_losses
from rljax.config import Config
from rljax.learner.packing import Batch
from rljax.learner.state import learning_rate, make_optimizer, updates_made, updates_per_step
from rljax.models.architecture import Architecture
from rljax.models.logprobs import token_logprobs
from rljax.models.transformer import Constrain, Params, hidden_states

DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16}
Sums = dict[str, Float[Array, ""]]


@dataclass(frozen=True)
class Objective:
    """What is minimised, and how the model is run for it; see `Config` for the fields' meaning."""

    config: Config
    architecture: Architecture
    constrain: Constrain

    @property
    def policy_loss(self) -> PolicyLoss:
        """The loss that the config names."""
        return policy_losses.get(self.config.algorithm.pg_variant)

    def cast(self, params: Params) -> Params:
        """Parameters in the dtype that is computed in."""
        return jax.tree.map(lambda p: p.astype(DTYPES[self.config.model.dtype]), params)

    def logprobs(self, params: Params, batch: Batch) -> tuple[Float[Array, "row place"], Float[Array, "row place"]]:
        """Log-probabilities of one microbatch's trained targets at their temperatures, and entropies, float32, in nats.

        The head, a large part of a small model, reads the trained places alone; see `Batch.places`.
        """
        model = self.config.model
        hidden = hidden_states(
            params,
            self.architecture,
            batch.token_ids,
            batch.positions,
            batch.segment_ids,
            dtype=DTYPES[model.dtype],
            remat=model.remat,
            constrain=self.constrain,
        )
        return token_logprobs(
            params,
            self.architecture,
            batch.trained(hidden),
            batch.trained(batch.targets),
            batch.trained(batch.temperature),
            chunk=model.logprob_chunk,
            constrain=self.constrain,
        )

    def microbatch_loss(self, params: Params, batch: Batch) -> tuple[Float[Array, ""], tuple[Sums, Float[Array, ""]]]:
        """The part of the loss that one microbatch adds, sums of metrics over its trained tokens, the largest ratio."""
        logprobs, entropy = self.logprobs(params, batch)
        mask = batch.places < batch.mask.shape[-1]
        inputs = LossInputs(
            logprobs=jnp.where(mask, logprobs, 0.0),
            behaviour_logprobs=batch.trained(batch.behaviour_logprobs),
            advantages=batch.trained(batch.advantages),
            rewards=batch.trained(batch.rewards),
            mask=mask,
            segment_ids=batch.trained(batch.segment_ids),
            turn_ids=batch.trained(batch.turns),
            updates=jnp.zeros((), jnp.int32),
        )
        token_loss, metrics = self.policy_loss(inputs, self.config.algorithm)
        token_loss = token_loss - self.config.algorithm.entropy_coef * entropy
        loss = jnp.sum(jnp.where(mask, token_loss * batch.trained(batch.weights), 0.0))
        ratio, log_ratio = inputs.ratio, inputs.log_ratio
        logged = {
            "entropy": entropy,
            "policy/ratio_mean": ratio,
            # k3 of http://joschu.net/blog/kl-approx.html: KL(behaviour ‖ policy), never negative
            "policy/approx_kl": ratio - 1 - log_ratio,
            **{f"policy/{name}": values for name, values in metrics.items()},
        }
        sums = {name: jnp.sum(jnp.where(mask, jax.lax.stop_gradient(v), 0.0)) for name, v in logged.items()}
        return loss, (sums, jnp.max(jnp.where(mask, ratio, 0.0)))


def loss_and_gradient(
    objective: Objective, params: Params, batch: Batch, microbatches: Int[Array, ""]
) -> tuple[Float[Array, ""], Params, dict[str, Float[Array, ""]]]:
    """Loss, its gradient and metrics of a packed batch, however it is cut.

    Masters are cast once, before the loop over microbatches. The loop runs as often as there are filled microbatches,
    a number that is data and not shape: one program serves every batch of the same row length, and padding beyond the
    last filled microbatch is never computed. Gradients are summed in float32. The weights of the tokens carry the
    global normalisation already, so that microbatches simply add up.

    Args:
        objective: what to differentiate.
        params: float32 masters.
        batch: ``[slot, row, time]`` arrays.
        microbatches: filled slots.

    Returns:
        Loss and gradient, float32, and means over the trained tokens by metric name.
    """
    computed = objective.cast(params)
    differentiate = jax.value_and_grad(objective.microbatch_loss, has_aux=True)

    def slot(index: Int[Array, ""] | int) -> Batch:
        return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), batch)

    def add(index: Int[Array, ""], total: tuple[Any, ...]) -> tuple[Any, ...]:
        loss, gradient, sums, largest, tokens = total
        part = slot(index)
        (part_loss, (part_sums, part_largest)), part_gradient = differentiate(computed, part)
        gradient = jax.tree.map(lambda g, p: g + p.astype(jnp.float32), gradient, part_gradient)
        sums = {name: value + part_sums[name] for name, value in sums.items()}
        return loss + part_loss, gradient, sums, jnp.maximum(largest, part_largest), tokens + jnp.sum(part.mask)

    (_, (names, _)), _ = jax.eval_shape(differentiate, computed, jax.eval_shape(slot, 0))
    zero = jnp.zeros((), jnp.float32)
    start = (zero, jax.tree.map(jnp.zeros_like, params), dict.fromkeys(names, zero), zero, jnp.zeros((), jnp.int32))
    loss, gradient, sums, largest, tokens = jax.lax.fori_loop(0, microbatches, add, start)
    metrics = {name: value / jnp.maximum(tokens, 1) for name, value in sums.items()}
    return loss, gradient, {**metrics, "policy/ratio_max": largest}


Update = Callable[[Params, Any, Batch, Any], tuple[Params, Any, dict[str, Float[Array, ""]]]]


def make_update(objective: Objective, shardings: tuple[Any, Any]) -> Update:
    """Compiles ``update(params, opt_state, batch, microbatches) -> (params, opt_state, metrics)``.

    Parameters and optimizer state are donated. Where loss or gradient is not finite both are returned as they were,
    and the metric ``policy/nonfinite_updates`` is 1.

    Args:
        objective: what to minimise.
        shardings: of parameters and optimizer state.
    """
    config = objective.config
    total = config.max_steps * updates_per_step(config)
    optimizer = make_optimizer(config.learner.optimizer, total)
    rate = learning_rate(config.learner.optimizer, total)

    def update(params: Params, opt_state: Any, batch: Batch, microbatches: Int[Array, ""]) -> tuple[Params, Any, Sums]:
        loss, gradient, metrics = loss_and_gradient(objective, params, batch, microbatches)
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

    return jax.jit(update, donate_argnums=(0, 1), out_shardings=(*shardings, None))
