"""Targets of a plan: chips by name, with what their makers say of them, and this machine."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import psutil
from jax.experimental import topologies

from rljax.models.common.hardware import Hardware

GIB = float(2**30)


@dataclass(frozen=True)
class Target:
    """The devices that a plan is made for.

    Attributes:
        name: as `plan.target` names it.
        hardware: of one of them.
        devices: how many there are.
        memory: bytes of a device; of a CPU, the host's, which all have together.
        flops: bf16 operations a second at the peak of a device; None where nobody says.
        links: bytes a second that a device sends to the others, all links together; None likewise.
    """

    name: str
    hardware: Hardware
    devices: int
    memory: float
    flops: float | None
    links: float | None

    @property
    def shared(self) -> bool:
        """True where all devices have one memory."""
        return self.hardware.platform == "cpu"


CHIPS = {
    "v5e": (Hardware("tpu"), 16 * GIB, 197e12, 200e9),
    "v5p": (Hardware("tpu"), 95 * GIB, 459e12, 600e9),
    "v6e": (Hardware("tpu"), 32 * GIB, 918e12, 400e9),
    "h100": (Hardware("gpu", capability=9.0), 79 * GIB, 989e12, 450e9),
}
"""Hardware, bytes, dense bf16 operations and bytes of the links a second of each JAX device, as makers publish them
(of an H100's 80 GB, 79 GiB are what JAX sees)."""

_WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""Settings of libtpu where it only compiles: to ask no metadata server of Google's cloud, and to take no chip."""


def find_target(name: str) -> Target:
    """Returns the target that ``plan.target`` names; `validate_placement` has seen to it that there is one."""
    if name != "here":
        chip, _, shape = name.partition(":")
        hardware, memory, flops, links = CHIPS[chip]
        return Target(name, hardware, math.prod(map(int, (shape or "1").split("x"))), memory, flops, links)
    devices = jax.devices()
    first = devices[0]
    limit = (first.memory_stats() or {}).get("bytes_limit", psutil.virtual_memory().total)
    kind = first.device_kind.lower().replace(" ", "")
    known = next((chip for chip in CHIPS if chip in kind), None)
    here = (f"here: {first.device_kind}", Hardware.of(first), len(devices), float(limit))
    return Target(*here, *(CHIPS[known][2:] if known else (None, None)))


def devices_of(name: str) -> Sequence[jax.Device] | str:
    """Returns devices that programs can be compiled for, present or not; where there are none, why."""
    if name == "here":
        return jax.devices()
    chip, _, shape = name.partition(":")
    if CHIPS[chip][0].platform != "tpu":
        return "compiling for GPUs that are not here needs JAX's CUDA plug-in and a description of the chip"
    for variable, value in _WITHOUT_TPU.items():
        os.environ.setdefault(variable, value)
    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=f"{chip}:{shape or '1x1'}").devices)
    except Exception as error:  # whatever the plug-in raises: there is none, or it knows no such topology
        return f"libtpu is not here, or refuses (pip install libtpu): {' '.join(str(error).split())[:120]}"
