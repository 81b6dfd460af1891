"""The accelerators by name: what their makers say of one JAX device of each. The only such table."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

GIB = 2.0**30

_NVIDIA = "NVIDIA's datasheet of {}, dense (half of its figure with sparsity where it gives that)"
_FLOAT16 = "; float16, bfloat16 has no units there"
_GOOGLE = "cloud.google.com/tpu/docs/{}"


@dataclass(frozen=True)
class Chip:
    """One JAX device of a kind.

    Attributes:
        name: as ``plan.target`` has it.
        kind: pattern of JAX's ``device_kind``.
        flops: operations a second at its peak, of bfloat16 where it has that.
        source: who says so.
        memory: bytes; of a GPU what CUDA sees of it, of a TPU what its compiler gives to programs.
        link: bytes a second one way: of a GPU to the others of its machine, all links together; of a TPU one link.
        network: bytes a second of a GPU to other machines, by its share of their adapters; 0 of TPUs.
        capability: compute capability of NVIDIA's; 0 of TPUs.
        ring: of TPUs: an axis of that many chips, or a multiple, is closed to a ring, so that both ways are used.
        slices: shapes in which Google has TPUs; none of GPUs, of which any number is taken.
    """

    name: str
    kind: str
    flops: float
    source: str
    memory: float
    link: float
    network: float = 0.0
    capability: float = 0.0
    ring: int = 0
    slices: tuple[tuple[int, ...], ...] = ()

    @property
    def platform(self) -> str:
        """JAX's name of its platform."""
        return "gpu" if self.capability else "tpu"

    def slice_of(self, sizes: Sequence[int]) -> tuple[int, ...] | None:
        """Returns the slice of that shape, or of so many chips the one with the shortest ways; None: there is none."""
        wanted = [s for s in self.slices if s == tuple(sizes) or (len(sizes) == 1 and math.prod(s) == sizes[0])]
        return min(wanted, key=sum, default=None)

    def slices_near(self, sizes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Returns the three slices that have about as many chips as that shape, the nearest first."""
        asked = math.log(math.prod(sizes))
        return tuple(sorted(self.slices, key=lambda s: (abs(math.log(math.prod(s)) - asked), sum(s)))[:3])


def _gpu(name: str, kind: str, teraflops: float, gib: float, gb: float, network: float, capability: float) -> Chip:
    source = _NVIDIA.format(f"the {name.upper().replace('-', ' ')}") + _FLOAT16 * (capability < 8)
    return Chip(name, rf"\b{kind}", teraflops * 1e12, source, gib * GIB, gb * 1e9, network * 1e9, capability)


_Slices = tuple[tuple[int, ...], ...]
_FLAT: _Slices = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))


def _cubes(most: int) -> _Slices:
    """Returns slices of a torus of three axes: parts of a cube of 64 chips, and boxes of so many cubes at most."""
    boxes = (
        (4 * a, 4 * b, 4 * c)
        for a in range(1, most + 1)
        for b in range(a, most // a + 1)
        for c in range(b, most // (a * b) + 1)
    )
    return ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), *boxes)


def _tpu(name: str, kind: str, teraflops: float, gib: float, gb: float, ring: int, slices: _Slices) -> Chip:
    source, pattern = _GOOGLE.format(name), rf"\bTPU {kind}$"
    return Chip(name, pattern, teraflops * 1e12, source, gib * GIB, gb * 1e9, ring=ring, slices=slices)


CHIPS = (
    # bf16 TFLOP/s, GiB, GB/s of NVLink or PCIe, of the network (InfiniBand of NVIDIA's own DGX machines), capability
    _gpu("b200", "G?B200", 2250, 178.4, 900, 50, 10.0),
    _gpu("h200-nvl", "H200 NVL", 835, 139.8, 450, 50, 9.0),
    _gpu("gh200", "GH200", 989.4, 94.5, 450, 50, 9.0),
    _gpu("h200", "H200", 989.4, 139.8, 450, 50, 9.0),
    _gpu("h100-pcie", "H100 PCIe", 756, 79.1, 64, 50, 9.0),
    _gpu("h100-nvl", "H100 NVL", 835, 93.1, 300, 50, 9.0),
    _gpu("h100", r"H100\b", 989.4, 79.1, 450, 50, 9.0),
    _gpu("a100-40", r"A100\b.*40GB", 312, 39.4, 300, 25, 8.0),
    _gpu("a100", r"A100\b", 312, 79.1, 300, 25, 8.0),
    _gpu("l40s", r"L40S\b", 362, 44.4, 32, 25, 8.9),
    _gpu("l4", r"L4\b", 121, 22.0, 32, 12.5, 8.9),
    _gpu("a10g", r"A10G\b", 70, 22.0, 32, 12.5, 8.6),
    _gpu("a10", r"A10\b", 125, 22.0, 32, 12.5, 8.6),
    _gpu("t4", r"T4\b", 65, 14.6, 16, 12.5, 7.5),
    _gpu("v100-32", r"V100\b.*32GB", 125, 31.7, 150, 6.25, 7.0),
    _gpu("v100", r"V100\b", 125, 15.8, 150, 6.25, 7.0),
    # bf16 TFLOP/s, GiB, GB/s of a link one way (jax-ml.github.io/scaling-book), chips of an axis that is a ring, slices
    _tpu("v4", "v4", 275, 30.75, 45, 4, _cubes(64)),
    _tpu("v5e", "v5 ?(lite|e)", 197, 15.75, 45, 16, _FLAT),
    _tpu("v5p", "v5p?", 459, 95.74, 90, 4, _cubes(96)),
    _tpu("v6e", "v6 ?(lite|e)", 918, 31.25, 90, 16, _FLAT),
)
"""The first whose `kind` is found counts."""


def chip_of(kind: str) -> Chip | None:
    """Returns the chip of a ``device_kind`` of JAX's; None where it is not known."""
    return next((chip for chip in CHIPS if re.search(chip.kind, kind)), None)


def chip_named(name: str) -> Chip:
    """Returns the chip of that name."""
    return next(chip for chip in CHIPS if chip.name == name)


def split_target(target: str) -> tuple[Chip, tuple[int, ...]]:
    """Splits ``v5e:4x4`` into its chip and the numbers; without any there is one."""
    name, _, shape = target.partition(":")
    return chip_named(name), tuple(map(int, (shape or "1").split("x")))
