"""Validates judges, and the rewards that ask them (promise P9); makes the configs of judges' engines."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any

from rljax.config.engines import ENGINES
from rljax.config.fields import ConfigError, check_name, check_path, shown
from rljax.config.judges import ASKS_JUDGES, JudgeConfig
from rljax.config.learner import LearnerConfig, MeshConfig
from rljax.config.schema import Config, ExplorerConfig, ModelConfig, SidecarConfig, TasksConfig, TasksetConfig
from rljax.config.validate_placement import check_device_names, device_indices

_PLACES = ("{question}", "{answer}", "{response}")


def check_judges(config: Config) -> None:
    """Refuses judges that cannot be had, and questions to none.

    Raises:
        ConfigError: on the first one.
    """
    for name, judge in config.judges.items():
        _check_judge(config, name, judge)
    for section, tasksets in (config.explored, ("tasks.validation", config.tasks.validation)):
        for name, taskset in tasksets.items():
            path = f"{section}.{name}.reward_args.{ASKS_JUDGES}"
            if ASKS_JUDGES in taskset.rewards:
                _check_asked(path, taskset.reward_args.get(ASKS_JUDGES, {}), config.judges)


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


def _check_judge(config: Config, name: str, judge: JudgeConfig) -> None:
    path = f"judges.{name}"
    check_name("judges.", name, "a judge's name")
    engines = f"{config.explorer.name}-judge-{name}"
    check_name(f"judges.{name}: with explorer.name ", engines, "the name of its engines")
    if not judge.path:
        raise ConfigError(f"{path}.path: missing; write a directory, a hub id, smollm2-135m or tiny")
    check_path(f"{path}.path", judge.path)
    if judge.template is not None and "{response}" not in judge.template:
        raise ConfigError(f"{path}.template: must contain {{response}}; places are {', '.join(_PLACES)}")
    budget = judge.generating_args.max_new_tokens
    if budget is not None and budget > judge.max_response_tokens:
        raise ConfigError(
            f"{path}.generating_args.max_new_tokens={budget}: above max_response_tokens={judge.max_response_tokens}"
        )
    check_device_names(f"{path}.devices", judge.devices)
    platform, mine = device_indices(judge.devices)
    if mine is not None and config.launcher == "ray":
        raise ConfigError(f"{path}.devices={judge.devices!r}: launcher=ray chooses; write auto, cpu or gpu")
    if platform == "tpu" and (not ENGINES[judge.engine].in_process or config.launcher != "local"):
        raise ConfigError(
            f"{path}.devices={judge.devices!r}: an engine in a process of its own computes on cpu or gpu; for a TPU "
            f"write {path}.engine=embedded and launcher=local"
        )
    others = {"learner.devices": config.learner.devices, "sidecar.devices": config.sidecar.devices}
    others |= {f"judges.{other}.devices": j.devices for other, j in config.judges.items() if other != name}
    for other, devices in others.items():
        theirs, indices = device_indices(devices)
        everything = mine is None and other == "learner.devices"
        overlaps = everything or (mine is not None and mine & (indices or mine))
        if platform in ("gpu", "tpu") and theirs == platform and overlaps:
            raise ConfigError(
                f"{path}.devices={judge.devices!r}: overlaps {other}={devices!r}; give each its own, or write auto"
            )
    try:
        judge_config(config, name)
    except ConfigError as error:
        raise ConfigError(f"{path}: as those of a policy its engines cannot be: {error}") from None


def _check_asked(path: str, asked: Mapping[str, Any], judges: Mapping[str, JudgeConfig]) -> None:
    judge, url = asked.get("judge"), asked.get("url")
    if (judge is None) == (url is None):
        raise ConfigError(f"{path}: write judge=NAME, a key of judges, or url, that of an endpoint")
    if judge is None:
        if re.search(r"//[^/?#]*@", str(url)):
            raise ConfigError(
                f"{path}.url={shown(url)}: has a user or password; write it without, and in key_variable the "
                "environment variable that has the key"
            )
        if not asked.get("model"):
            raise ConfigError(f"{path}.model: missing; write the name of the judge at {shown(url)}")
        return
    unread = [key for key in ("model", "key_variable") if asked.get(key)]
    if unread:
        raise ConfigError(f"{path}.{unread[0]}: nothing reads it; judges.{judge} says what the judge is")
    if judge not in judges:
        near = difflib.get_close_matches(str(judge), judges, n=1) or sorted(judges)
        hint = f"did you mean {near[0]}?" if near else f"write judges.{judge}.path=MODEL"
        raise ConfigError(f"{path}.judge={judge!r}: there is no such judge; {hint}")
