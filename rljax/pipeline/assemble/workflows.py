"""Builds the workflows of a config, which turn tasks into trajectories, in training and in validation."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from rljax.config.refusals import joined
from rljax.config.schema import Config, GeneratingConfig
from rljax.pipeline.assemble.judges import Judges, OnFault, log_fault, places_of_judges
from rljax.pipeline.assemble.names import chosen_workflow, compares_with_greedy, reward_refusals, scored_tasksets
from rljax.pipeline.assemble.reward_models import RewardModels
from rljax.pipeline.assemble.run import Model, validation_fingerprint
from rljax.pipeline.run_dir import RunDir
from rljax.rollout.environments.hosts import EnvironmentHost, LoopHost, ProcessHost
from rljax.rollout.environments.processes import StartWorker, WorkerProcess
from rljax.rollout.environments.smoke_check import smoke_check
from rljax.rollout.validation import ValidationPlan
from rljax.rollout.workflows.tools import Tools
from rljax.rollout.workflows.workflow import OwnWorkflow, Workflow
from rljax.tasks.rewards.runner import RewardRunner
from rljax.tasks.task import Taskset
from sidecar.hosting.spec import EngineLauncher
from sidecar.workers.lifeline import import_path


class Workflows:
    """Rewards, the models that they ask, and environments of one process, and the workflows that use them.

    Attributes:
        training: samples as training does, from the environments of the training's manager.
        validation: samples as validation does, from those of the validation's.
        greedy: as training, but always the likeliest token; what ``adv_estimator=remax`` compares with. None otherwise.
    """

    def __init__(self, config: Config, run: RunDir, model: Model, engine_launcher: EngineLauncher) -> None:
        """Builds them; ``engine_launcher`` starts the engines of judges, and closing it is the caller's.

        Raises:
            ConfigError: a reward that does not exist, or a chat template that carries no dialogue.
        """
        logs = run.root / "logs"
        self._config = config
        self._model = model
        self._judges = Judges(config, run, engine_launcher)
        self._reward_models = RewardModels(config)
        self._rewards = make_rewards(config, logs / f"{config.explorer.name}-rewards.log")
        rollout, log = config.rollout, logs / f"{config.explorer.name}-environments.log"
        train, val = rollout.train_env_manager, rollout.val_env_manager
        if train.tags or val.tags:
            logs.mkdir(parents=True, exist_ok=True)
        self._hosts = [
            _hosts(config, train.max_env_num_per_worker, log, max_episodes=train.max_traj_per_env),
            _hosts(config, val.max_env_num_per_worker, log),
        ]
        self.training = self._workflow(config.sidecar.generating_args, self._hosts[0])
        likeliest = replace(config.sidecar.generating_args, temperature=0.0, top_p=1.0, top_k=0)
        self.greedy = self._workflow(likeliest, self._hosts[0]) if compares_with_greedy(config) else None
        self.validation = self._workflow(config.sidecar.val_generating_args, self._hosts[1])

    def validation_plan(self, held_out: Mapping[str, Taskset]) -> ValidationPlan:
        """Returns what the config wants measured on these tasksets."""
        return ValidationPlan(
            self.validation,
            held_out,
            self._config.val_batch_size,
            self._config.rollout.val_env_manager.group_size,
            self._config.rollout.trajectory_timeout,
            validation_fingerprint(self._config),
        )

    async def open(self, on_fault: OnFault = log_fault) -> None:
        """Runs a smoke check of every environment, where its episodes will be played, loads the reward models, and
        starts the judges, whose engines report faults that they survive to ``on_fault``.

        Raises:
            ConfigError: an environment cannot be made, or cannot be reset; or see `RewardModels.open`.
            ModelNotFound, EngineError: see `Judges.open`.
        """
        places = places_of_judges(self._config)
        self._rewards.reward_models = await self._reward_models.open(places)
        self._rewards.judges = await self._judges.open(places, on_fault)
        config, (training, validation) = self._config, self._hosts
        await smoke_check(config.train_groups, config.environments, training)
        held_out = [tag for tag in config.val_groups if tag not in config.train_groups]
        await smoke_check(held_out, config.environments, validation)

    async def try_rewards(self, section: str, tasksets: Mapping[str, Taskset]) -> None:
        """Calls every reward of these tasksets once.

        Raises:
            ConfigError: one fails.
        """
        await self._rewards.try_out((f"{section}.{name}", taskset) for name, taskset in tasksets.items())

    async def close(self) -> None:
        """Closes worker processes of rewards and environments, judges and reward models."""
        async with contextlib.AsyncExitStack() as parts:  # the last one first, whatever the others raise
            for hosts in self._hosts:
                for host in hosts.values():
                    parts.push_async_callback(host.close)
            parts.push_async_callback(self._judges.aclose)
            parts.push_async_callback(asyncio.to_thread, self._reward_models.close)
            parts.callback(self._rewards.close)

    def discard(self) -> None:
        """Ends what there is before `open`: worker processes of rewards. No event loop is needed."""
        self._rewards.close()

    def _workflow(self, generating: GeneratingConfig, hosts: Mapping[str, EnvironmentHost]) -> Workflow:
        config = self._config
        plays = config.train_groups or config.val_groups or config.mode == "play"
        tools = Tools(
            tokenizer=self._model.tokenizer,
            rewards=self._rewards,
            generating=generating,
            stop_token_ids=self._model.stop_token_ids,
            max_prompt_tokens=config.model.max_prompt_tokens,
            max_response_tokens=config.model.max_response_tokens,
            sequence_length=config.longest,
            hosts=hosts,
            environments=config.environments if plays else {},
        )
        made = chosen_workflow(config)(tools)
        return OwnWorkflow(made, config.longest) if ":" in config.rollout.workflow else made


def _hosts(
    config: Config, per_worker: int, log: Path, max_episodes: int | None = None
) -> Mapping[str, EnvironmentHost]:
    """Returns the hosts of environments by place; none starts anything before it is asked for an environment."""
    timeout = config.rollout.env_timeout
    return {
        "loop": LoopHost(max_episodes=max_episodes),
        "process": ProcessHost(per_worker, timeout, max_episodes=max_episodes, log=log),
        "ray": ProcessHost(per_worker, timeout, max_episodes=max_episodes, start=_ray_worker(config, log)),
    }


def _ray_worker(config: Config, log: Path) -> StartWorker:
    """Returns what starts workers of environments on the nodes of the Ray cluster that this process has joined. They
    import what this process does, and find files by paths that begin here, as its children do.
    """
    asked = {name: str(value) for name, value in config.ray.runtime_env.get("env_vars", {}).items()}
    env_vars = {**import_path(), **asked, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    folder = "" if "working_dir" in config.ray.runtime_env else os.getcwd()
    options = {
        "num_cpus": config.ray.cpus_per_env_worker,
        "resources": dict(config.ray.env_worker_resources),
        "scheduling_strategy": "SPREAD",
        "runtime_env": {**config.ray.runtime_env, "env_vars": env_vars},
    }

    def start(on_end: Callable[[], None]) -> WorkerProcess:
        from sidecar.workers.actor_process import ActorProcess

        handler = "rljax.rollout.environments.worker:Environments"
        return ActorProcess(handler, log=str(log.absolute()), folder=folder, options=options, on_end=on_end)

    return start


def reward_names(config: Config) -> set[str]:
    """Returns the names of the rewards of training and validation.

    Raises:
        ConfigError: one does not exist; or it takes whole groups, and the workflow judges none, or the estimator
            compares with a response in none. All but the first are its ``others``.
    """
    if refused := list(reward_refusals(config)):
        raise joined(refused)
    return {name for _, taskset in scored_tasksets(config) for name in taskset.rewards}


def make_rewards(config: Config, log: Path) -> RewardRunner:
    """Builds the rewards of training and validation; ``log`` takes what rewards print in worker processes.

    Raises:
        ConfigError: as `reward_names`.
    """
    rollout = config.rollout
    return RewardRunner(
        reward_names(config),
        timeout=rollout.reward_timeout,
        workers=rollout.reward_workers or len(os.sched_getaffinity(0)),
        at_once=rollout.reward_concurrency,
        batch_size=config.rollout_batch_size,
        log=log,
    )
