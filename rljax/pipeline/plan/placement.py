"""Places of a run's engines among a target's devices, by the run's own rules, and the memory that each needs."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rljax.config.engines import ENGINES
from rljax.config.schema import Config
from rljax.config.validate import ConfigError
from rljax.config.validate_placement import device_indices, engine_memory_share, shares_gpu_memory
from rljax.learner.export import hands_over
from rljax.learner.sharding import select_devices
from rljax.models.adapter import publishes_adapter
from rljax.models.frozen import serves_engines
from rljax.pipeline.assemble.devices import JAX_MEMORY_SHARE, device_name, pool_gpus
from rljax.pipeline.assemble.engines import Before, embedded_devices, local_platform
from rljax.pipeline.plan.estimate import BYTES, Estimate
from rljax.pipeline.plan.targets import GIB, Target

SPARE = 0.05
"""Share of a GPU that is left to CUDA where JAX is to take more than by itself."""
NONE_BEFORE = Before()


@dataclass(frozen=True)
class Placement:
    """Devices of the engines.

    Attributes:
        engines: of each engine, by name.
        platform: of all of them.
        shared: whether one of them is the learner's.
        own_process: whether they are of other processes than the learner.
        scorers: judges and reward models, where these are the policy's engines.
    """

    engines: tuple[tuple[str, ...], ...]
    platform: str
    shared: bool
    own_process: bool
    scorers: tuple[Scorer, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of all their devices."""
        return list(dict.fromkeys(name for engine in self.engines for name in engine))

    @property
    def apart(self) -> bool:
        """True where each engine has accelerators that nothing else of the run computes on."""
        return self.platform != "cpu" and not self.shared and self.fullest == 1

    @property
    def beside_learner(self) -> bool:
        """True where engines compute on the learner's device, or on CPUs, which all that runs there shares."""
        return self.shared or self.platform == "cpu"

    def on(self, name: str) -> int:
        """Returns how many of them are on a device."""
        return sum(name in names for names in self.engines)

    @property
    def fullest(self) -> int:
        """Engines that share a device at most."""
        return max(map(self.on, self.names))

    def __str__(self) -> str:
        names = self.names
        few = ", ".join(names) if len(names) < 5 else f"{names[0]} to {names[-1]}"
        return f"on {few}{', shared with the learner' * (self.shared and self.platform != 'cpu')}"


@dataclass(frozen=True)
class Scorer:
    """A judge or reward model, and its devices.

    Attributes:
        what: its section and name.
        placement: of its engines; a reward model is one engine.
        kinds: bytes that one takes of each of its devices, by kind.
        room: bytes of a device that its process gets.
        home: whose process that is, ``learner`` or ``explorer``; empty where it has its own.
        count: how many of what kind.
        asked: how much at once.
    """

    what: str
    placement: Placement
    kinds: Mapping[str, float]
    room: float
    home: str
    count: str
    asked: str

    @property
    def size(self) -> float:
        """Bytes that one takes of each of its devices."""
        return sum(self.kinds.values())

    @property
    def everywhere(self) -> float:
        """Bytes on all devices together."""
        return self.size * sum(map(len, self.placement.engines))


@dataclass(frozen=True)
class Pool:
    """Memory that something has to itself: bytes that it needs, bytes that it gets, and the key that says how many."""

    what: str
    needed: float
    limit: float
    advice: str = ""

    @property
    def fits(self) -> bool:
        """True where it suffices."""
        return self.needed <= self.limit

    def __str__(self) -> str:
        return f"{self.needed / GIB:.2f} of {self.limit / GIB:.2f} GiB on {self.what}"


def learner_names(config: Config, target: Target) -> list[str]:
    """Returns the names of the learner's devices; of several hosts on GPUs each has the first of its machine.

    Raises:
        ConfigError: they are not there.
    """
    size, hosts = config.learner.mesh.size, config.learner.hosts.number
    devices = select_devices(config.learner.devices, size, target.present)
    if hosts > 1 and target.name != "here" and target.hardware.platform == "gpu":
        each = size // hosts
        return [device_name("gpu", i // each * target.machine + i % each) for i in range(size)]
    return [device_name(device.platform, device.id) for device in devices]


def place_engines(config: Config, target: Target, before: Before = NONE_BEFORE) -> Placement:
    """Returns where the engines of a run (``mode=both``), or of a judge in it, compute, after those ``before``.

    Raises:
        ConfigError: the run would refuse it on such devices.
    """
    sidecar, count = config.sidecar, config.sidecar.num_engines
    own_process = not ENGINES[sidecar.engine].in_process or config.explorer.own_process or config.launcher == "ray"
    if config.launcher == "ray":
        return _on_ray(config, target, before)
    if ENGINES[sidecar.engine].in_process:
        devices = embedded_devices(config, before, _home(config, target).present)
        placed = [devices[index % len(devices)] for index in range(count)]
        names = [device_name(device.platform, device.id) for device in placed]
        shared = not set(names).isdisjoint(learner_names(config, target))
        return Placement(tuple((name,) for name in names), placed[0].platform, shared, own_process)
    here, own = target.name == "here", "gpu" if target.hardware.platform == "gpu" else "cpu"
    named, _ = device_indices(sidecar.devices)
    if (local_platform(config) if here else own if named == "auto" else named) != "gpu":
        return Placement((("cpu",),) * count, "cpu", target.host_only, own_process)
    there = None if here else target.machine if own == "gpu" else 0
    try:
        gpus = [f"gpu:{gpu}" for gpu in pool_gpus(config, before.taken, there, target.present)]
    except ConfigError as error:
        if target.devices == there or here:
            raise
        raise ConfigError(
            f"{error}; launcher=local starts engines on the learner's machine alone: for others write launcher=ray"
        ) from None
    size = sidecar.tensor_parallel_size
    each = tuple(tuple(gpus[index * size :][:size]) for index in range(count))
    return Placement(each, "gpu", sidecar.colocate, own_process)


def _home(config: Config, target: Target) -> Target:
    """Returns the machine on which one process has learner and engines; the target where the learner is on several."""
    gpus = target.name != "here" and target.hardware.platform == "gpu"
    alone = gpus and config.learner.mesh.size <= target.machine
    return dataclasses.replace(target, shape=(target.machine,)) if alone else target


def _on_ray(config: Config, target: Target, before: Before) -> Placement:
    """Returns engines on devices that are named or left, as if the target were the cluster: Ray gives each its own."""
    count, size = config.sidecar.num_engines, config.sidecar.tensor_parallel_size
    platform, named = device_indices(config.sidecar.devices)
    gpus = target.devices if target.hardware.platform == "gpu" else 0
    taken = before.taken.union(learner_names(config, target) if gpus else ())
    left = [index for index in range(gpus) if f"gpu:{index}" not in taken]
    if platform == "cpu" or (platform == "auto" and not left):
        return Placement((("cpu",),) * count, "cpu", target.host_only, True)
    what = f"launcher=ray: the engines need {count * size} GPUs, and"
    if named is not None and (absent := sorted(named.difference(left))):
        where = f"has {gpus}, counted from 0" if absent[-1] >= gpus else "gives the others to the learner"
        raise ConfigError(
            f"sidecar.devices={config.sidecar.devices!r}: {target.name} {where}; write others, or gpu for any that are "
            "free"
        )
    if count * size > len(left):
        raise ConfigError(f"{what} the learner leaves {len(left)}")
    machine = target.machine if target.name != "here" else max(gpus, 1)
    engines = _in_turn(sorted(named), size) if named is not None else _together(left, size, machine)
    if len(engines) < count:
        raise ConfigError(
            f"{what} only {len(engines)} × {size} of those that the learner leaves are on one machine each"
        )
    for mine in engines[:count]:
        if len({index // machine for index in mine}) > 1:
            raise ConfigError(f"sidecar.devices={config.sidecar.devices!r}: {mine} of an engine are on two machines")
    each = tuple(tuple(f"gpu:{index}" for index in mine) for mine in engines[:count])
    return Placement(each, "gpu", False, True)


def _in_turn(indices: Sequence[int], size: int) -> list[Sequence[int]]:
    """Returns engines of so many devices each, in the order of these."""
    return [indices[first : first + size] for first in range(0, len(indices) - size + 1, size)]


def _together(left: Sequence[int], size: int, machine: int) -> list[Sequence[int]]:
    """Returns engines of so many devices each, all of them on one machine."""
    by_machine = itertools.groupby(left, key=lambda index: index // machine)
    return [engine for _, indices in by_machine for engine in _in_turn(list(indices), size)]


def engine_room(config: Config, target: Target) -> float:
    """Returns the bytes of a device that an engine in a process of its own gets."""
    if target.hardware.platform != "gpu":
        return target.memory
    given = not ENGINES[config.sidecar.engine].in_process or shares_gpu_memory(config)
    return target.memory * (engine_memory_share(config) if given else JAX_MEMORY_SHARE)


def pools(estimate: Estimate, target: Target, placement: Placement, peak: float | None = None) -> list[Pool]:
    """Returns what has to fit where.

    Args:
        estimate: of the learner and its engines.
        target: the devices.
        placement: of the engines, and of what scores.
        peak: of the learner's programs, where the compiler has said it.
    """
    config, mesh, scorers = estimate.config, estimate.mesh, placement.scorers
    kinds = estimate.memory()
    # No program takes all that stays.
    learner = sum(kinds.values()) if peak is None else peak + sum(estimate.standing().values())
    room = engine_room(config, target) if placement.platform == "gpu" else None
    on_host = placement.platform == "cpu"
    of_engine = estimate.engine(room, base=not shares_base(estimate, target, placement), on_host=on_host)
    engine = sum(of_engine.values())
    if target.host_only:
        everything = learner * mesh.size + engine * len(placement.engines) + sum(one.everywhere for one in scorers)
        what = "learner, engines, judges and reward models" if scorers else "learner and engines"
        return [Pool(what, everything, target.memory)]
    limit = target.memory * target.share
    learners, engines = learner_names(config, target), placement.names
    beside = [one for one in scorers if one.home == "learner"]
    learner += _fullest(beside, [*learners, *engines] if placement.shared else learners)
    others = [pool for one in scorers if (pool := _of_scorer(one, scorers, {*learners, *engines}))]
    joined = [one for one in scorers if one.home == ("explorer" if placement.own_process else "learner")]
    if placement.shared and not placement.own_process:
        needed = learner + engine * placement.fullest + handed_over(estimate, target, placement)
        advice = _learners_share(needed, target, 0.0)
        return [Pool("a learner's device with its engine", needed, limit, advice), *others]
    taken = engine_room(config, target) if placement.shared else 0.0
    found = [Pool("a learner's device", learner, limit, _learners_share(learner, target, taken))]
    if on_host:
        return [*found, *others]  # of a host that is not here nobody knows the memory
    if ENGINES[config.sidecar.engine].in_process and config.launcher == "local":
        engine = engine * placement.fullest + _fullest(joined, engines)
    if placement.own_process:
        advice = _engines_share(estimate, target, placement)
        return [*found, Pool("an engine's device", engine, engine_room(config, target), advice), *others]
    return [*found, Pool("an engine's device", engine, limit, _learners_share(engine, target, 0.0)), *others]


def handed_over(estimate: Estimate, target: Target, placement: Placement) -> float:
    """Returns the bytes of the version that engines on the learner's only accelerator are handed there, and no file,
    beyond what they compute with themselves.
    """
    config = estimate.config
    beside = placement.platform != "cpu" and _on_only_device(estimate, target, placement)
    if not beside or not config.asks_engines or hands_over(config) or config.sync_method != "checkpoint":
        return 0.0
    numbers = estimate.adapter if publishes_adapter(estimate.config) else estimate.parameters
    return float(numbers * BYTES[estimate.config.resolved_sync_dtype])


def shares_base(estimate: Estimate, target: Target, placement: Placement) -> bool:
    """Returns whether engines compute with the frozen weights of the learner; see `FrozenBase`."""
    return serves_engines(estimate.config) and _on_only_device(estimate, target, placement)


def _on_only_device(estimate: Estimate, target: Target, placement: Placement) -> bool:
    """Returns whether engines are threads of the learner's process on its only device."""
    alone = estimate.mesh.size == 1 and placement.names == learner_names(estimate.config, target)
    return alone and not placement.own_process


def _fullest(scorers: Sequence[Scorer], names: Sequence[str]) -> float:
    """Returns the bytes of scorers on the fullest of these devices."""
    return max((sum(one.size * one.placement.on(name) for one in scorers) for name in names), default=0.0)


def _of_scorer(scorer: Scorer, every: Sequence[Scorer], counted: Collection[str]) -> Pool | None:
    """Returns what has to fit on the devices of a scorer; None where they are counted already, or the host's."""
    names = [name for name in scorer.placement.names if name not in counted]
    if not names or scorer.placement.platform == "cpu":
        return None
    beside = [one for one in every if one.home == scorer.home] if scorer.home else [scorer]
    return Pool(f"a device of {scorer.what}", _fullest(beside, names), scorer.room)


def _learners_share(needed: float, target: Target, taken: float) -> str:
    """Returns the key and the value with which so many bytes fit; empty where none does. ``taken`` is another's."""
    if math.isinf(needed):  # a compiler that refuses does not say by how much
        return ""
    share = math.ceil(100 * needed / target.memory) / 100
    most = 1 - (taken / target.memory or SPARE)
    return f"learner.gpu_memory_utilization={share:g}" if target.share < share <= most else ""


def _engines_share(estimate: Estimate, target: Target, placement: Placement) -> str:
    """Returns the key and the value with which vLLM has room for its weights and cache, of one request at least; empty
    where none does, and for an embedded engine of its own process, whose share of a GPU is JAX's.
    """
    config, a = estimate.config, estimate.architecture
    if ENGINES[config.sidecar.engine].in_process or placement.platform != "gpu":
        return ""

    def least(one: Estimate) -> float:
        kept = one.config.sidecar.kv_cache_gib
        return one.engine(0.0)["weights"] + (one.config.context * one.token if kept is None else kept * GIB)

    share = math.ceil(100 * least(estimate) / target.memory) / 100
    if share <= 1 - (target.share if placement.shared else SPARE):
        return f"sidecar.gpu_memory_utilization={share:g}"
    for size in (n for n in range(config.sidecar.tensor_parallel_size + 1, a.num_heads + 1) if a.num_heads % n == 0):
        try:
            sidecar = dataclasses.replace(config.sidecar, tensor_parallel_size=size)
            cut = dataclasses.replace(estimate, config=dataclasses.replace(config, sidecar=sidecar))
            place_engines(cut.config, target)
        except ConfigError:  # on so few GPUs, or by such an engine
            continue
        if least(cut) <= engine_room(cut.config, target):
            return f"sidecar.tensor_parallel_size={size}"
    return ""


def hosts_of(estimate: Estimate, target: Target) -> int:
    """Returns how many processes the learner is, or has to be."""
    return max(estimate.config.learner.hosts.number, target.hosts(estimate.mesh.size))
