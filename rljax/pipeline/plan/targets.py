"""Targets of a plan: chips that need not be here, and this machine."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import psutil
from jax._src.xla_bridge import backends_are_initialized  # there is no public way to ask without starting them
from jax.experimental import topologies

from rljax.config.chips import GIB as GIB
from rljax.config.chips import Chip, chip_of, split_target
from rljax.config.schema import Config, MeshConfig
from rljax.config.validate_placement import learner_memory_share
from rljax.learner.sharding import AXES, jax_devices
from rljax.models.common.hardware import Hardware
from rljax.pipeline.assemble.devices import jax_memory_share
from rljax.pipeline.assemble.processors import processors_of_host, starts_hosts_here

MACHINE = 8
"""GPUs of a machine at most, all joined by NVLink."""


@dataclass(frozen=True)
class Place:
    """A device of a target, named as JAX names its own."""

    platform: str
    id: int
    process_index: int = 0

    def __str__(self) -> str:
        return f"{self.platform}:{self.id}"


@dataclass(frozen=True)
class Target:
    """The devices that a plan is made for.

    Attributes:
        name: as `plan.target` names it.
        kind: of its devices, as JAX names it or their maker.
        hardware: of one of them.
        shape: how many there are: of TPUs by axis of their torus, of GPUs machines and GPUs of each.
        memory: bytes of a device; of a CPU, the host's, which all have together.
        share: of that memory, what JAX takes in the learner's process.
        chip: what its maker says; None where that is not known.
    """

    name: str
    kind: str
    hardware: Hardware
    shape: tuple[int, ...]
    memory: float
    share: float = 1.0
    chip: Chip | None = None

    @property
    def devices(self) -> int:
        """Number of them."""
        return math.prod(self.shape)

    @property
    def host_only(self) -> bool:
        """True where all devices have one memory, the host's."""
        return self.hardware.platform == "cpu"

    @property
    def machine(self) -> int:
        """GPUs that one machine has."""
        return min(self.shape[-1], MACHINE)

    def hosts(self, used: int) -> int:
        """Returns how many machines have the first so many devices. Each computes in a process of its own; those of a
        slice of TPUs all do, four chips each where more than eight are no longer one machine's.
        """
        if self.name == "here" or self.host_only:
            return 1
        if self.hardware.platform == "gpu":
            return -(-used // self.machine)
        alone = 4 if self.chip and self.chip.ring == 4 else MACHINE
        return 1 if self.devices <= alone else -(-self.devices // 4)

    def each(self, used: int, hosts: int = 1) -> int:
        """Returns how many of the first so many devices a machine has, where at least so many processes share them."""
        return -(-used // max(hosts, self.hosts(used)))

    def present(self, platform: str) -> Sequence[Any]:
        """Returns the devices of a platform, as `jax_devices` does; a machine has its processors besides.

        Raises:
            RuntimeError: there are none.
        """
        if self.name == "here":
            return jax_devices(platform)
        own = self.hardware.platform
        if platform not in ("auto", "cpu", own):
            raise RuntimeError(f"{self.name} has {own} and cpu")
        return [Place("cpu", 0)] if platform == "cpu" else [Place(own, index) for index in range(self.devices)]

    def link(self, mesh: MeshConfig, axis: str, hosts: int = 1) -> tuple[str, float]:
        """Returns what a mesh axis is sent over, and the bytes a second that a device gets by it at most, where a
        learner is so many processes or more.

        The mesh is laid over the devices row by row, so that its last axis is of neighbours. Raises AttributeError
        where the chip is not known.
        """
        chip: Any = self.chip
        size, stride = _laid(mesh, axis)
        if chip and chip.ring:
            return self._ici(size, stride)
        each = self.each(mesh.size, hosts)
        if size * stride <= each:
            return "NVLink" if chip.link > 64e9 else "PCIe", chip.link
        # Those of a group that share a machine have their adapters in common, and what comes in goes around once.
        return "the network", min(chip.link, max(each // stride, 1) * chip.network)

    def crossing(self, mesh: MeshConfig, axis: str, hosts: int = 1) -> int:
        """Returns the groups of a mesh axis that each machine has a part of and no machine has whole: by its network
        comes for each of them what one device receives. TPUs of a slice have none: their links join its machines.
        """
        (size, stride), each = _laid(mesh, axis), self.each(mesh.size, hosts)
        apart = self.chip is not None and not self.chip.ring and size > 1 and size * stride > each
        return min(stride, each) if apart else 0

    def _ici(self, size: int, stride: int) -> tuple[str, float]:
        chip: Any = self.chip
        axes, inner = [], 1
        for length in reversed(self.shape):
            if length > 1 and inner >= stride and inner * length <= stride * size:
                axes.append(length)
            inner *= length
        ways = sum(2 if length % chip.ring == 0 else 1 for length in axes) or 1
        return f"ICI, {len(axes) or 'part of 1'} {'axes' if len(axes) > 1 else 'axis'}", ways * chip.link


def _laid(mesh: MeshConfig, axis: str) -> tuple[int, int]:
    """Returns the devices along a mesh axis, and how far apart neighbours along it are in the order of all."""
    return getattr(mesh, axis), math.prod(getattr(mesh, other) for other in AXES[AXES.index(axis) + 1 :])


def find_target(config: Config) -> Target:
    """Returns the target that ``plan.target`` names; `validate_placement` has seen to it that there is one."""
    name, share = config.plan.target, learner_memory_share(config) or jax_memory_share()
    if name != "here":
        chip, shape = _named(name)
        hardware = Hardware(chip.platform, capability=chip.capability)
        return Target(name, chip.name, hardware, shape, chip.memory, share if chip.platform == "gpu" else 1.0, chip)
    if starts_hosts_here(config) and not backends_are_initialized():  # as the command does for its hosts
        jax.config.update("jax_num_cpu_devices", config.learner.hosts.number * processors_of_host(config))
    devices = jax_devices("auto")
    hardware, limit = Hardware.of(devices[0]), (devices[0].memory_stats() or {}).get("bytes_limit")
    share = share if hardware.platform == "gpu" and limit else 1.0  # of JAX's devices the limit is what it takes
    memory = limit / share if limit else float(psutil.virtual_memory().total)
    kind = devices[0].device_kind
    return Target(name, kind, hardware, _axes(devices), memory, share, chip_of(kind))


def _named(target: str) -> tuple[Chip, tuple[int, ...]]:
    """Returns chip and shape of a target; of so many TPUs the shape that they have."""
    chip, sizes = split_target(target)
    return chip, chip.slice_of(sizes) or sizes


def _axes(devices: Sequence[Any]) -> tuple[int, ...]:
    """Returns how many devices there are, of TPUs by axis of their torus."""
    places = [getattr(device, "coords", None) for device in devices]
    if devices[0].platform == "tpu" and all(places):
        shape = tuple(max(axis) + 1 for axis in zip(*places, strict=True))
        if math.prod(shape) == len(devices):
            return shape
    return (len(devices),)


_WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""Settings of libtpu where it only compiles: to ask no metadata server of Google's cloud, and to take no chip."""
_WITHOUT_GPU = {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
"""Settings of JAX's CUDA plug-in where it only compiles: it refuses to load where there is no driver."""
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 84942979072
  shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 patch: 0 } device_description_str: "NVIDIA H100 80GB HBM3"
"""
"""Description of an H100, as XLA reads it off one."""


def devices_of(name: str) -> Sequence[jax.Device] | str:
    """Returns devices that programs can be compiled for, present or not; where there are none, why."""
    if name == "here":
        return jax.devices()
    chip, shape = _named(name)
    gpu, size = chip.platform == "gpu", math.prod(shape)
    if gpu and chip.name != "h100":
        return f"XLA is told here what an H100 is, and of no {chip.name}"
    for variable, value in (_WITHOUT_GPU if gpu else _WITHOUT_TPU).items():
        os.environ.setdefault(variable, value)
    try:
        if gpu:
            each = min(shape[-1], MACHINE)
            described = {"target_config": _H100, "topology": f"1x{size // each}x{each}"}
            return list(topologies.get_topology_desc(chip.name, platform="cuda", **described).devices)
        topology = f"{chip.name}:{'x'.join(map(str, shape))}"
        few = {"chips_per_host_bounds": (*shape, 1)[:3]} if size < 4 else {}  # libtpu takes a host to have four
        one = {"chip_config_name": "megacore"} if chip.name == "v4" else {}  # else it tells a chip's two cores apart
        return list(topologies.get_topology_desc(platform="tpu", topology_name=topology, **few, **one).devices)
    except Exception as error:  # whatever the plug-in raises: there is none, or it knows no such topology
        plugin = "jax[cuda12]" if gpu else "libtpu"
        return f"{plugin} is not here, or refuses (pip install {plugin}): {' '.join(str(error).split())[:120]}"
