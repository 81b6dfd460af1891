"""The learner: trains the policy on groups, scores tokens, exports weights."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from rljax.algorithms.credit_assignment import CreditAssignment
from rljax.algorithms.kl import adapted
from rljax.algorithms.registry import check_names, token_advantages
from rljax.algorithms.shaping import RunningMoments
from rljax.config.schema import Config
from rljax.learner.critic import ValueObjective
from rljax.learner.export import ExportedWeights, Exporter
from rljax.learner.metrics import NONFINITE, describe, reverse_kl, step_metrics
from rljax.learner.objective import DTYPES, PolicyObjective, Progress
from rljax.learner.packing import Batch, PackedBatch
from rljax.learner.prepare import Minibatch, Preparation
from rljax.learner.programs import Program, step_programs
from rljax.learner.ratio_metrics import expects_mean_one, ratio_drift
from rljax.learner.scoring import make_probe_score, probe_inputs
from rljax.learner.sharding import make_mesh, select_devices
from rljax.learner.state import TrainState, copies_reference, updates_per_step, whole_models
from rljax.learner.teachers import AskedTeacher, StoredTeacher, place_teachers
from rljax.learner.trainable import TrainableModel, abstract_base, read_base
from rljax.learner.unwise import warn_of_objective
from rljax.models.adapter import abstract_trained, init_adapter
from rljax.models.common.architecture import Architecture
from rljax.models.common.hardware import Hardware
from rljax.models.common.heap import map_large
from rljax.models.common.params import Params
from rljax.models.common.placing import readable
from rljax.models.common.value_head import critic_params
from rljax.models.hf_names import place_hf, to_hf
from rljax.observe.parts import UPDATE, part
from rljax.trajectory import Group, Trajectory
from sidecar.channels.versions import AdapterInfo
from sidecar.fingerprint import fingerprint
from sidecar.stored import Tensor

if TYPE_CHECKING:  # a learner that only computes needs neither ledger nor database
    from rljax.learner.checkpoints import Checkpoints

log = logging.getLogger(__name__)

Metrics = dict[str, Any]
_NO_UPDATE = {"loss": 0.0, "grad_norm": 0.0, NONFINITE: 0.0}
_CRITIC_NAMES = {
    "loss": "critic/loss",
    "grad_norm": "critic/grad_norm",
    "learning_rate": "critic/learning_rate",
    NONFINITE: "critic/nonfinite_updates",
}


class NonFiniteError(RuntimeError):
    """Raised when too many updates in a row had a loss or gradient that is not finite."""


class Learner:
    """Owns the training state on its mesh. One thread uses it at a time.

    Args:
        config: of the run.
        architecture: of the model.
        params: float32 weights to start from, numpy or JAX; copied. None: there is no state until `load` or `restore`.
        devices: of the mesh; None: what ``learner.devices`` names.
        teachers: of ``algorithm.distill``, by name; those that are stored are read onto the mesh at once.

    Attributes:
        base: frozen weights below an adapter, in the dtype that is computed in; None without an adapter.
        base_fingerprint: of the model that they are, once they are loaded; see `fingerprint`.

    Raises:
        ConfigError: a device, or a name in ``config.algorithm``, is not there.
    """

    def __init__(
        self,
        config: Config,
        architecture: Architecture,
        params: Params | None = None,
        devices: Sequence[jax.Device] | None = None,
        teachers: Mapping[str, StoredTeacher | AskedTeacher] | None = None,
    ) -> None:
        check_names(config.algorithm)
        warn_of_objective(config)
        map_large()
        self.config = config
        self.architecture = architecture
        mesh_config = config.learner.mesh
        self.mesh = make_mesh(mesh_config, devices or select_devices(config.learner.devices, mesh_config.size))
        run = (config, architecture, Hardware.of(self.mesh, config.learner.sequence_parallel))
        self.objective = PolicyObjective(*run)
        estimator = config.algorithm.adv_estimator
        criticised = "values" in token_advantages.needs(estimator, config.algorithm.advantage)
        critic = ValueObjective(*run) if criticised else None
        placed = place_teachers(config, self.mesh, run[-1], teachers or {})
        self._preparation = Preparation(config, self.objective, critic, self.mesh, placed)
        trained = abstract_trained(architecture, config.model.lora)
        self._policy = TrainableModel(self.objective, config.policy_optimizer, trained, self.mesh)
        self._critic = None
        if critic is not None:
            optimizer, own = config.algorithm.critic.optimizer, critic_params(trained, architecture.hidden_size)
            self._critic = TrainableModel(critic, optimizer, own, self.mesh)
        self._exporter = Exporter(config, architecture)
        self._abstract_base = abstract_base(config, architecture, self.mesh)
        self.base: Params | None = None
        self.base_fingerprint: str | None = None
        self.state: TrainState
        if params is not None:
            self.load(to_hf(params, architecture)) if self._abstract_base else self._begin(self._policy.place(params))
        self._nonfinite_in_a_row = 0
        self._warned_of_drift = self._warned_of_untrained_step = False

    def load(self, tensors: Mapping[str, Tensor], adapter: Params | None = None) -> None:
        """Begins with a model's weights by Hugging Face name, read one by one onto the mesh; see `place_hf`.

        Args:
            tensors: of the model, or of the frozen base of what is trained.
            adapter: float32 numpy arrays to go on from; None: one that changes nothing yet.
        """
        if self._abstract_base is None:
            return self._begin(place_hf(tensors, self.architecture, self._policy.shardings[0]))
        self.load_base(tensors)
        adapter = adapter or init_adapter(self.architecture, self.config.model.lora, self.config.seed)
        return self._begin(self._policy.place(adapter))

    def load_base(self, tensors: Mapping[str, Tensor]) -> None:
        """Reads the frozen weights below an adapter, which no checkpoint holds; nothing where all are trained."""
        if self._abstract_base is not None:
            self.base_fingerprint = fingerprint(tensors)
            self.base = read_base(tensors, self.config, self.architecture, self.mesh)

    def _begin(self, placed: Params) -> None:
        def critic(trained: TrainableModel) -> tuple[Params, Any]:
            params = trained.place(critic_params(placed, self.architecture.hidden_size))
            return params, trained.init(params)

        own = self._aux_state(lambda: self._as_reference(placed), critic)
        self.state = TrainState(placed, self._policy.init(placed), 0, own)

    def _aux_state(
        self, reference: Callable[[], Params], critic: Callable[[TrainableModel], tuple[Params, Any]]
    ) -> dict[str, Any]:
        algorithm = self.config.algorithm
        found: dict[str, Any] = {}
        if copies_reference(self.config):
            found["reference"] = reference()
        if algorithm.kl.where != "none":
            found["kl_coef"] = np.asarray(algorithm.kl.coef, np.float64)
        if "running" in (algorithm.norm_mean, algorithm.norm_std):
            found["moments"] = _array(RunningMoments())
        if self._critic is not None:
            found["critic"], found["critic_opt_state"] = critic(self._critic)
        return found

    @property
    def _as_reference(self) -> Callable[[Params], Params]:
        program: Callable[[Params], Params] = self._policy.copy_as(DTYPES[self.config.model.dtype])
        return program

    @property
    def params(self) -> Params:
        """Parameters of the policy, as forward passes read them."""
        return self.objective.whole(self.state.params, self.base)

    @property
    def steps(self) -> int:
        """Number of batches trained."""
        return self.state.step

    @property
    def abstract_state(self) -> TrainState:
        """Shapes, dtypes and shardings of the state, for `Checkpoints.restore`."""
        params, opt_state = self._policy.abstract
        dtype = DTYPES[self.config.model.dtype]
        own = self._aux_state(lambda: jax.tree.map(lambda x: x.update(dtype=dtype), params), lambda c: c.abstract)
        return TrainState(params, opt_state, 0, own)

    def programs(self, probe: int, prompts: Int[np.ndarray, " prompts"] | None = None) -> list[Program]:
        """Lists all that a run compiles from now on: what trains, by `step_programs`, and what publishes a version with
        a probe of so many tokens. Which are likely follows from the lengths of some ``prompts``, in tokens.
        """
        state, base = self.abstract_state, self._abstract_base
        params = self.objective.whole(state.params, base)
        probed = probe_inputs(self.objective, np.zeros(probe, np.int32))
        return [
            *self._exporter.programs(params, state.params, self.config.resolved_sync_dtype),
            Program("probe", self._score, (params, *probed), publishes=True),
            *step_programs(self.config, self._preparation, self._policy, self._critic, state, base, prompts),
        ]

    def restore(self, checkpoints: Checkpoints, step: int) -> None:
        """Restores the state of a committed checkpoint, which any mesh may have written; the base of an adapter comes
        by `load_base`.

        The present state, if there is one, is freed first: two never have to fit. If this raises, the learner can only
        restore another checkpoint, or `load`.

        Raises:
            DamagedCheckpointError: the checkpoint is not what was saved.
            CheckpointError: the checkpoint is not there or is not of this model.
        """
        if hasattr(self, "state"):
            jax.tree.map(lambda x: x.delete() if isinstance(x, jax.Array) else None, self.state)
        self.state = checkpoints.restore(step, self.abstract_state)
        self._nonfinite_in_a_row = 0

    def train(
        self,
        groups: Sequence[Group],
        *,
        reused: Sequence[Group] = (),
        demonstrations: Sequence[Trajectory] = (),
        before: Callable[[Sequence[Batch]], None] = lambda batches: None,
    ) -> dict[str, float]:
        """Trains one batch, in `ppo_epochs` passes over minibatches cut in the batch's order.

        The same data from the same state give the same bits (promise P13). A minibatch in which no token is trained
        makes no update; the batch counts all the same.

        Args:
            groups: the batch, whole groups.
            reused: groups that were trained before, and are now again beside it.
            demonstrations: what is imitated beside it; their loss is that of the tokens marked `LossInputs.expert`.
            before: called with the minibatches as they were packed, before any program has run on one.

        Returns:
            Metrics by name, averaged over the updates where there are several.

        Raises:
            NonFiniteError: ``learner.max_nonfinite_steps`` updates in a row, this step's included, were not finite.
            ValueError: a trajectory does not fit a row.
        """
        minibatches, given = self._minibatches(groups, reused, demonstrations, before)
        kl_coef = np.asarray(self.state.aux_state.get("kl_coef", 0.0), np.float32)
        total = np.asarray(self.config.max_steps * updates_per_step(self.config), np.float32)
        progress = Progress(np.asarray(self.steps, np.int32), np.zeros((), np.int32), kl_coef, total)
        placed = [(m, self._preparation.placed(m)) for m in minibatches if m.packed.microbatches]
        updates, of_critic = [], []
        with part(UPDATE):
            for _ in range(self.config.algorithm.ppo_epochs):
                for minibatch, unsummed in placed:
                    batch = self._preparation.summed(unsummed, minibatch, self.params)
                    of_critic += self._update_critic(batch, minibatch.microbatches, progress)
                    updates += self._update_policy(batch, minibatch.microbatches, progress)
            fetched, fetched_critic = jax.device_get(readable((updates, of_critic)))  # the one wait for the device
        self._count_nonfinite(fetched + fetched_critic)
        metrics = _NO_UPDATE | step_metrics(fetched)
        metrics |= {_CRITIC_NAMES.get(name, name): value for name, value in step_metrics(fetched_critic).items()}
        self._finish_step(metrics, given, sum(len(group.trajectories) for group in (*groups, *reused)))
        metrics |= reverse_kl(minibatches, self._preparation.teachers)
        held = describe(minibatches)
        # The policy has been fitted to the data of later passes and to reused groups: their mean is no longer 1.
        first_pass = {} if reused else step_metrics(fetched[: len(placed)])
        metrics["policy/ratio_drift"] = float(self._ratio_drift(first_pass, held["tokens/trained"]))
        self._warn_of_untrained_step(held["tokens/trained"])
        return {**metrics, **held}

    def _minibatches(
        self,
        groups: Sequence[Group],
        reused: Sequence[Group],
        demonstrations: Sequence[Trajectory],
        before: Callable[[Sequence[Batch]], None] = lambda batches: None,
    ) -> tuple[list[Minibatch], CreditAssignment]:
        return self._preparation.minibatches(
            groups,
            self.steps,
            self.params,
            whole_models(self.config, self.state.aux_state, self.base, self.objective),
            reused=reused,
            demonstrations=demonstrations,
            before=before,
        )

    def _ratio_drift(self, metrics: Mapping[str, float], tokens: float) -> bool:
        if not expects_mean_one(self.config) or not ratio_drift(metrics, tokens):
            return False
        if not self._warned_of_drift:
            self._warned_of_drift = True
            log.warning(
                "step %d: the importance ratios have mean %.3g, where 1 is expected: the log-probabilities recorded "
                "with the samples are not those that they were drawn by; see the metric policy/ratio_drift",
                self.steps,
                metrics["policy/ratio_mean"],
            )
        return True

    def _warn_of_untrained_step(self, tokens: float) -> None:
        if tokens or self._warned_of_untrained_step or self.config.imitates_alone:
            return
        self._warned_of_untrained_step = True
        log.warning(
            "step %d trained no sampled token: every response was empty, or left out by a mask (algorithm.overlong, "
            "algorithm.drop_staler_than); see the metric batch/masked_fraction",
            self.steps,
        )

    def _update_policy(self, batch: Batch, microbatches: np.int32, progress: Progress) -> list[Metrics]:
        if self._critic is not None and self.steps < self.config.algorithm.critic.warmup_steps:
            return []
        state = self.state
        trained = (state.params, state.opt_state)
        params, opt_state, metrics = self._policy.update(*trained, batch, microbatches, progress, self.base)
        self.state = replace(state, params=params, opt_state=opt_state)
        return [metrics]

    def _update_critic(self, batch: Batch, microbatches: np.int32, progress: Progress) -> list[Metrics]:
        if self._critic is None:
            return []
        own = self.state.aux_state
        params, opt_state, metrics = self._critic.update(
            own["critic"], own["critic_opt_state"], batch, microbatches, progress, self.base
        )
        self.state = replace(self.state, aux_state=own | {"critic": params, "critic_opt_state": opt_state})
        return [metrics]

    def _finish_step(self, metrics: dict[str, float], given: CreditAssignment, trajectories: int) -> None:
        """Ends the step: counts it and updates the KL coefficient, the running moments and the reference policy."""
        kl, own = self.config.algorithm.kl, dict(self.state.aux_state)
        step = self.state.step + 1
        if "moments" in own:
            own["moments"] = _array(given.moments)
        if "kl_coef" in own:
            metrics["policy/kl_coef"] = float(own["kl_coef"])
            measured = metrics.get("policy/kl_reference")
            if kl.target is not None and measured is not None:
                coef = adapted(float(own["kl_coef"]), measured, kl.target, kl.horizon, trajectories)
                own["kl_coef"] = np.asarray(coef, np.float64)
        if "reference" in own and kl.refresh_steps is not None and step % kl.refresh_steps == 0:
            own["reference"] = self._as_reference(self.state.params)
        self.state = replace(self.state, step=step, aux_state=own)

    def score(self, token_ids: Int[np.ndarray, " time"]) -> Float[np.ndarray, " time-1"]:
        """Computes the log-probability of every token but the first, at temperature 1, untruncated (promise P7); where
        routes are replayed, along those of `spread_routes`.
        """
        scores = self._score(self.params, *probe_inputs(self.objective, token_ids))
        return np.asarray(readable(scores))[0, : len(token_ids) - 1]

    def export(self, dtype: str) -> Mapping[str, jax.Array]:
        """Returns the tensors of a version, ``fp32`` or ``bf16``: made as they are read, before an update."""
        return self.weights(dtype)

    def weights(self, dtype: str) -> ExportedWeights:
        """Returns the tensors of a version as this process makes them: of several all are to make the same."""
        return self._exporter.tensors(self.params, self.state.params, dtype)

    @property
    def adapter_info(self) -> AdapterInfo | None:
        """Base and scale of a version that is an adapter alone; None where it is a whole model."""
        return self._exporter.adapter_info(self.base_fingerprint)

    @functools.cached_property
    def _score(self) -> Any:
        return make_probe_score(self.objective)

    def pack(
        self, groups: Sequence[Group], *, reused: Sequence[Group] = (), demonstrations: Sequence[Trajectory] = ()
    ) -> list[PackedBatch]:
        """Packs the minibatches of a batch, as numpy arrays: advantages by group, weights by
        the counts of each minibatch.
        """
        minibatches, _ = self._minibatches(groups, reused, demonstrations)
        return [minibatch.packed for minibatch in minibatches]

    def place(self, batch: Batch) -> Batch:
        """Puts a packed batch on the mesh."""
        return self._preparation.place(batch)

    def logprobs(self, batch: Batch, microbatches: np.int32) -> Float[Array, "slot row place"]:
        """Computes the log-probabilities of a placed batch's trained targets, in nats; 0 where nothing is trained."""
        return self._preparation.logprobs(self.params, batch, microbatches)

    def _count_nonfinite(self, updates: Sequence[Mapping[str, np.ndarray]]) -> None:
        limit = self.config.learner.max_nonfinite_steps
        for metrics in updates:
            self._nonfinite_in_a_row = self._nonfinite_in_a_row + 1 if metrics[NONFINITE] else 0
            if self._nonfinite_in_a_row >= limit:
                raise NonFiniteError(
                    f"learner: {limit} updates in a row had a loss or gradient that is not finite, the last in step "
                    f"{self.steps} (loss {metrics['loss']}, gradient norm {metrics['grad_norm']}); they were skipped. "
                    "Lower learner.optimizer.learning_rate, or look at the rewards of that batch"
                )


def _array(moments: RunningMoments) -> np.ndarray:
    return np.array(astuple(moments), np.float64)
