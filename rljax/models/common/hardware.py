"""Hardware that a program is compiled for, and how the model's activations are laid over it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike

Rule = tuple[str | tuple[str, ...] | None, ...]
"""One entry per dimension of an array: the mesh axis that shards it, several, or None."""

BATCH = ("data", "fsdp", "expert")

FSDP = ("fsdp", "expert")
"""Axes that cut every matrix but those of experts: along `expert` devices have rows of their own, as along `fsdp`."""

EXPERT_COLUMNS: Rule = ("expert", "fsdp", "tensor")
"""Of the experts' matrices that read the residual stream; `EXPERT_ROWS`: of those that write it."""
EXPERT_ROWS: Rule = ("expert", "tensor", "fsdp")

TABLE: Rule = ("tensor", FSDP)
"""Of the embedding and of a transposed output head: rows, one a word, and columns."""

# Activations by the names that the model gives them; `logits` are those of some tokens or of some of the vocabulary.
# `residual` is the stream between blocks under Megatron's sequence parallelism: cut along time over `tensor` too.
# `columns` are embeddings whose width is sharded like that of their table, so that each device looks up, and adds up
# the gradient of, its columns of the table and no other.
ACTIVATIONS: Mapping[str, Rule] = {
    "hidden": (BATCH, "sequence", None),
    "residual": (BATCH, ("sequence", "tensor"), None),
    "columns": ("data", "sequence", FSDP),
    "heads": (BATCH, "sequence", "tensor", None),
    "mlp": (BATCH, "sequence", "tensor"),
    "logits": (BATCH, "sequence", "tensor"),
}
GPUS = ("gpu", "cuda", "rocm")
"""JAX's names of them."""


def spec(rule: Rule, shape: Sequence[int], mesh: Mesh) -> P:
    """Returns the partition of an array of that shape under a rule; entries that do not divide
    their dimension are dropped.

    Raises:
        ValueError: the rule has another number of dimensions, or names a mesh axis twice.
    """
    if len(rule) != len(shape):
        raise ValueError(f"sharding rule {rule} has {len(rule)} dimensions, the array {tuple(shape)} has {len(shape)}")
    groups = [() if entry is None else (entry,) if isinstance(entry, str) else entry for entry in rule]
    axes = [axis for group in groups for axis in group]
    if len(set(axes)) != len(axes):
        raise ValueError(f"sharding rule {rule} names a mesh axis twice")
    fits = [
        size % math.prod(mesh.shape[axis] for axis in group) == 0 for group, size in zip(groups, shape, strict=True)
    ]
    return P(*[entry if fit else None for entry, fit in zip(rule, fits, strict=True)])


@dataclass(frozen=True)
class Hardware:
    """Hardware that a program is compiled for, which need not be what this process runs on. Hashable: a static
    argument.

    Attributes:
        platform: ``cpu``, ``gpu`` or ``tpu``.
        mesh: of the devices that share the program; None for one device.
        capability: compute capability of NVIDIA's GPUs; 0 of everything else.
        sequence_parallel: whether the residual stream is cut over `tensor`; see `learner.sequence_parallel`.
    """

    platform: str = "cpu"
    mesh: Mesh | None = None
    capability: float = 0.0
    sequence_parallel: bool = False

    @classmethod
    def of(cls, devices: Mesh | jax.Device, sequence_parallel: bool = False) -> Hardware:
        """Returns the hardware of a mesh, or of one device."""
        mesh, device = (devices, devices.devices.flat[0]) if isinstance(devices, Mesh) else (None, devices)
        platform = "gpu" if device.platform in GPUS else device.platform
        capability = str(getattr(device, "compute_capability", ""))  # of AMD's GPUs it is a word
        return cls(platform, mesh, float(capability) if capability[:1].isdigit() else 0.0, sequence_parallel)

    @property
    def shared(self) -> bool:
        """True where several devices share the program."""
        return self.mesh is not None and self.mesh.size > 1

    def constrain(self, x: jax.Array, name: str) -> jax.Array:
        """Shards an activation over the mesh by the rule of its name."""
        if self.mesh is None:
            return x
        return jax.lax.with_sharding_constraint(
            x, NamedSharding(self.mesh, spec(ACTIVATIONS[name], x.shape, self.mesh))
        )

    def residual(self, x: jax.Array) -> jax.Array:
        """Shards the residual stream, or what is added to it: a sum over `tensor` is scattered there."""
        return self.constrain(x, "residual" if self.sequence_parallel else "hidden")

    def gathered(self, x: jax.Array) -> jax.Array:
        """Gathers over `tensor` what was computed of the residual stream, before a product needs all of its places."""
        return self.constrain(x, "hidden") if self.sequence_parallel else x

    def repeatable(self, autotuned: bool = True) -> dict[str, bool] | None:
        """Returns the options for XLA by which a program gives the same bits whenever it runs; None where it needs
        none. A GPU's scatters would else add in any order.

        Args:
            autotuned: whether kernels may be chosen by timing them: one program, compiled again, may differ.
        """
        if self.platform != "gpu":
            return None
        return {"xla_gpu_exclude_nondeterministic_ops" if autotuned else "xla_gpu_deterministic_ops": True}

    def precise(self, dtype: DTypeLike) -> contextlib.AbstractContextManager[None]:
        """Returns the context in which to trace products of that dtype, so that those of float32 are of float32: JAX
        else has a TPU round what it multiplies to bf16, and a GPU to TF32.
        """
        rounded = self.platform != "cpu" and jnp.dtype(dtype) == jnp.float32
        return jax.default_matmul_precision("highest") if rounded else contextlib.nullcontext()

    def axes(self, rule: Rule, shape: Sequence[int]) -> tuple[tuple[str, ...], ...]:
        """Returns the mesh axes that cut each dimension of an array of that shape under a rule: see `spec`. Axes of
        one device cut nothing and are left out.
        """
        if self.mesh is None:
            return ((),) * len(rule)
        groups = [() if e is None else (e,) if isinstance(e, str) else e for e in spec(rule, shape, self.mesh)]
        return tuple(tuple(axis for axis in group if self.mesh.shape[axis] > 1) for group in groups)

    def parts(self, axes: Sequence[str]) -> int:
        """Returns into how many parts these mesh axes cut a dimension."""
        return math.prod(self.mesh.shape[axis] for axis in axes) if self.mesh is not None else 1

    def by_device(self, function: Callable[..., Any], inputs: Any, outputs: Any) -> Callable[..., Any]:
        """Returns the function that every device runs on its own parts of the arrays (``jax.shard_map``); the
        function itself where there is one device.

        Args:
            function: of the parts; it does its own collectives.
            inputs: partition of each argument.
            outputs: partition of the results.
        """
        if not self.shared:
            return function
        # No check of what is replicated: kernels do not say it of their results.
        return jax.shard_map(function, mesh=self.mesh, in_specs=inputs, out_specs=outputs, check_vma=False)


CPU = Hardware()
"""One CPU: what programs for it compute is right on every device."""
