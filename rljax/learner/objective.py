"""Policy objective: the loss over one microbatch of the policy's tokens, and the forward pass that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rljax.algorithms.correction import correction
from rljax.algorithms.distillation import distilled
from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.kl import kl_penalty
from rljax.algorithms.registry import PolicyLoss, policy_losses
from rljax.config.fields import ConfigError
from rljax.config.schema import Config
from rljax.learner.packing import Batch
from rljax.learner.ratio_metrics import Sums, mean_of, ratio_metrics, ratio_sums
from rljax.learner.routers import router_losses, router_metrics, routes_known
from rljax.models.common.architecture import Architecture
from rljax.models.common.experts.routing import RouterSums
from rljax.models.common.hardware import Hardware
from rljax.models.common.logprobs import token_logprobs
from rljax.models.common.lora import joined
from rljax.models.common.ordered import select_places
from rljax.models.common.params import Params
from rljax.models.transformer import routed_hidden_states
from sidecar.errors import describe

DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16}
_RATIOS, _SAMPLED, _ROUTERS = "ratios/", "sampled/", "router/"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Progress:
    """Progress of training: what a loss may depend on besides parameters and batch; scalars of NumPy, or of JAX.

    Attributes:
        step: batches trained before this one.
        updates: optimizer updates made before this one.
        kl_coef: weight of the divergence from the reference in the loss.
        total_updates: updates that the schedule of the learning rate is made for.
        tokens: in the rows of this update, padding left out.
    """

    step: Int[Any, ""] = field(default_factory=lambda: np.zeros((), np.int32))
    updates: Int[Any, ""] = field(default_factory=lambda: np.zeros((), np.int32))
    kl_coef: Float[Any, ""] = field(default_factory=lambda: np.zeros((), np.float32))
    total_updates: Float[Any, ""] = field(default_factory=lambda: np.zeros((), np.float32))
    tokens: Float[Any, ""] = field(default_factory=lambda: np.ones((), np.float32))


class Objective(Protocol):
    """A loss that is a sum over microbatches."""

    @property
    def compiler_options(self) -> dict[str, bool] | None:
        """Options of XLA for the programs that train: see `Hardware.repeatable`."""
        ...

    def precise(self) -> AbstractContextManager[None]:
        """Returns the context in which its products are traced: see `Hardware.precise`."""
        ...

    def differentiated(self, params: Params) -> Params:
        """Returns what the gradient is taken of: masters in the dtype in which devices add up its parts."""
        ...

    def whole(self, trained: Params, frozen: Params | None, progress: Progress | None = None, index: Any = 0) -> Params:
        """Returns the parameters of the model: what is trained, on what is frozen, None where nothing is; with dropout
        in an update's microbatch of that index, where its progress is given.
        """
        ...

    def microbatch_loss(
        self, params: Params, batch: Batch, progress: Progress
    ) -> tuple[Float[Array, ""], tuple[Sums, Sums]]:
        """Computes the loss that one microbatch adds, and what is logged of it: sums, and values for a maximum.

        The weights of the tokens carry the global normalisation already.
        """
        ...

    def metrics(self, sums: Sums, tokens: Int[Array, ""]) -> Sums:
        """Returns the metrics of an update that trained so many tokens, from the sums over all its microbatches."""
        ...


@dataclass(frozen=True)
class Model:
    """The transformer run over packed rows; see `Config` for the fields' meaning."""

    config: Config
    architecture: Architecture
    hardware: Hardware
    replays: ClassVar[bool] = False
    """True where the routes of a batch are those of its own routers."""

    def cast(self, params: Params) -> Params:
        """Casts parameters to the dtype of the computation."""
        return jax.tree.map(lambda p: p.astype(DTYPES[self.config.model.dtype]), params)

    @property
    def compiler_options(self) -> dict[str, bool] | None:
        """Options of XLA for the programs that train: see `Hardware.repeatable`."""
        return self.hardware.repeatable(self.config.autotunes)

    def precise(self) -> AbstractContextManager[None]:
        """Returns the context in which its products are traced: see `Hardware.precise`."""
        return self.hardware.precise(DTYPES[self.config.model.dtype])

    def differentiated(self, params: Params) -> Params:
        """Returns what the gradient is taken of: masters in the dtype in which devices add up its parts. The model
        casts those that are wider than its computation where it uses them.
        """
        return params if self.config.learner.reduce_dtype == "fp32" else self.cast(params)

    def whole(self, trained: Params, frozen: Params | None, progress: Progress | None = None, index: Any = 0) -> Params:
        """Returns the parameters of the model: an adapter on the frozen base; without one all are trained. An update
        drops some of the adapters' inputs: others in each of its microbatches, the same whenever it is repeated.
        """
        lora = self.config.model.lora
        if frozen is None:
            return trained
        key = None
        if progress is not None and lora.dropout:
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self.config.seed), progress.updates), index)
        return joined(frozen, trained, lora.scale, lora.dropout, key)

    def hidden(self, params: Params, batch: Batch) -> Float[Array, "row place hidden"]:
        """Computes the hidden states at one microbatch's trained places: of the token before each trained target."""
        return self.routed(params, batch)[0]

    def routed(self, params: Params, batch: Batch) -> tuple[Float[Array, "row place hidden"], RouterSums | None]:
        """Computes `hidden`, and what the routers did with the microbatch's tokens; None without experts."""
        model = self.config.model
        hidden, routed = routed_hidden_states(
            params,
            self.architecture,
            batch.token_ids,
            batch.positions,
            batch.segment_ids,
            dtype=DTYPES[model.dtype],
            remat=model.remat,
            hardware=self.hardware,
            shared=batch.shared,
            routes=batch.routes if self.replays else None,
            replay=self.config.algorithm.replays_routes,
        )
        found = select_places(hidden, batch.places) if self.hardware.platform == "gpu" else batch.trained(hidden)
        return found, routed


@dataclass(frozen=True)
class PolicyObjective(Model):
    """The loss of the policy."""

    replays: ClassVar[bool] = True

    @property
    def policy_loss(self) -> PolicyLoss:
        """The loss that the config names, with its keys."""
        return policy_losses.bound(self.config.algorithm.pg_variant, self.config.algorithm.loss)

    def logprobs(self, params: Params, batch: Batch) -> tuple[Float[Array, "row place"], Float[Array, "row place"]]:
        """Computes log-probabilities of one microbatch's trained targets at their temperatures, and
        entropies, float32, in nats.

        The head, a large part of a small model, reads the trained places alone; see `Batch.places`.
        """
        return self._logprobs(params, self.hidden(params, batch), batch)

    def _logprobs(
        self, params: Params, hidden: Float[Array, "row place hidden"], batch: Batch
    ) -> tuple[Float[Array, "row place"], Float[Array, "row place"]]:
        return token_logprobs(
            params,
            self.architecture,
            hidden,
            batch.trained(batch.targets),
            batch.trained(batch.temperature),
            chunk=self.config.model.logprob_chunk,
            hardware=self.hardware,
        )

    def microbatch_loss(
        self, params: Params, batch: Batch, progress: Progress
    ) -> tuple[Float[Array, ""], tuple[Sums, Sums]]:
        """Computes Σ weight · (correction · policy loss − entropy bonus + divergence from the reference), and what the
        microbatch's part of the losses of the routers is.

        The last two are of the policy's own tokens: demonstrations, which are not drawn from it, have the first alone.
        """
        algorithm = self.config.algorithm
        hidden, routed = self.routed(params, batch)
        logprobs, entropy = self._logprobs(params, hidden, batch)
        inputs = loss_inputs(batch, logprobs, progress)
        if batch.scores.teachers:
            weights = {name: batch.trained(values) for name, values in batch.teacher_weights.items()}
            inputs = distilled(inputs, batch.scores.teachers, weights, algorithm.advantage_clip)
        token_loss, metrics = self._token_loss(inputs)
        weight, corrected = correction(inputs, algorithm.correction)
        regularizer = -algorithm.entropy_coef * entropy
        logged = {f"policy/{name}": values for name, values in metrics.items()}
        of_sampled = {"entropy": entropy, **{f"policy/{name}": values for name, values in corrected.items()}}
        if inputs.reference_logprobs is not None:
            penalty = kl_penalty(inputs.logprobs, inputs.reference_logprobs, algorithm.kl.resolved_estimator)
            of_sampled["policy/kl_reference"] = penalty
            if algorithm.kl.where == "loss":
                regularizer = regularizer + progress.kl_coef * penalty
        if batch.routes is not None:
            of_sampled[f"{_ROUTERS}routes_known"] = batch.trained(routes_known(batch.routes))
        token_loss = weight * token_loss + jnp.where(inputs.sampled, regularizer, 0.0)
        loss = masked_sum(token_loss * batch.trained(batch.weights), inputs.mask)
        sums = {name: masked_sum(jax.lax.stop_gradient(values), inputs.mask) for name, values in logged.items()}
        sums |= {
            _SAMPLED + name: masked_sum(jax.lax.stop_gradient(values), inputs.sampled)
            for name, values in of_sampled.items()
        }
        staleness = progress.step - batch.trained(batch.versions)
        ratios = ratio_sums(inputs, staleness, self.config.staleness_bound, metrics.get("clip_fraction"))
        sums |= {_RATIOS + name: value for name, value in ratios.items()}
        if routed is not None:
            router_loss, of_routers = router_losses(routed, progress.tokens, algorithm)
            loss = loss + router_loss
            sums |= {_ROUTERS + name: jax.lax.stop_gradient(value) for name, value in of_routers.items()}
        largest = jnp.max(jnp.where(inputs.sampled, jax.lax.stop_gradient(inputs.ratio), 0.0))
        return loss, (sums, {"policy/ratio_max": largest})

    def _token_loss(self, inputs: LossInputs) -> TokenLoss:
        """Calls the loss that the config names.

        Raises:
            ConfigError: it raised, or what it returned is no loss of each token.
        """
        where = f"algorithm.pg_variant={self.config.algorithm.pg_variant!r}"
        try:
            returned: Any = self.policy_loss(inputs)
        except Exception as error:
            raise ConfigError(f"{where}: {describe(error)}") from error
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)):
            kind = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
            raise ConfigError(
                f"{where}: returned {kind}; write (loss of each token, metrics by name), such as (loss, {{}})"
            )
        token_loss, metrics = returned
        if jnp.shape(token_loss) != inputs.logprobs.shape:
            raise ConfigError(
                f"{where}: returned a loss of shape {jnp.shape(token_loss)}; write one for each token, of the shape of "
                f"logprobs, {inputs.logprobs.shape}: weights and algorithm.aggregation come after it"
            )
        return token_loss, metrics

    def metrics(self, sums: Sums, tokens: Int[Array, ""]) -> Sums:
        """Returns means of what the loss logs over the trained tokens, and of the rest over those of them that were
        sampled; see `ratio_metrics` and `router_metrics`. NaN where there are none.
        """
        of_routers = _within(sums, _ROUTERS)
        sums = {name: value for name, value in sums.items() if not name.startswith(_ROUTERS)}
        ratios, of_sampled = _within(sums, _RATIOS), _within(sums, _SAMPLED)
        sampled = jnp.sum(ratios["tokens"])
        logged = sums.keys() - {_RATIOS + name for name in ratios} - {_SAMPLED + name for name in of_sampled}
        means = {name: sums[name] / jnp.maximum(tokens, 1) for name in sorted(logged)}
        means |= {name: mean_of(value, sampled) for name, value in of_sampled.items()}
        means |= {f"policy/{name}": value for name, value in ratio_metrics(ratios).items()}
        return means | {_ROUTERS + name: value for name, value in router_metrics(of_routers).items()}


def masked_sum(values: Float[Array, "row place"], mask: Bool[Array, "row place"]) -> Float[Array, ""]:
    """Sums over the trained tokens."""
    return jnp.sum(jnp.where(mask, values, 0.0))


def trained_mask(batch: Batch) -> Bool[Array, "row place"]:
    """Returns which of the places of one microbatch are trained; the others pad rows."""
    return batch.places < batch.mask.shape[-1]


def sampled_mask(batch: Batch) -> Bool[Array, "row place"]:
    """Returns `trained_mask` without the demonstrations."""
    mask = trained_mask(batch)
    return mask if batch.expert is None else mask & ~batch.trained(batch.expert)


def _within(sums: Sums, prefix: str) -> Sums:
    return {name.removeprefix(prefix): value for name, value in sums.items() if name.startswith(prefix)}


def loss_inputs(batch: Batch, logprobs: Float[Array, "row place"], progress: Progress) -> LossInputs:
    """Returns the inputs of the loss for one microbatch."""
    mask = trained_mask(batch)
    return LossInputs(
        logprobs=jnp.where(mask, logprobs, 0.0),
        behaviour_logprobs=batch.trained(batch.behaviour_logprobs),
        advantages=batch.trained(batch.advantages),
        rewards=batch.trained(batch.rewards),
        mask=mask,
        segment_ids=batch.trained(batch.segment_ids),
        turn_ids=batch.trained(batch.turns),
        updates=progress.updates,
        proximal_logprobs=batch.scores.proximal_logprobs,
        reference_logprobs=batch.scores.reference_logprobs,
        sequence_gap=batch.scores.sequence_gap,
        group_gap=batch.scores.group_gap,
        expert=None if batch.expert is None else batch.trained(batch.expert),
    )
