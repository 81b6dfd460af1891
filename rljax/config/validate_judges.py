"""Validates judges, and the rewards that ask them (promise P9); makes the configs of judges' engines."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from rljax.config.engines import ENGINES
from rljax.config.fields import ConfigError, check_name, check_path, shown
from rljax.config.judges import ASKS_JUDGES, JudgeConfig
from rljax.config.learner import LearnerConfig, MeshConfig
from rljax.config.refusals import Refusals, collected, refused_by
from rljax.config.schema import Config, ExplorerConfig, ModelConfig, SidecarConfig, TasksConfig, TasksetConfig
from rljax.config.validate_placement import device_indices

_PLACES = ("{question}", "{answer}", "{response}")


def check_judges(config: Config) -> Refusals:
    """Refuses judges that cannot be had, and questions to none."""
    asked = (partial(_check_questions, section) for section in ("explored", "validation"))
    return collected(config, *(partial(_check_judge, name) for name in config.judges), *asked)


def judge_config(config: Config, name: str) -> Config:
    """Returns the config of a run whose engines are those of a judge; for making these alone. It plays no task.

    Of the run's own it has what says where engines are placed and for how long they may take: a key that comes later,
    or one that needs another, does not make it impossible.

    Raises:
        ConfigError: no engines can be had so; the keys are those of a policy's.
    """
    judge, size = config.judges[name], config.learner.mesh.size
    return Config(
        mode=config.mode,
        launcher=config.launcher,
        seed=config.seed,
        wait_timeout=config.wait_timeout,
        model=ModelConfig(tiny=config.model.tiny, **_shared(judge, ModelConfig)),
        # its engine computes in model.dtype; how it samples is said with each request
        sidecar=SidecarConfig(**_shared(judge, SidecarConfig, but=("dtype", "generating_args"))),
        # which devices the learner has, not how it divides a model among them: the judge is another
        learner=LearnerConfig(devices=config.learner.devices, mesh=MeshConfig(data=size), rows_per_microbatch=size),
        tasks=TasksConfig(train={name: TasksetConfig(source="none")}),
        explorer=ExplorerConfig(name=f"{config.explorer.name}-judge-{name}", own_process=config.explorer.own_process),
    )


def _shared(judge: JudgeConfig, section: type, but: Collection[str] = ()) -> dict[str, Any]:
    """Returns the keys that a judge has in common with a section, with its values."""
    names = {field.name for field in dataclasses.fields(section)}.difference(but)
    return {field.name: getattr(judge, field.name) for field in dataclasses.fields(judge) if field.name in names}


def _check_judge(name: str, config: Config) -> Refusals:
    rules = (_check_names, _check_model, _check_template, _check_budget, _check_launcher, _check_tpu, _check_overlaps)
    refused = [*collected(config, *(partial(rule, name) for rule in rules))]
    yield from refused or collected(config, partial(_check_engines, name))  # which would say the same in other words


def _check_names(name: str, config: Config) -> Refusals:
    yield from refused_by(check_name, "judges.", name, "a judge's name")
    engines = f"{config.explorer.name}-judge-{name}"
    yield from refused_by(check_name, f"judges.{name}: with explorer.name ", engines, "the name of its engines")


def _check_model(name: str, config: Config) -> Refusals:
    path, model = f"judges.{name}.path", config.judges[name].path
    if not model:
        yield ConfigError(f"{path}: missing; write a directory, a hub id, smollm2-135m or tiny")
    else:
        yield from refused_by(check_path, path, model)


def _check_template(name: str, config: Config) -> Refusals:
    template = config.judges[name].template
    if template is not None and "{response}" not in template:
        yield ConfigError(f"judges.{name}.template: must contain {{response}}; places are {', '.join(_PLACES)}")


def _check_budget(name: str, config: Config) -> Refusals:
    judge = config.judges[name]
    budget = judge.generating_args.max_new_tokens
    if budget is not None and budget > judge.max_response_tokens:
        yield ConfigError(
            f"judges.{name}.generating_args.max_new_tokens={budget}: above max_response_tokens="
            f"{judge.max_response_tokens}"
        )


def _check_launcher(name: str, config: Config) -> Refusals:
    devices = config.judges[name].devices
    if device_indices(devices)[1] is not None and config.launcher == "ray":
        yield ConfigError(f"judges.{name}.devices={devices!r}: launcher=ray chooses; write auto, cpu or gpu")


def _check_tpu(name: str, config: Config) -> Refusals:
    path, judge = f"judges.{name}", config.judges[name]
    in_thread = ENGINES[judge.engine].in_process and config.launcher == "local"
    if device_indices(judge.devices)[0] == "tpu" and not in_thread:
        yield ConfigError(
            f"{path}.devices={judge.devices!r}: an engine in a process of its own computes on cpu or gpu; for a TPU "
            f"write {path}.engine=embedded and launcher=local"
        )


def _check_overlaps(name: str, config: Config) -> Refusals:
    others: dict[str, Any] = {"learner.devices": config.learner, "sidecar.devices": config.sidecar}
    others |= {f"judges.{other}.devices": judge for other, judge in config.judges.items() if other != name}
    for key, other in others.items():
        yield from collected(config, partial(_check_overlap, name, key, other))


def _check_overlap(name: str, key: str, other: Any, config: Config) -> Refusals:
    """Checks that a judge has other devices than ``other``, whose key is ``key``."""
    devices = config.judges[name].devices
    (platform, mine), (theirs, indices) = device_indices(devices), device_indices(other.devices)
    everything = mine is None and key == "learner.devices"
    overlaps = everything or (mine is not None and mine & (indices or mine))
    if platform in ("gpu", "tpu") and theirs == platform and overlaps:
        yield ConfigError(
            f"judges.{name}.devices={devices!r}: overlaps {key}={other.devices!r}; give each its own, or write auto"
        )


def _check_engines(name: str, config: Config) -> Refusals:
    if config.mode == "play":  # asks no judge, and a run of one alone has nothing to play
        return
    for error in refused_by(judge_config, config, name):
        yield ConfigError(f"judges.{name}: as those of a policy its engines cannot be: {error}")


def _check_questions(which: str, config: Config) -> Refusals:
    """Checks the rewards of one section that ask judges."""
    section, tasksets = config.explored if which == "explored" else ("tasks.validation", config.tasks.validation)
    for name, taskset in tasksets.items():
        yield from collected(taskset, partial(_check_asked, f"{section}.{name}", config.judges))


def _check_asked(taskset_path: str, judges: Mapping[str, JudgeConfig], taskset: TasksetConfig) -> Refusals:
    if ASKS_JUDGES not in taskset.rewards:
        return
    path, asked = f"{taskset_path}.reward_args.{ASKS_JUDGES}", taskset.reward_args.get(ASKS_JUDGES, {})
    judge, url = asked.get("judge"), asked.get("url")
    if (judge is None) == (url is None):
        yield ConfigError(f"{path}: write judge=NAME, a key of judges, or url, that of an endpoint")
    elif judge is None:
        yield from check_endpoint(path, url, asked.get("model"), "the judge")
    else:
        for key in ("model", "key_variable"):
            if asked.get(key):
                yield ConfigError(f"{path}.{key}: nothing reads it; judges.{judge} says what the judge is")
        if judge not in judges:
            near = difflib.get_close_matches(str(judge), judges, n=1) or sorted(judges)
            hint = f"did you mean {near[0]}?" if near else f"write judges.{judge}.path=MODEL"
            yield ConfigError(f"{path}.judge={judge!r}: there is no such judge; {hint}")


def check_endpoint(path: str, url: Any, model: Any, whose: str) -> Refusals:
    """Refuses a URL that no request can go to or that has a password, and one without the model that is asked there."""
    said = shown(str(url).rpartition("@")[2])  # what stands before it may be a password
    if not re.match("https?://[^/]", str(url), re.IGNORECASE):
        yield ConfigError(f"{path}.url={said}: no address of an endpoint; write one such as http://HOST:PORT/v1")
    elif re.search(r"//[^/?#]*@", str(url)):
        yield ConfigError(
            f"{path}.url={shown(url)}: has a user or password; write it without, and in key_variable the "
            "environment variable that has the key"
        )
    if not model:
        yield ConfigError(f"{path}.model: missing; write the name of {whose} at {said}")
