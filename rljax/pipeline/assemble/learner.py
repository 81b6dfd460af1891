"""Builds the learner of a run, fresh or from its newest checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from rljax.config.fields import ConfigError
from rljax.config.model import LoraConfig
from rljax.config.schema import Config
from rljax.learner.checkpoints import CheckpointError, Checkpoints, DamagedCheckpointError
from rljax.learner.hosts import Hosts
from rljax.learner.leading import LeadingCheckpoints, LeadingLearner
from rljax.learner.learner import Learner
from rljax.learner.packing import Batch
from rljax.learner.programs import Compilation, told_of_memory
from rljax.ledger.compatibility import check_demonstrations
from rljax.ledger.database import Database
from rljax.ledger.leases import LeasedBatch, survives
from rljax.models.adapter import target_words
from rljax.models.adapter_files import load_adapter
from rljax.models.common.architecture import Architecture
from rljax.models.files import stored_tensors
from rljax.models.frozen import FrozenBase
from rljax.observe.parts import ASK, summed
from rljax.pipeline.assemble.run import Model
from rljax.pipeline.assemble.tasksets import Tasksets
from rljax.pipeline.assemble.teachers import open_teachers
from rljax.pipeline.run_dir import RunDir
from rljax.tasks.demonstrations import Demonstrations
from sidecar.fingerprint import fingerprint

BEGIN = "begin"
"""Announcement of host 0 of several, before it builds its learner."""


def open_checkpoints(config: Config, run: RunDir, hosts: Hosts | None = None) -> Checkpoints:
    """Opens the checkpoints of a run; ``hosts``: that write them together, of which this is the first."""
    where = (run.checkpoints, config.learner.checkpoints_to_keep)
    return Checkpoints(*where) if hosts is None else LeadingCheckpoints(hosts, *where)


def checkpoint_metadata(learner: Learner, lineage: int) -> dict[str, Any]:
    """Returns what a checkpoint says beside its arrays: who has written it; of an adapter what it is, and its base."""
    lora = learner.config.model.lora
    if lora.rank is None:
        return {"lineage": lineage}
    return {"lineage": lineage, "lora": _told(learner.architecture, lora), "lora_base": learner.base_fingerprint}


def _told(architecture: Architecture, lora: LoraConfig) -> dict[str, Any]:
    """Returns the keys of an adapter that make it what it is; of targets the words, however they were written."""
    targets = ",".join(target_words(architecture, lora))
    return {"rank": lora.rank, "alpha": lora.alpha, "rslora": lora.rslora, "targets": targets}


def check_saved_adapter(config: Config, model: Model, checkpoints: Checkpoints, step: int) -> None:
    """Checks that a checkpoint is of what the config trains: all weights, or the same adapter, on the base that it was
    trained on. Else it is another model.

    Raises:
        ConfigError: it is not.
        DamagedCheckpointError: the checkpoint cannot be read.
    """
    lora, saved = config.model.lora, checkpoints.metadata(step)
    where = f"the checkpoint of step {step} in {checkpoints.directory}"
    if lora.rank is None:
        if "lora_base" in saved:
            its = ", ".join(f"model.lora.{key}={value}" for key, value in saved.get("lora", {}).items())
            written = its or "the run's model.lora.rank, and the keys beside it"
            raise ConfigError(
                f"model.lora.rank=None: {where} is of an adapter; write {written}, or choose another run_dir"
            )
        return
    if "lora_base" not in saved:
        raise ConfigError(
            f"model.lora.rank={lora.rank}: {where} is of all weights; leave it out, or choose another run_dir"
        )
    given, there = _told(model.architecture, lora), saved.get("lora", {})
    if differing := [key for key in there if there[key] != given[key]]:
        here, run = (", ".join(f"model.lora.{key}={of[key]}" for key in differing) for of in (given, there))
        raise ConfigError(f"{here}: the adapter of {where} has others; write {run}, or choose another run_dir")
    if not there or fingerprint(stored_tensors(model.directory)) != saved["lora_base"]:
        raise ConfigError(
            f"model.path={config.model.path}: the model in {model.directory} is not the one that the adapter of "
            f"{where} was trained on, or an rljax of before 2026-11-29 wrote that checkpoint, which says less of its "
            "adapter; put that model there again, go on with the rljax that began it, or choose another run_dir"
        )


def build_learner(config: Config, model: Model, checkpoints: Checkpoints, steps: int) -> Learner:
    """Builds a learner that has seen ``steps`` batches: 0 is the model as it came, otherwise a committed checkpoint.

    Raises:
        ConfigError: a name in the algorithm section leads nowhere, or the devices are not there; or the checkpoint is
            of another adapter.
        CheckpointError: the checkpoint cannot be restored.
    """
    learner = Learner(config, model.architecture, teachers=open_teachers(config, model))
    if steps:
        check_saved_adapter(config, model, checkpoints, steps)
        learner.restore(checkpoints, steps)
        load_base(learner, model)
    else:
        begin(learner, model)
    return learner


def begin(learner: Learner, model: Model) -> None:
    """Begins with the model as it came."""
    adapter, lora = model.adapter, learner.config.model.lora
    given = None if adapter is None else load_adapter(adapter, model.architecture, lora)
    learner.load(stored_tensors(model.directory), given)


def load_base(learner: Learner, model: Model) -> None:
    """Reads the frozen weights below an adapter; a checkpoint of all weights needs no file of the model."""
    if learner.config.model.lora.rank is not None:
        learner.load_base(stored_tensors(model.directory))


def frozen_base(learner: Learner) -> FrozenBase | None:
    """Returns the frozen weights with which engines of the learner's process may compute; None where it has none, or
    spreads them over several devices.
    """
    if learner.base is None or learner.base_fingerprint is None or learner.mesh.size > 1:
        return None
    return FrozenBase(learner.base, learner.base_fingerprint, learner.config.model.dtype, learner.mesh.devices.flat[0])


def resume_learner(
    config: Config,
    model: Model,
    db: Database,
    checkpoints: Checkpoints,
    prompts: Int[np.ndarray, " prompts"] | None = None,
    hosts: Hosts | None = None,
) -> tuple[Learner, dict[int, DamagedCheckpointError]]:
    """Restores the learner from the newest whole checkpoint of the living history; without any, the model as it came,
    whose weights are not read otherwise.

    A damaged checkpoint is passed over in favour of the next older one. Those passed over are returned too, by step,
    for `rljax.pipeline.train.Trainer` to set aside: until it has begun its lineage, another trainer may write there.

    Args:
        config: of the run.
        model: that it began with.
        db: its ledger.
        checkpoints: of the run.
        prompts: see `compile_ahead`; other hosts are told.
        hosts: that are this learner together, of which this is the first.

    Raises:
        ConfigError: as `build_learner`.
        CheckpointError: a checkpoint does not fit, or all of them are damaged.
    """
    learner = _made(config, model, prompts, hosts)
    damaged: dict[int, DamagedCheckpointError] = {}
    for step in reversed(checkpoints.committed()):
        try:
            if not survives(db, int(checkpoints.metadata(step).get("lineage", 0)), step):
                continue
            check_saved_adapter(config, model, checkpoints, step)
            learner.restore(checkpoints, step)
        except DamagedCheckpointError as error:
            damaged[step] = error
            continue
        load_base(learner, model)
        return learner, damaged
    if damaged:
        newest = damaged[max(damaged)]
        raise CheckpointError(
            f"{newest}; no whole checkpoint is left: put a copy in its place, or choose another run_dir"
        ) from newest
    begin(learner, model)
    return learner, {}


def _made(config: Config, model: Model, prompts: Int[np.ndarray, " prompts"] | None, hosts: Hosts | None) -> Learner:
    if hosts is not None:
        with RunDir.at(config).sign() as sign:
            hosts.announce(BEGIN, {"prompts": None if prompts is None else prompts.tolist(), "sign": sign})
            hosts.agree("open the model", {"model": model.fingerprint})
    given, teachers = (config, model.architecture), open_teachers(config, model, hosts=hosts)
    return Learner(*given, teachers=teachers) if hosts is None else LeadingLearner(hosts, *given, teachers=teachers)


def compile_ahead(learner: Learner, probe: int, prompts: Int[np.ndarray, " prompts"] | None) -> Compilation:
    """Begins to compile what the steps will run, side by side; see `Learner.programs`. Where the learner shares its
    processors with all else, only what is likely to be run.
    """
    programs = [program for program in learner.programs(probe, prompts) if not program.publishes]
    shared = learner.mesh.devices.flat[0].platform == "cpu"
    return Compilation([program for program in programs if program.likely or not shared])


@dataclass(frozen=True)
class StepRunner:
    """Trains a learner on recorded batches: the one way, of a run and of its replay."""

    learner: Learner
    demonstrations: Demonstrations | None
    prompts: Int[np.ndarray, " prompts"] | None = None
    """Lengths of some prompts, in tokens, where this process knows any."""

    def train(
        self, batch: LeasedBatch, before: Callable[[Sequence[Batch]], None] = lambda batches: None
    ) -> dict[str, float]:
        """Trains one step; see `Learner.train`. Its metrics also say how long each served teacher took to answer."""
        shown = [] if self.demonstrations is None else self.demonstrations.at(batch.demonstrations)
        with told_of_memory(f"step {self.learner.steps}"), summed() as spent:
            metrics = self.learner.train(batch.groups, reused=batch.reused, demonstrations=shown, before=before)
        asked = [name for name in self.learner.config.algorithm.distill.served if f"{ASK} {name}" in spent]
        return metrics | {f"distill/{name}/seconds": spent[f"{ASK} {name}"] for name in asked}

    @property
    def end_of_demonstrations(self) -> int | None:
        """Steps that imitate each demonstration `total_epochs` times, the last one filled up from the next epoch; None
        where other data end the run, or none.
        """
        if self.demonstrations is None:
            return None
        config = self.learner.config
        if config.total_epochs is None or not config.imitates_alone:
            return None
        return -(-len(self.demonstrations) * config.total_epochs // config.demonstrations_per_batch)


def open_demonstrations(config: Config, model: Model, db: Database, tasksets: Tasksets) -> Demonstrations | None:
    """Opens the demonstrations of the run; None where it imitates nothing.

    Raises:
        ConfigError, BadRow: it cannot be read, or a row of it cannot be used.
        LedgerError: the run began with other demonstrations.
    """
    each = config.demonstrations_per_batch
    if not each:
        return None
    demonstrations = Demonstrations(
        tasksets.expert,
        model.tokenizer,
        model.stop_token_ids,
        max_prompt_tokens=config.model.max_prompt_tokens,
        max_response_tokens=config.model.max_response_tokens,
        longest=config.longest,
        temperature=config.sidecar.generating_args.temperature,
        on_bad_row=config.tasks.on_bad_row,
    )
    demonstrations.check(each * config.max_steps)
    check_demonstrations(db, demonstrations.fingerprint, config.tasks.expert.source)
    return demonstrations
