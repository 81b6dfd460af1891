"""Schema of the config: every key of a run, with its type, default, meaning and bounds.

`configs/*.py` build a ConfigDict from these classes, the command line overrides it, and `rljax.main` turns it back into
a frozen `Config` at once. Importing this module imports nothing heavy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from rljax.config.algorithm import AlgorithmConfig as AlgorithmConfig
from rljax.config.algorithm import CorrectionConfig as CorrectionConfig
from rljax.config.algorithm import CriticConfig as CriticConfig
from rljax.config.algorithm import KlConfig as KlConfig
from rljax.config.algorithm import OptimizerConfig as OptimizerConfig
from rljax.config.choice import chosen_by, settle
from rljax.config.distill import DistillConfig as DistillConfig
from rljax.config.distill import TeacherConfig as TeacherConfig
from rljax.config.engines import ENGINES
from rljax.config.environments import (
    PLACES,
    EnvironmentConfig,
    TrainEnvManagerConfig,
    ValEnvManagerConfig,
    built_in,
    shares,
)
from rljax.config.fields import key
from rljax.config.generating import GeneratingConfig as GeneratingConfig
from rljax.config.judges import JudgeConfig as JudgeConfig
from rljax.config.learner import HostsConfig as HostsConfig
from rljax.config.learner import LearnerConfig as LearnerConfig
from rljax.config.learner import MeshConfig as MeshConfig
from rljax.config.model import LoraConfig as LoraConfig
from rljax.config.model import ModelConfig as ModelConfig
from rljax.config.model import TinyConfig as TinyConfig
from rljax.config.modes import PlanConfig as PlanConfig
from rljax.config.modes import PlayConfig as PlayConfig
from rljax.config.observing import ObserveConfig as ObserveConfig
from rljax.config.observing import ReportConfig as ReportConfig
from rljax.config.refusals import Rule, Single, hold
from rljax.config.registries import workflows
from rljax.config.reward_models import RewardModelConfig as RewardModelConfig
from rljax.config.serve import ServeConfig as ServeConfig
from rljax.config.sidecar import SidecarConfig as SidecarConfig
from rljax.config.tasksets import RowsConfig as RowsConfig
from rljax.config.tasksets import TasksConfig as TasksConfig
from rljax.config.tasksets import TasksetConfig as TasksetConfig

MODES = ("both", "train", "explore", "evaluate", "export", "replay", "audit", "report", "play", "plan", "serve")


def _seconds(default: float, help: str) -> Any:
    """Declares a key of a time limit; no clock of this program waits for longer than the bound, which is 30 years."""
    return key(default, help, low=0, low_open=True, high=10**9)


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """Rollouts: how trajectories are made, and what happens when one fails."""

    workflow: str = key(
        "by_task",
        "what makes a trajectory: single_turn (questions) | multi_turn (environments) | by_task: whichever it takes | "
        "module:Class, your own: docs/workflows.md",
    )
    workflow_args: Any = chosen_by("workflow", "keyword arguments of workflow=module:Class, by name", workflows)
    max_retries: int = key(2, "attempts after a failed one; then the task is dropped as failed", low=0)
    trajectory_timeout: float = _seconds(600.0, "seconds for one attempt, validation pauses excluded")
    env_timeout: float = _seconds(60.0, "seconds for one answer of an environment in a worker")
    env_place: str | None = key(
        None, "where all environments compute; None: each where its own place says", choices=(None, *PLACES)
    )
    train_env_manager: TrainEnvManagerConfig = field(default_factory=TrainEnvManagerConfig)
    val_env_manager: ValEnvManagerConfig = field(default_factory=ValEnvManagerConfig)
    reward_timeout: float = _seconds(30.0, "seconds for one reward")
    reward_workers: int | None = key(None, "processes for rewards that may hang; None: as many as cores", low=1)
    reward_concurrency: int = key(256, "rewards that are async functions, awaited at once", low=1)
    claim_timeout: float = _seconds(60.0, "seconds without a heartbeat until an explorer is dead and its claims reopen")

    def __post_init__(self) -> None:
        settle(self, "rollout")


@dataclass(frozen=True, kw_only=True)
class ExplorerConfig:
    """The explorer."""

    name: str = key("explorer", "unique among the explorers of a run; neither trainer nor learner")
    own_process: bool = key(False, "mode=both: explore in a process (launcher=ray: an actor) of its own")
    tasksets: Mapping[str, TasksetConfig] = key(
        {}, "what this explorer serves in place of tasks.train; one of the run's names is shared, without repeats"
    )


@dataclass(frozen=True, kw_only=True)
class RayConfig:
    """The cluster that ``launcher=ray`` joins or starts."""

    address: str = key("auto", "HOST:PORT to join | local: start one | auto: RAY_ADDRESS if it is set, else local")
    placement_timeout: float = _seconds(120.0, "seconds to wait for the cluster's resources")
    cpus_per_engine: float = key(1.0, "CPUs of the cluster that one engine takes", low=0)
    engine_resources: Mapping[str, Any] = key({}, "custom resources that one engine takes besides, by name")
    cpus_per_env_worker: float = key(0.0, "CPUs of the cluster that one worker of environments takes", low=0)
    env_worker_resources: Mapping[str, Any] = key({}, "custom resources that one takes besides, by name")
    runtime_env: Mapping[str, Any] = key({}, "Ray's runtime environment of engines and explorers: env_vars, pip, ...")


@dataclass(frozen=True, kw_only=True)
class Config:
    """A run."""

    mode: str = key(
        "both",
        "what this process does",
        choices=MODES,
        instead={
            "bench": ("evaluate", "Trinity-RFT's name; write mode=evaluate and checkpoint=all, or latest"),
            "colocate": ("both", "Trinity-RFT's name; write mode=both and sidecar.colocate=true"),
        },
    )
    checkpoint: str = key(
        "latest", "evaluate, export, play and serve: latest | all | initial | batches seen; replay: where from"
    )
    launcher: str = key("local", "who starts the parts", choices=("local", "ray"))
    run_dir: str | None = key(None, "everything the run leaves behind; None: runs/<name of the config>")
    ledger: str | None = key(
        None, "URL of the ledger: postgresql://user:password@host:5432/database | sqlite:///FILE; None: in run_dir"
    )
    ledger_schema: str | None = key(None, "schema of this run in a PostgreSQL ledger; None: the last part of run_dir")
    compile_cache: str = key(
        "auto",
        "compiled programs are kept here for later runs: a directory | off | auto: JAX_COMPILATION_CACHE_DIR, else the "
        "user's cache",
    )
    seed: int = key(0, "seed of everything", low=0, high=2**31 - 1)
    async_generation_ratio: float = key(
        1.0,
        "α: batches generated ahead of the learner, read as the decimal; 0 is synchronous, more is more staleness",
        low=0,
        high=10**6,
    )
    max_staleness: int | None = key(None, "S, in steps; None: ⌈α⌉ + sync_interval − 1, the least possible", low=0)
    sync_interval: int = key(1, "steps between published versions; each beyond 1 adds a step of staleness", low=1)
    fill_interval: bool = key(
        False,
        "engines generate the batches of a whole sync_interval beside their training; α counts what lies beyond",
    )
    sync_method: str = key(
        "checkpoint",
        "how weights travel: checkpoint: files; memory: this process's or Ray's; nccl: the learner sends",
        choices=("checkpoint", "memory", "nccl"),
    )
    sync_overlap: bool = key(True, "write versions beside the next step, from a copy in memory; not with learner.hosts")
    sync_address: str = key("127.0.0.1", "nccl: the learner's address as engines reach it; loopback: this machine only")
    sync_dtype: str = key("auto", "dtype of published weights; auto: model.dtype", choices=("auto", "fp32", "bf16"))
    sync_deltas: int = key(
        0, "bf16 versions in a row written as what changed alone, where that pays; 0: all whole", low=0
    )
    parity_bound: float | None = key(None, "largest log-probability gap of learner and engine; None: by dtype", low=0)
    rollout_batch_size: int = key(
        64, "sampled trajectories that one step trains; demonstrations, with algorithm.expert_data_ratio=1", low=1
    )
    group_size: int = key(8, "trajectories of one task", low=1)
    max_steps: int = key(100, "steps of the run", low=1)
    total_epochs: int | None = key(
        None, "passes over the finite tasksets, or over what alone is imitated; None: as many as it takes", low=1
    )
    save_steps: int = key(50, "steps between checkpoints; the last step is always saved", low=1)
    eval_steps: int | None = key(10, "steps between validations; None: only at the end", low=1)
    logging_steps: int = key(1, "steps between printed lines where there is no live view", low=1)
    val_batch_size: int | None = key(None, "tasks of each validation taskset; None: all", low=1)
    wait_timeout: float = _seconds(3600.0, "seconds any part waits for another before the run fails")
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    sidecar: SidecarConfig = field(default_factory=SidecarConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    explorer: ExplorerConfig = field(default_factory=ExplorerConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    tasks: TasksConfig = field(default_factory=TasksConfig)
    judges: Mapping[str, JudgeConfig] = key({}, "models that score responses, on engines of their own, by name")
    reward_models: Mapping[str, RewardModelConfig] = key({}, "models whose head scores responses, by name")
    custom_envs: Mapping[str, EnvironmentConfig] = field(
        default_factory=built_in, metadata={"help": "environments by tag"}
    )
    observe: ObserveConfig = field(default_factory=ObserveConfig)
    play: PlayConfig = field(default_factory=PlayConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    serve: ServeConfig = field(default_factory=ServeConfig)

    def __post_init__(self) -> None:
        if not _rules:
            raise RuntimeError("a config was made before there were rules: import rljax.config.rules")
        hold(self, _single, _rules)

    @property
    def groups_per_batch(self) -> int:
        """b, the groups that one step trains."""
        return 0 if self.imitates_alone else self.rollout_batch_size // self.group_size

    @property
    def imitates_alone(self) -> bool:
        """True where steps train demonstrations and nothing else, so that nothing is sampled for them."""
        return self.algorithm.expert_data_ratio == 1

    @property
    def asks_engines(self) -> bool:
        """True where engines sample something: training data, or what is validated."""
        return self.validates or not self.imitates_alone

    @property
    def has_hosts(self) -> bool:
        """True where the learner of this config is several processes, and it is to be run."""
        return self.learner.hosts.number > 1 and self.mode in ("both", "train")

    @property
    def environments(self) -> Mapping[str, EnvironmentConfig]:
        """`custom_envs`, each where it will compute."""
        place = self.rollout.env_place
        return {tag: replace(env, place=place or env.place) for tag, env in self.custom_envs.items()}

    @property
    def demonstrations_per_batch(self) -> int:
        """Demonstrations that one step trains, beside what was sampled or alone."""
        if self.imitates_alone:
            return self.rollout_batch_size
        return _count_of_share(self.rollout_batch_size, self.algorithm.expert_data_ratio)

    @property
    def reused_per_batch(self) -> int:
        """Most groups trained before that one step trains beside the new ones."""
        algorithm = self.algorithm
        reuses = algorithm.max_uses > 1 and not self.imitates_alone
        return _count_of_share(self.groups_per_batch, algorithm.reuse_ratio) if reuses else 0

    @property
    def staleness_bound(self) -> int:
        """S: no trained token is staler than this many steps (promise P1)."""
        least = math.ceil(self.async_generation_ratio) + self.sync_interval - 1
        return least if self.max_staleness is None else self.max_staleness

    @property
    def staleness_credit(self) -> int:
        """Groups that may be claimed and not yet consumed (promise P1)."""
        interval = (self.sync_interval, self.fill_interval)
        return staleness_credit(self.async_generation_ratio, self.groups_per_batch, *interval)

    @property
    def resolved_ledger_schema(self) -> str:
        """Schema of this run in a PostgreSQL ledger."""
        return self.ledger_schema or Path(self.run_dir or "runs/unnamed").absolute().name

    @property
    def asked_judges(self) -> Mapping[str, JudgeConfig]:
        """The judges that a process with this config starts: none where nothing is scored by a reward."""
        return {} if self.mode in ("play", "serve") else self.judges

    @property
    def asked_reward_models(self) -> Mapping[str, RewardModelConfig]:
        """The reward models that a process with this config loads: none where nothing is scored by a reward."""
        return {} if self.mode in ("play", "serve") else self.reward_models

    @property
    def explored(self) -> tuple[str, Mapping[str, TasksetConfig]]:
        """The training tasksets that an explorer with this config serves, and the key that names them."""
        if self.imitates_alone:
            return "tasks.train", {}
        if self.explorer.tasksets:
            return "explorer.tasksets", self.explorer.tasksets
        return "tasks.train", self.tasks.train

    @property
    def train_groups(self) -> dict[str, int]:
        """Groups of environments that train at once, by tag."""
        if self.imitates_alone:
            return {}
        manager = self.rollout.train_env_manager
        groups = manager.num_env_groups or max(self.staleness_credit, len(manager.tags))
        return shares(manager.tags, groups, manager.num_groups_partition, "rollout.train_env_manager")

    @property
    def val_groups(self) -> dict[str, int]:
        """Seeds of a validation, by tag."""
        manager = self.rollout.val_env_manager
        return shares(manager.tags, manager.num_env_groups, manager.num_groups_partition, "rollout.val_env_manager")

    @property
    def played_tag(self) -> str | None:
        """The environment that mode=play plays; None where the config names none."""
        managers = self.rollout.val_env_manager, self.rollout.train_env_manager
        return self.play.tag or next((tag for manager in managers for tag in manager.tags), None)

    @property
    def validates(self) -> bool:
        """True where the config has validation tasksets or environments."""
        return bool(self.tasks.validation or self.rollout.val_env_manager.tags)

    @property
    def autotunes(self) -> bool:
        """True where kernels of a GPU may be chosen by timing them."""
        return self.compile_cache != "off" if self.learner.autotune is None else self.learner.autotune

    @property
    def row_tokens(self) -> int:
        """Length of a packed row, in tokens."""
        return self.learner.max_tokens_per_row or self.longest

    @property
    def longest(self) -> int:
        """Most tokens of a trajectory."""
        return self.model.sequence_length or self.model.max_prompt_tokens + self.model.max_response_tokens

    @property
    def context(self) -> int:
        """Longest prompt and response together that engines take, in tokens."""
        return self.sidecar.max_model_len or self.longest

    @property
    def engine_dtype(self) -> str:
        """Dtype that engines compute in: fp32 or bf16."""
        return self.model.dtype if self.sidecar.dtype == "auto" else self.sidecar.dtype

    @property
    def records_routes(self) -> bool:
        """True where engines record the experts of each token: where what they sample is stored to be trained."""
        stores = self.mode in ("both", "explore") and not self.imitates_alone
        return stores and self.algorithm.records_routes

    @property
    def probe_is_routed(self) -> bool:
        """True where learner and engines send the probe's tokens to the same fixed experts: where the learner replays
        routes, and engines follow them too.
        """
        return self.algorithm.replays_routes and ENGINES[self.sidecar.engine].follows_routes

    @property
    def policy_optimizer(self) -> OptimizerConfig:
        """The learner's optimizer, with the learning rate that it has."""
        optimizer = self.learner.optimizer
        return replace(optimizer, learning_rate=optimizer.peak(adapter=self.model.lora.rank is not None))

    @property
    def resolved_sync_dtype(self) -> str:
        """Dtype of published weights: fp32 or bf16."""
        return self.model.dtype if self.sync_dtype == "auto" else self.sync_dtype


def staleness_credit(alpha: float, batch_groups: int, sync_interval: int = 1, fill_interval: bool = False) -> int:
    """Returns ⌊(n+α)·b⌋, the groups that may be claimed and not yet consumed (promise P1); n is 1, or the batches of
    an interval that is filled.

    Exact: α is the decimal that the user wrote, the shortest one that is read as this float. 0.15 is 15/100 here.
    """
    batches = sync_interval if fill_interval else 1
    return math.floor((batches + Fraction(str(alpha))) * batch_groups)


_single: Sequence[Single[Config]] = ()
_rules: Sequence[Rule[Config]] = ()


def hold_to(single: Sequence[Single[Config]], rules: Sequence[Rule[Config]]) -> None:
    """Registers the rules that check every `Config` from now on, however it is made or replaced: see `hold`. They are
    imported after the schema that they read.
    """
    global _single, _rules
    _single, _rules = single, rules


def _count_of_share(count: int, share: float) -> int:
    """Returns how many make up ``share`` of a whole whose other part is ``count``; at least one of a share above 0."""
    return max(round(count * share / (1 - share)), 1) if share else 0
