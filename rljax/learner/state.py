"""Training state: parameters, optimizer state and auxiliary state, and the optimizer that updates them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from rljax.algorithms.registry import policy_losses
from rljax.config.schema import Config, OptimizerConfig
from rljax.learner.objective import DTYPES, Objective
from rljax.models.common.params import Params


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """The training state, all of which a checkpoint holds.

    Attributes:
        params: float32 master weights of what is trained: the model, or an adapter of it.
        opt_state: Adam's moments (float32, or bfloat16 as the config says) and the count of updates made, skipped ones
            excluded.
        step: batches trained.
        aux_state: what else the config asks for, by name: ``critic``, its float32 master weights and
            ``critic_opt_state``; ``reference``, a copy of `params` in the dtype that is computed in; ``kl_coef`` and
            ``moments``, float64 numpy arrays, what is adapted from step to step.
    """

    params: Params
    opt_state: Any
    step: int
    aux_state: dict[str, Any] = field(default_factory=dict)


def updates_per_step(config: Config) -> int:
    """Returns the number of optimizer updates that one batch is split into."""
    minibatch = config.algorithm.minibatch_size or config.rollout_batch_size
    return config.algorithm.ppo_epochs * (config.rollout_batch_size // minibatch)


def needs_reference(config: Config) -> bool:
    """Returns whether the run scores tokens by a reference policy."""
    algorithm = config.algorithm
    return algorithm.kl.where != "none" or "reference" in policy_losses.needs(algorithm.pg_variant, algorithm.loss)


def copies_reference(config: Config) -> bool:
    """Returns whether the reference policy is a copy: of an adapter it is the base, which is there, unless the
    reference is renewed.
    """
    renewed = config.algorithm.kl.refresh_steps is not None
    return needs_reference(config) and (config.model.lora.rank is None or renewed)


def whole_models(
    config: Config, aux_state: Mapping[str, Any], base: Params | None, objective: Objective
) -> dict[str, Any]:
    """Returns an auxiliary state, abstract or not, with ``reference`` and ``critic`` as forward passes read them:
    adapters on their base, or for a reference that is no copy the base alone.
    """
    trained = {name: part for name, part in aux_state.items() if name in ("reference", "critic")}
    found = dict(aux_state) | {name: objective.whole(part, base) for name, part in trained.items()}
    if needs_reference(config) and not copies_reference(config):
        found["reference"] = base
    return found


def learning_rate(config: OptimizerConfig, total_updates: int | Float[Array, ""]) -> optax.Schedule:
    """Returns the schedule of the learning rate by update, counted from 0.

    Rises linearly to the peak over the first `warmup_steps` updates (peak/warmup at n = 0, so that none is wasted),
    then stays, or falls in a straight line or half a cosine to `min_lr_ratio` of the peak at `total_updates`.
    """
    warmup, floor = config.warmup_steps, config.min_lr_ratio

    def rate(count: Int[Array, ""] | int) -> Float[Array, ""]:
        falling = jnp.maximum(total_updates - warmup, 1)
        progress = jnp.clip((jnp.asarray(count, jnp.float32) - warmup) / falling, 0.0, 1.0)
        shapes = {
            "constant": jnp.ones_like(progress),
            "linear": 1 - progress,
            "cosine": 0.5 * (1 + jnp.cos(jnp.pi * progress)),
        }
        share = floor + (1 - floor) * shapes[config.schedule]
        return config.peak() * share * jnp.minimum((jnp.asarray(count, jnp.float32) + 1) / max(warmup, 1), 1.0)

    return rate


def make_optimizer(config: OptimizerConfig, total_updates: int | Float[Array, ""]) -> optax.GradientTransformation:
    """Makes AdamW (Loshchilov & Hutter 2019) behind clipping by the global gradient norm."""
    adamw = optax.adamw(
        learning_rate(config, total_updates),
        b1=config.beta1,
        b2=config.beta2,
        eps=config.eps,
        weight_decay=config.weight_decay,
    )
    if "bf16" in (config.mu_dtype, config.nu_dtype):
        adamw = _narrow(adamw, {"mu": DTYPES[config.mu_dtype], "nu": DTYPES[config.nu_dtype]})
    if config.grad_clip is None:
        return adamw
    return optax.chain(optax.clip_by_global_norm(config.grad_clip), adamw)


def _narrow(adamw: optax.GradientTransformation, dtypes: Mapping[str, Any]) -> optax.GradientTransformation:
    """Returns the optimizer with its moments kept in these dtypes and computed with in float32; optax's own
    ``mu_dtype`` decays it in the narrow one.
    """

    def cast(state: Any, dtypes: Mapping[str, Any]) -> Any:
        adam, *rest = state
        moments = {name: optax.tree.cast(getattr(adam, name), dtype) for name, dtype in dtypes.items()}
        return (adam._replace(**moments), *rest)

    def update(gradient: Params, state: Any, params: Params | None = None) -> tuple[Params, Any]:
        changes, moved = adamw.update(gradient, cast(state, dict.fromkeys(dtypes, jnp.float32)), params)
        return changes, cast(moved, dtypes)

    return optax.GradientTransformation(lambda params: cast(adamw.init(params), dtypes), update)


def updates_made(opt_state: Any) -> Int[Array, ""]:
    """Returns the number of updates that an optimizer state of `make_optimizer` has seen."""
    return optax.tree_utils.tree_get_all_with_path(opt_state, "count")[0][1]
