"""Plans the placement group of a run: one bundle for the learner, one for each engine, one for an explorer of its own.

The learner is the process that the user started, so its bundle is on that process's node and holds its accelerators
only: they are its own whether Ray knows it or not. ``gpu:4-7`` names accelerators as ROLL's device mappings do:
counted over the nodes, that of the learner first; engine i takes the i-th ``tensor_parallel_size`` of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rljax.config.judges import JudgeConfig
from rljax.config.schema import Config
from rljax.config.validate import ConfigError
from rljax.config.validate_placement import device_indices

ACCELERATORS = {"gpu": "GPU", "tpu": "TPU"}
"""Ray's name of a platform's accelerators."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster: its id, the address in its own resource, and what it has by name."""

    id: str
    address: str
    resources: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class EngineBundle:
    """Bundle of one engine: resources, and where ``devices`` are counted from 0 on ``node``, exactly those."""

    resources: Mapping[str, float]
    accelerator: str = ""
    accelerators: int = 0
    node: str | None = None
    devices: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Resources that are reserved on a cluster.

    Attributes:
        home: node of the process that asks.
        learner: resources of the learner; empty in a process that does not learn.
        learner_devices: its accelerators, counted from 0 on its node.
        engines: the bundle of each engine.
        explorer: resources of an explorer in an actor of its own, or None.
    """

    home: Node
    learner: Mapping[str, float]
    learner_devices: tuple[int, ...]
    engines: tuple[EngineBundle, ...]
    explorer: Mapping[str, float] | None

    def bundles(self) -> tuple[list[dict[str, float]], list[dict[str, str]]]:
        """Returns resources and node labels of every bundle: the learner's, those of the engines, the explorer's."""
        here = {"ray.io/node-id": self.home.id}
        # The address of a node is a resource that every node has: a place on it even where nothing else is asked.
        bundles = [{f"node:{self.home.address}": 0.001, **self.learner}]
        labels = [here]
        for engine in self.engines:
            bundles.append(dict(engine.resources))
            labels.append({} if engine.node is None else {"ray.io/node-id": engine.node})
        if self.explorer is not None:
            bundles.append(dict(self.explorer))
            labels.append({})
        return bundles, labels

    def asked(self) -> dict[str, float]:
        """Returns the sum over all bundles, without the nodes' own resources."""
        return add_up([self.learner, *(e.resources for e in self.engines), self.explorer or {}])


def add_up(resources: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Adds up resources by name, leaving out those that Ray lets nobody request."""
    total: dict[str, float] = {}
    for one in resources:
        for name, amount in one.items():
            if not name.startswith("node:"):
                total[name] = total.get(name, 0.0) + amount
    return total


def make_plan(config: Config, home: Node, others: Sequence[Node], learner_platform: str) -> Plan:
    """Plans the resources that this process requests.

    Args:
        config: of the run.
        home: the node of this process.
        others: the other nodes, in an order that every process sees.
        learner_platform: ``cpu``, ``gpu`` or ``tpu``: what the learner of this process computes on.

    Raises:
        ConfigError: the devices named are too few, are not there, or lie on two nodes.
    """
    learner, mine = _learner(config, learner_platform)
    learners = of_hosts(config, learner_platform) if config.has_hosts else learner
    explorer = {"CPU": 1.0} if config.mode == "both" and config.explorer.own_process else None
    platform, named = device_indices(config.sidecar.devices)
    if platform == "auto":
        platform = _auto_platform([home, *others], learners)
    kind = ACCELERATORS.get(platform, "")
    count = config.sidecar.tensor_parallel_size if kind else 0
    resources = {
        "CPU": config.ray.cpus_per_engine,
        **({kind: float(count)} if kind else {}),
        **{name: float(amount) for name, amount in config.ray.engine_resources.items()},
    }
    if config.mode == "train":  # its engines are the explorers' to ask for
        return Plan(home, learner, mine, (), None)
    where: list[tuple[str | None, tuple[int, ...] | None]] = [(None, None)] * config.sidecar.num_engines
    if kind and named is not None:
        where = _exactly(config, kind, sorted(named), [home, *others])
    engines = [EngineBundle(resources, kind, count, node, devices) for node, devices in where]
    for judge in config.asked_judges.values():
        for _ in range(judge.num_engines):
            taken = add_up([learners, *(engine.resources for engine in engines)])
            engines.append(_of_judge(config, judge, [home, *others], taken))
    return Plan(home, learner, mine, tuple(engines), explorer)


def of_hosts(config: Config, platform: str) -> dict[str, float]:
    """Returns the accelerators that the hosts of a learner have together."""
    return {ACCELERATORS[platform]: float(config.learner.mesh.size)} if platform in ACCELERATORS else {}


def cpus_needed(config: Config) -> int:
    """Returns the CPUs that a cluster of one's own must count, whatever the machine has, an evaluator's engines
    included.
    """
    engines = config.sidecar.num_engines + sum(judge.num_engines for judge in config.asked_judges.values())
    hosts = config.learner.hosts.number if config.has_hosts else 0
    return 2 * math.ceil(engines * config.ray.cpus_per_engine) + config.explorer.own_process + hosts


def swap_taken(taken: Sequence[str], reserved: Sequence[str]) -> dict[str, str]:
    """Pairs the accelerators that the learner took beside its reservation with those that it left of it.

    Ray does not choose which accelerators of a node a bundle gets, and JAX has chosen the learner's before. An engine
    that is assigned the first of a pair uses the second.
    """
    extra = [name for name in taken if name not in reserved]
    left = [name for name in reserved if name not in taken]
    return dict(zip(extra, left, strict=False))


def _learner(config: Config, platform: str) -> tuple[dict[str, float], tuple[int, ...]]:
    if config.mode not in ("both", "train") or platform not in ACCELERATORS or config.has_hosts:  # those have theirs
        return {}, ()
    _, named = device_indices(config.learner.devices)
    count = config.learner.mesh.size
    return {ACCELERATORS[platform]: float(count)}, tuple(sorted(named)) if named else tuple(range(count))


def _of_judge(config: Config, judge: JudgeConfig, nodes: Sequence[Node], taken: Mapping[str, float]) -> EngineBundle:
    """Returns the bundle of one engine of a judge, after what is ``taken``."""
    platform, _ = device_indices(judge.devices)
    if platform == "auto":
        platform = _auto_platform(nodes, taken)
    kind = ACCELERATORS.get(platform, "")
    return EngineBundle({"CPU": config.ray.cpus_per_engine, **({kind: 1.0} if kind else {})}, kind, int(bool(kind)))


def _auto_platform(nodes: Sequence[Node], learner: Mapping[str, float]) -> str:
    """Returns the platform of ``sidecar.devices=auto``: GPUs where the learner leaves some, else the CPU. Engines in
    processes of their own do not compute on TPUs.
    """
    total = add_up([node.resources for node in nodes])
    return "gpu" if total.get("GPU", 0.0) - learner.get("GPU", 0.0) > 0 else "cpu"


def _exactly(
    config: Config, kind: str, indices: Sequence[int], nodes: Sequence[Node]
) -> list[tuple[str | None, tuple[int, ...] | None]]:
    key, size, engines = "sidecar.devices", config.sidecar.tensor_parallel_size, config.sidecar.num_engines
    if len(indices) < size * engines:
        raise ConfigError(
            f"{key}={config.sidecar.devices!r}: names {len(indices)} devices; num_engines × tensor_parallel_size = "
            f"{engines} × {size} need {size * engines}"
        )
    there = [(node.id, i) for node in nodes for i in range(int(node.resources.get(kind, 0)))]
    if indices[-1] >= len(there):
        raise ConfigError(f"{key}={config.sidecar.devices!r}: the cluster has {len(there)} {kind}s, counted from 0")
    where: list[tuple[str | None, tuple[int, ...] | None]] = []
    for i in range(engines):
        mine = [there[index] for index in indices[i * size : (i + 1) * size]]
        if len({node for node, _ in mine}) > 1:
            raise ConfigError(
                f"{key}={config.sidecar.devices!r}: engine {i} would lie on two nodes; choose devices so that each "
                f"{size} in turn are on one"
            )
        where.append((mine[0][0], tuple(index for _, index in mine)))
    return where
