"""Validates on-policy distillation: that teachers can be had, are asked, and are all that some steps need (P9)."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection
from functools import partial

from rljax.config.distill import TEACHERS, WITHOUT_KNOWLEDGE
from rljax.config.fields import ConfigError, check_name, check_path, shown
from rljax.config.refusals import Refusals, collected, refused_by
from rljax.config.registries import policy_losses
from rljax.config.schema import Config, TasksetConfig
from rljax.config.validate_judges import check_endpoint
from rljax.config.validate_objective import estimator_traits, loss_of

_TRAINS = ("both", "train")


def check_distill(config: Config) -> Refusals:
    """Refuses teachers that cannot be had, or that nothing listens to, and steps from which nothing would be learnt."""
    rules = (_check_name, _check_place, _check_weights)
    teachers = [partial(rule, name) for name in config.algorithm.distill.teachers for rule in rules]
    return collected(config, *teachers, _check_temperature, _check_loss, _check_alone, _check_rewards)


def _check_name(name: str, _: Config) -> Refusals:
    yield from refused_by(check_name, f"{TEACHERS}.", name, "a teacher's name")


def _check_place(name: str, config: Config) -> Refusals:
    """Refuses a teacher that is nowhere, or in two places."""
    path, teacher = f"{TEACHERS}.{name}", config.algorithm.distill.teachers[name]
    model = teacher.path
    if teacher.url is not None:
        if model:
            yield ConfigError(f"{path}.path={shown(model)}: the teacher is asked at {path}.url; leave one of them out")
        yield from check_endpoint(path, teacher.url, teacher.model, "the teacher")
        return
    for key in ("model", "key_variable"):
        if getattr(teacher, key):
            yield ConfigError(f"{path}.{key}: nothing reads it without {path}.url; leave it out")
    if not model:
        yield ConfigError(
            f"{path}.path: missing; write a directory, a hub id or smollm2-135m, or in {path}.url an endpoint"
        )
    elif model == WITHOUT_KNOWLEDGE:
        yield ConfigError(f"{path}.path={model!r}: has learnt nothing that it could teach; write a model's directory")
    else:
        yield from refused_by(check_path, f"{path}.path", model)


def _check_weights(name: str, config: Config) -> Refusals:
    path, weights = f"{TEACHERS}.{name}.weights", config.algorithm.distill.teachers[name].weights
    for taskset, weight in weights.items():
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not (number and math.isfinite(weight) and weight >= 0):
            yield ConfigError(f"{path}.{taskset}={shown(weight)}: must be a number, 0 or more")
    known = {*config.explored[1], *config.tasks.train, *config.rollout.train_env_manager.tags}
    if config.mode in _TRAINS and known:  # explorers may serve tasksets of their own where this config has none
        for taskset in weights.keys() - known:
            yield ConfigError(f"{path}.{taskset}: nothing of that name is trained; {_nearest(taskset, known)}")
    if weights and not any(weights.values()):
        yield ConfigError(f"{path}: all of them are 0, and nobody listens to {name}; leave it out")


def _nearest(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"


def _check_temperature(config: Config) -> Refusals:
    """Refuses teachers whose log-probabilities are of another temperature than the samples'."""
    temperature = config.sidecar.generating_args.temperature
    for name in config.algorithm.distill.served if config.mode in _TRAINS and temperature not in (0, 1) else ():
        yield ConfigError(
            f"sidecar.generating_args.temperature={temperature:g}: {TEACHERS}.{name}.url says log-probabilities at "
            f"temperature 1 alone; write 1, or the teacher's files in {TEACHERS}.{name}.path"
        )


def _check_loss(config: Config) -> Refusals:
    """Refuses losses that read no advantage, or whose formula holds for rewards of whole trajectories alone."""
    algorithm = config.algorithm
    if not algorithm.distill.teachers or config.mode not in _TRAINS:
        return
    named, loss = policy_losses.traits(algorithm.pg_variant, algorithm.loss), loss_of(algorithm)
    if named.imitates and not named.mixes:
        yield ConfigError(
            f"{TEACHERS}: algorithm.pg_variant={algorithm.pg_variant!r} trains demonstrations and nothing that "
            "is sampled; write pg_variant=mix, or another loss"
        )
    elif loss.traits.estimators:
        yield ConfigError(
            f"{TEACHERS}: {loss.short}={loss.name!r} has its minimum for rewards of whole trajectories, and teachers "
            "give each token an advantage of its own; write pg_variant=ppo"
        )


def _check_alone(config: Config) -> Refusals:
    """Refuses steps that learn neither from rewards, nor from teachers, nor from demonstrations."""
    algorithm = config.algorithm
    if config.mode not in _TRAINS or estimator_traits(algorithm).reads_rewards or algorithm.distill.teachers:
        return
    loss = loss_of(algorithm)
    if loss.known and not policy_losses.traits(algorithm.pg_variant, algorithm.loss).imitates:
        yield ConfigError(
            f"algorithm.adv_estimator={algorithm.adv_estimator!r}: nothing is learnt from rewards, and there is no "
            f"teacher; write {TEACHERS}.NAME.path=DIRECTORY, or another estimator"
        )


def _check_rewards(config: Config) -> Refusals:
    """Refuses training tasks without a reward where rewards are learnt from."""
    if estimator_traits(config.algorithm).reads_rewards:
        tasksets = {f"tasks.train.{name}": one for name, one in config.tasks.train.items()}
        tasksets |= {f"explorer.tasksets.{name}": one for name, one in config.explorer.tasksets.items()}
        for path, taskset in tasksets.items():
            yield from collected(taskset, partial(_check_rewarded, path))


def _check_rewarded(path: str, taskset: TasksetConfig) -> Refusals:
    if not taskset.rewards:
        yield ConfigError(
            f"{path}.rewards: at least one reward is needed, or algorithm.adv_estimator=none and a teacher, "
            f"{TEACHERS}.NAME.path=DIRECTORY"
        )
