"""Says what a config needs that is not installed, before anything starts: the packages of extras."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from rljax.config.engines import ENGINES, kinds_with
from rljax.config.fields import ConfigError, shown, user_path
from rljax.config.refusals import Refusals, readable
from rljax.config.schema import Config, RowsConfig
from sidecar.extras import install_command, install_vllm

GENERATE = ("both", "explore", "evaluate")
"""Modes that use rewards, workflows and environments."""
_OF_SOURCES = {"hub:": ("datasets", "data"), "reasoning_gym:": ("reasoning_gym", "data")}
_OF_TABLES = ("pyarrow", "data")
_OF_ENVIRONMENTS = {"rljax/TextArena-v0": ("textarena", "textarena"), "rljax/WebShop-v0": ("bm25s", "webshop")}


@dataclass(frozen=True, slots=True)
class Need:
    """A package that a config asks for.

    Attributes:
        key: the key, and what it says.
        package: as Python imports it.
        cure: the command that installs it, and what to write instead.
    """

    key: str
    package: str
    cure: str


def generates(config: Config) -> bool:
    """Returns whether a process with this config has engines of the policy, here or on Ray."""
    return config.mode in (*GENERATE, "serve") or (config.mode == "play" and config.play.agent == "model")


def extra_refusals(config: Config) -> Refusals:
    """Yields a refusal for each package that is missing: how it is installed, or what to write instead."""
    yield from (ConfigError(f"{need.key}: {need.package} is not installed; {need.cure}") for need in missing(config))


def missing(config: Config) -> list[Need]:
    """Returns what a process with this config needs and does not find, as far as its keys can be read."""
    needs = (_of_launcher, _of_mode, _of_tasks, _of_environments)
    return [need for each in needs for need in readable(each, config) if not is_installed(need.package)]


def is_installed(package: str) -> bool:
    """Returns whether a package is there; a folder of that name is none."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def _of_launcher(config: Config) -> Iterator[Need]:
    if config.launcher == "ray" and (config.mode == "train" or generates(config)):
        yield Need("launcher=ray", "ray", install_command("ray"))
    elif generates(config):  # Ray's nodes have packages of their own
        yield from _of_engines(config)


def _of_mode(config: Config) -> Iterator[Need]:
    if config.mode == "serve":
        for package in ("aiohttp", "prometheus_client"):
            yield Need("mode=serve", package, install_command("serve"))
    if config.observe.wandb is not None and config.mode in ("both", "train"):
        yield Need(f"observe.wandb={shown(config.observe.wandb)}", "wandb", install_command("wandb"))


def _of_engines(config: Config) -> Iterator[Need]:
    asked = {"sidecar.engine": config.sidecar.engine}
    asked |= {f"judges.{name}.engine": judge.engine for name, judge in config.asked_judges.items()}
    for key, engine in asked.items():
        if (package := ENGINES[engine].package) is not None:
            yield Need(f"{key}={engine}", package, f"{install_vllm()}, or write {key}={kinds_with(package=None)}")


def opened_rows(config: Config) -> dict[str, RowsConfig]:
    """Returns the rows that a process with this config opens, by the path of their keys."""
    sections: dict[str, RowsConfig] = {}
    if config.mode in ("both", "explore"):
        section, tasksets = config.explored
        sections |= {f"{section}.{name}": taskset for name, taskset in tasksets.items()}
    if config.mode in GENERATE:
        sections |= {f"tasks.validation.{name}": taskset for name, taskset in config.tasks.validation.items()}
    if config.mode in ("both", "train") and config.algorithm.expert_data_ratio:
        sections["tasks.expert"] = config.tasks.expert
    return sections


def _of_tasks(config: Config) -> Iterator[Need]:
    for path, rows in opened_rows(config).items():
        yield from readable(partial(_of_source, path), rows)


def _of_source(path: str, rows: RowsConfig) -> Iterator[Need]:
    found = [need for start, need in _OF_SOURCES.items() if rows.source.startswith(start)]
    found += [_OF_TABLES] if any(map(_is_table, rows.source.split(","))) else []
    for package, extra in found:
        yield Need(f"{path}.source={shown(rows.source)}", package, install_command(extra))


def _is_table(source: str) -> bool:
    return source.strip().endswith(".parquet") or user_path(source.strip()).is_dir()


def _of_environments(config: Config) -> Iterator[Need]:
    trained, validated = config.rollout.train_env_manager.tags, config.rollout.val_env_manager.tags
    tags: tuple[str | None, ...] = ()
    if config.mode in ("both", "explore"):
        tags = (*trained, *validated)
    elif config.mode == "evaluate":
        tags = validated
    elif config.mode == "play":
        tags = (config.played_tag,)
    for tag, one in config.environments.items():
        if tag in tags and one.id in _OF_ENVIRONMENTS and one.place != "ray":  # nodes have packages of their own
            package, extra = _OF_ENVIRONMENTS[one.id]
            yield Need(f"custom_envs.{tag}.id={one.id}", package, install_command(extra))
