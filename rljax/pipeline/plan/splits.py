"""A run's time on this split of its work and on those beside it, each simulated by the real scheduler."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rljax.config.refusals import ConfigError
from rljax.config.schema import Config
from rljax.ledger.leases import LeasedBatch
from rljax.ledger.run_spec import RunSpec
from rljax.pipeline.explore import capacity
from rljax.pipeline.plan.figures import Figures, rate_of, uneven
from rljax.pipeline.simulate.learner import TrainedStep
from rljax.pipeline.simulate.schedule import Schedule, simulate
from rljax.pipeline.simulate.workload import Attempts
from rljax.trajectory import NOT_SAMPLED

GRAIN = 32
"""Simulated tokens of a reply of mean length: one stands for several, so that long replies cost no more than short."""
ENDLESS = 10**6
SETTLING = 3
"""Steps that are not counted, beside those that a run takes to get as far ahead as it may."""


@dataclass(frozen=True)
class Split:
    """A config and what it changes.

    Attributes:
        changes: keys and values, as on a command line; empty for the present one.
        config: the config with them.
        more: whether it takes more devices than the present one.
        drops: whether it gives attempts up that have begun.
    """

    changes: tuple[str, ...]
    config: Config
    more: bool = False
    drops: bool = False


@dataclass(frozen=True)
class Timing:
    """Times of a simulated run, on average over the counted steps.

    Attributes:
        step: seconds of a step.
        training, generating: seconds of it in which the learner trains, and in which an engine computes.
        waiting: share of the time in which the learner waits for a batch.
        staleness, most: mean and largest staleness of a token.
    """

    step: float
    training: float
    generating: float
    waiting: float
    staleness: float
    most: int

    @property
    def fraction(self) -> float:
        """Share that is reached of the bound (G + T) / max(G, T) on what generating ahead can gain."""
        return max(self.training, self.generating) / self.step

    @property
    def idle(self) -> float:
        """Share of the time in which an engine computes nothing."""
        return 1.0 - self.generating / self.step


def timed(split: Split, figures: Figures) -> Timing:
    """Simulates a split, without validations."""
    before, count = counted_steps(split.config)
    outcome = simulate(schedule_of(split, figures, before, count))
    steps = outcome.steps[before:]
    seconds = steps[-1].ended - outcome.steps[before - 1].ended
    busy = outcome.busy_seconds[-1] - outcome.busy_seconds[before - 1]
    ages = np.concatenate([ages_of(step) for step in steps])
    return Timing(
        seconds / count,
        sum(step.trained - step.leased for step in steps) / count,
        busy / count,
        sum(step.leased - step.waited_from for step in steps) / seconds,
        float(ages.mean()),
        int(ages.max()),
    )


def ages_of(step: TrainedStep) -> np.ndarray:
    """Returns the staleness of each token of a step, int ``[tokens]``."""
    found = [t.versions[t.versions != NOT_SAMPLED] for group in step.batch.groups for t in group.trajectories]
    return step.batch.step - np.concatenate(found)


def settling(config: Config) -> int:
    """Returns the steps in which a run gets as far ahead as it may."""
    return SETTLING + math.ceil(config.async_generation_ratio) + config.sync_interval


def counted_steps(config: Config) -> tuple[int, int]:
    """Returns the steps before the counted ones, and the counted ones: whole intervals."""
    interval = config.sync_interval
    return interval * math.ceil(settling(config) / interval), interval * math.ceil(config.plan.steps / interval)


def schedule_of(split: Split, figures: Figures, before: int, count: int) -> Schedule:
    """Returns what is simulated of a split: ``before`` steps, and ``count`` that are as uneven as the figures."""
    config = split.config
    paces = uneven(figures.unevenness, count, random.Random(config.seed))
    served = uneven(figures.unevenness, max(count // config.sync_interval, 1), random.Random(config.seed))
    scale = config.learner.mesh.size / figures.learner_devices
    grain = max(1.0, figures.reply_tokens / GRAIN)

    def train_seconds(batch: LeasedBatch) -> float:
        members = [t for group in (*batch.groups, *batch.reused) for t in group.trajectories]
        tokens = sum(int(member.loss_mask.sum()) for member in members) * grain + len(members) * figures.prompt_tokens
        return tokens / figures.learner_speed / scale * paces[batch.step % count][0]

    return Schedule(
        replace(RunSpec.of(config), max_steps=ENDLESS, total_epochs=None, demonstrations=0),
        Attempts(
            figures.turns,
            lambda rng: figures.replies(rng) / grain,
            figures.environment_seconds,
            explorer_seconds=figures.explorer_seconds,
        ),
        rate_of(figures.engine_speeds, grain),
        train_seconds,
        engines=config.sidecar.num_engines,
        slots=config.sidecar.max_concurrency,
        capacity=capacity(config),
        redundancy=config.rollout.train_env_manager.group_size_redundancy,
        load_seconds=figures.load_seconds,
        read_seconds=figures.read_seconds,
        prompt_cost=figures.prompt_cost / grain,
        publish_seconds=figures.publish_seconds,
        announce_seconds=figures.announce_seconds,
        between_seconds=figures.between_seconds,
        ledger_seconds=figures.ledger_seconds,
        filtered=figures.filtered,
        pace=lambda version: 1.0 / served[version // config.sync_interval % len(served)][1],
        stop_after=before + count,
    )


def one_more_engine(config: Config) -> Split | None:
    """Returns the split with an engine more, on devices that the run does not have; None where a run would refuse it,
    as where devices are named.
    """
    more = _changed(config, {"sidecar.num_engines": config.sidecar.num_engines + 1})
    return next((replace(split, more=True) for split in more), None)


def neighbours(config: Config, apart: bool, before: Config | None = None) -> Iterator[Split]:
    """Yields the splits beside the present one: those that change one thing, and that a run would take.

    Args:
        config: the present one.
        apart: engines have accelerators of their own, which may be the learner's instead.
        before: of a run that has been, whose α is one to go back to.
    """
    alpha, interval, sidecar = config.async_generation_ratio, config.sync_interval, config.sidecar
    free = config.max_staleness is None
    ran = () if before is None else (before.async_generation_ratio,)
    for value in dict.fromkeys((alpha - 1, alpha + 1, *ran)):
        yield from _changed(config, {"async_generation_ratio": value})
    for value in (config.staleness_bound + 1,) if free else (config.staleness_bound - 1, config.staleness_bound + 1):
        yield from _changed(config, {"max_staleness": value})
    for value in {max(interval // 2, 1), interval * 2} - {interval}:
        yield from _changed(config, {"sync_interval": value})
    for value in {sidecar.max_concurrency // 2, sidecar.max_concurrency * 2} - {0}:
        yield from _changed(config, {"sidecar.max_concurrency": value})
    redundancy = config.rollout.train_env_manager.group_size_redundancy
    spare = _changed(config, {"rollout.train_env_manager.group_size_redundancy": redundancy + 1})
    yield from (replace(split, drops=True) for split in spare)
    if apart:
        yield from _devices_moved(config)


def _devices_moved(config: Config) -> Iterator[Split]:
    """Yields splits with devices of the learner given to engines, and the other way: one axis of its mesh is cut by
    two, or doubled.
    """
    mesh, each = config.learner.mesh, config.sidecar.tensor_parallel_size
    first = "fsdp" if mesh.size == 1 else None
    for axis in ("data", "fsdp"):
        size = getattr(mesh, axis)
        for other in (size // 2, size * 2):
            freed = mesh.size - mesh.size // size * other
            engines = config.sidecar.num_engines + freed // each
            if other and (size > 1 or axis == first) and engines >= 1 and freed % each == 0:
                yield from _changed(config, {f"learner.mesh.{axis}": other, "sidecar.num_engines": engines})


def _changed(config: Config, keys: dict[str, Any]) -> Iterator[Split]:
    """Yields the config with these keys, unless a run would refuse it or it is nothing new."""
    made = config
    try:
        for path, value in keys.items():
            made = _set(made, path.split("."), value)
    except (ConfigError, ValueError):
        return
    if made != config:
        yield Split(tuple(f"{path}={_shown(value)}" for path, value in keys.items()), made)


def _set(config: Any, path: list[str], value: Any) -> Any:
    if len(path) == 1:
        return dataclasses.replace(config, **{path[0]: value})
    return dataclasses.replace(config, **{path[0]: _set(getattr(config, path[0]), path[1:], value)})


def _shown(value: float) -> str:
    return f"{value:g}"
