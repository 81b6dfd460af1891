"""Shows what a config becomes, without running it: `rljax --config=NAME --dry-run`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljax.config.extras import GENERATE, missing
from rljax.config.fields import shown
from rljax.config.keys import defaults_of
from rljax.config.load import publishable, without_password
from rljax.config.refusals import Refusals, joined, refused_by
from rljax.config.schema import Config
from rljax.config.secrets import blanked
from rljax.config.sweep import Point
from rljax.config.validate_placement import device_indices
from rljax.pipeline.assemble.compile_cache import compiled_directory
from rljax.pipeline.assemble.names import file_refusals, name_refusals, played_tags, taskset_refusals
from rljax.pipeline.assemble.processors import processors_of_host
from rljax.pipeline.run_dir import RunDir


def resolved_lines(config: Config) -> Iterator[str]:
    """Yields all keys of a config with their values, and those that are not as they are by default; without passwords
    and keys.
    """
    yield "resolved config"
    yield from (f"  {path} = {value!r}" for path, value in _leaves(publishable(config), ""))
    yield "differs from the defaults"
    for path, value, default in _changes(config, defaults_of(Config), ""):
        yield f"  {path} = {shown(blanked(value, path))}  (default {shown(default)})"


def place_lines(config: Config) -> Iterator[str]:
    """Yields what is not installed here, which files are not here, and where a run of the config puts what it leaves
    behind. The run may be somewhere else.
    """
    yield "not installed here, and needed"
    yield from [f"  {need.package}, for {need.key}: {need.cure}" for need in missing(config)] or ["  nothing"]
    yield "not found here, and needed"
    yield from [f"  {error}" for error in file_refusals(config)] or ["  nothing"]
    yield "where things go"
    run = RunDir.at(config)
    root = run.root.absolute()
    there = "  (there already: the run goes on in it)" if run.config.exists() else ""
    places = {
        "run directory": f"{root}{there}",
        "ledger": _ledger(config, root),
        "checkpoints": run.checkpoints.absolute(),
        "weights": {
            "checkpoint": str(run.weights.absolute()),
            "memory": "memory, and no file",
            "nccl": f"sent by the learner, from {config.sync_address}",
        }[config.sync_method],
        "compile cache": compiled_directory(config.compile_cache) or "off: nothing is kept",
    }
    yield from (f"  {what:<13}  {where}" for what, where in places.items())


def untried_lines(config: Config) -> Iterator[str]:
    """Yields what only a run tries."""
    yield "not tried: a run does, before it begins"
    rewards = (
        "looked up and not called" if config.mode in GENERATE else f"not looked up, since mode={config.mode} calls none"
    )
    yield f"  rewards are {rewards}; tasksets are not opened, but for the columns of files; models are not"
    yield "  devices are not looked for; the processors of a learner are counted"
    if (hosts := config.learner.hosts).number > 1 and config.mode in ("both", "train"):
        how = f"launcher={config.launcher}, learner.hosts.start={hosts.start}"
        yield f"  its {hosts.number} hosts are not looked for: {how}"
    here, elsewhere = played_tags(config)
    if here:
        yield f"  environments are looked up and not made: {', '.join(here)}"
    if elsewhere:
        yield f"  environments of place=ray are not looked up, since nodes may have others: {', '.join(elsewhere)}"


def check_names(config: Config) -> None:
    """Imports the rewards, losses and other functions that a config names, and calls none; looks up the ids of its
    environments, and makes none, and the columns of files that are here; counts the processors of its learner, as far
    as no device need be asked.

    Raises:
        ConfigError: some are not there; all but the first are its ``others``.
    """
    if refused := [*name_refusals(config), *taskset_refusals(config), *processor_refusals(config)]:
        raise joined(refused)


def processor_refusals(config: Config) -> Refusals:
    """Yields what is refused of a learner on processors, of which JAX has one unless the environment says more."""
    devices, size = config.learner.devices, config.learner.mesh.size
    if config.mode not in ("both", "train") or config.launcher != "local" or device_indices(devices)[0] != "cpu":
        return
    if devices == "cpu" and size == 1:
        return
    from rljax.learner.sharding import select_devices
    from rljax.pipeline.plan.targets import Place

    each, hosts = processors_of_host(config), config.learner.hosts.number
    there = [Place("cpu", index, index // each) for index in range(each * hosts)]
    yield from refused_by(select_devices, devices, size, lambda _: there)


def sweep_lines(swept: Sequence[Point]) -> Iterator[str]:
    """Yields the runs of a sweep, and where each goes."""
    yield f"a sweep of {len(swept)} runs; what follows is of the first"
    yield from (f"  {point.name}  {Path(point.config.run_dir or '').absolute()}" for point in swept)


def _ledger(config: Config, root: Path) -> str:
    if config.ledger is None:
        return str(root / "ledger.db")
    schema = "" if config.ledger.startswith("sqlite") else f", schema {config.resolved_ledger_schema}"
    return without_password(config.ledger) + schema


def _leaves(values: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _changes(config: Any, defaults: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any, Any]]:
    """Yields (path, value, default) of the keys below a dataclass that are not as they are by default there."""
    for spec in dataclasses.fields(config):
        path, value, default = f"{above}{spec.name}", getattr(config, spec.name), defaults[spec.name]
        if dataclasses.is_dataclass(value):
            yield from _changes(value, _defaults_of(value, default), f"{path}.")
        elif isinstance(value, Mapping) and value and all(map(dataclasses.is_dataclass, value.values())):
            for name, item in value.items():
                yield from _changes(item, _defaults_of(item, default.get(name)), f"{path}.{name}.")
        elif value != default:
            yield path, value, default


def _defaults_of(value: Any, default: Any) -> Mapping[str, Any]:
    """Returns the defaults of a group: as it is made where it stands, which may be other than its class's."""
    if type(default) is not type(value):
        return defaults_of(type(value))
    return {spec.name: getattr(default, spec.name) for spec in dataclasses.fields(default)}
