"""Frozen weights of an engine, and the adapters that versions put on them: one, or several side by side."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from rljax.models.adapter import modules
from rljax.models.common.architecture import Architecture
from rljax.models.common.lora import Adapted
from rljax.models.common.params import Params
from rljax.models.common.placing import on_device
from rljax.models.files import stored_tensors
from rljax.models.frozen import FrozenBase
from rljax.models.hf_names import from_hf_by_layer, under_layer
from sidecar.adapters import EVERY, FIRST, SECOND, frozen
from sidecar.channels.versions import AdapterInfo, PublishedVersion
from sidecar.held import HeldVersions
from sidecar.stored import Tensor

Pairs = dict[str, tuple[jax.Array, jax.Array]]
"""The two factors of each adapted matrix of a layer, by its key."""


@dataclass(frozen=True)
class Below:
    """Frozen weights below an adapter, as an engine is given them.

    Attributes:
        model: directory of them.
        shared: those of a learner, in the engine's dtype and on its device; None: it has its own.
    """

    model: Path
    shared: FrozenBase | None = None


class FrozenWeights:
    """Weights below an adapter, on the device once for all versions. They are read when the first version needs them.

    Args:
        below: where they are; None: no version is an adapter.
        architecture: of the model.
        dtype: of the computation.
        device: where to compute.
    """

    def __init__(self, below: Below | None, architecture: Architecture, dtype: str, device: jax.Device) -> None:
        self._given, self._architecture, self._dtype, self._device = below, architecture, dtype, device
        self._below: tuple[tuple[str, str], Params] | None = None
        if below is not None and (shared := below.shared) is not None:
            self._below = (shared.fingerprint, shared.dtype), shared.by_layer()

    def adapted(self, published: PublishedVersion) -> Params:
        """Returns the parameters of the model with a version's adapter on them; the frozen ones are shared by all.

        Raises:
            VersionError: it is an adapter of another model.
            ValueError: it is none of this architecture; or there is no model for it.
        """
        adapter = published.manifest.adapter
        assert adapter is not None
        base, left = self._base(adapter), dict(published.tensors)
        layers = [dict(layer) for layer in base["layers"]]
        for module, key in under_layer(EVERY, modules(self._architecture)).items():
            if f"{module}.{FIRST}" not in left:
                continue
            first, second = (self._factors(f"{module}.{end}", left) for end in (FIRST, SECOND))
            for layer, a, b in zip(layers, first, second, strict=True):
                rows, columns = layer[key].shape
                if (a.shape[0], b.shape) != (rows, (a.shape[1], columns)):
                    raise ValueError(f"factors of {module} are {list(a.shape)} and {list(b.shape)}: not of this model")
                layer[key] = Adapted(layer[key], a, b, scale=adapter.scale)
        if left:
            raise ValueError(f"the adapter has {len(left)} tensors that nothing reads, the first is {min(left)}")
        return {**base, "layers": tuple(layers)}

    def _factors(self, name: str, left: dict[str, Any]) -> tuple[jax.Array, ...]:
        """Returns a factor of each layer, [in, out]."""
        if name not in left or len(left[name]) != self._architecture.num_layers:
            raise ValueError(f"the adapter lacks {name} of {self._architecture.num_layers} layers")
        return _by_layer(jax.device_put(left.pop(name), self._device), dtype=self._dtype)

    def _base(self, adapter: AdapterInfo) -> Params:
        of = (adapter.base, adapter.base_dtype)
        if self._below is None or self._below[0] != of:
            if self._given is None:
                raise ValueError("the version is an adapter, and this engine was given no model to put it on")
            tensors = frozen(adapter, stored_tensors(self._given.model), str(self._given.model))
            self._below = of, from_hf_by_layer(tensors, self._architecture, self._read)
        return self._below[1]

    def _read(self, tensor: Tensor, transposed: bool) -> jax.Array:
        return on_device(np.asarray(tensor), transposed, dtype=self._dtype, device=self._device)


@functools.partial(jax.jit, static_argnames="dtype")
def _by_layer(stacked: Float[Array, "layers out in"], *, dtype: str) -> tuple[Array, ...]:
    return tuple(factor.T.astype(jnp.dtype(dtype)) for factor in stacked)


@dataclass(eq=False)
class _Place:
    """Place of an adapter among the others: its number, from 0; -1 before it has one."""

    number: int = -1


class SideBySide:
    """Versions that a batch samples from at once: their adapters lie side by side on one base, so that one program
    computes with all of them, each row with its own.

    Attributes:
        params: of the model with all adapters; None before the first.
    """

    def __init__(self, held: int) -> None:
        """Has room for ``held`` versions that are in use, and one more; see `sidecar.held.HeldVersions`."""
        self.params: Params | None = None
        self._held = HeldVersions[_Place](held)
        self._versions = [-1] * (held + 1)

    def put(self, params: Params, version: int, lineage: int) -> set[int]:
        """Puts a version, whose parameters are those of `FrozenWeights.adapted`, beside the others. Returns the numbers
        of the adapters that are dropped: whoever samples with them cannot go on.
        """
        place = _Place()
        dropped = self._held.add(version, lineage, place)
        lost = {one.number for one in dropped if one is not place}
        for number in lost:
            self._versions[number] = -1
        if place not in dropped:
            place.number = self._versions.index(-1)
            self._versions[place.number] = version
            self._write(params, place.number)
        return lost

    def number(self, version: int) -> int:
        """Returns the number of a version's adapter."""
        return self._held[version].number

    def version(self, number: int) -> int:
        """Returns the version whose adapter has that number."""
        return self._versions[number]

    def __contains__(self, version: int) -> bool:
        return version in self._held

    def _write(self, params: Params, number: int) -> None:
        if self.params is None:
            self.params = _with_room(params, len(self._versions))
        self.params = {**params, "layers": _written(self.params["layers"], params["layers"], number)}


def _with_room(params: Params, parts: int) -> Params:
    """Returns parameters with room for so many adapters in the place of each, all of them zero."""

    def widened(w: Any) -> Any:
        if not isinstance(w, Adapted):
            return w
        a = jnp.zeros((w.a.shape[0], parts * w.a.shape[1]), w.a.dtype, device=w.a.device)
        b = jnp.zeros((parts * w.b.shape[0], w.b.shape[1]), w.b.dtype, device=w.b.device)
        return replace(w, a=a, b=b, parts=parts)

    return {**params, "layers": tuple({key: widened(w) for key, w in layer.items()} for layer in params["layers"])}


def _written(stacks: Sequence[Params], layers: Sequence[Params], number: int) -> tuple[Params, ...]:
    """Returns the layers with their adapters written to the place of that number."""
    ours = [{key: (w.a, w.b) for key, w in layer.items() if isinstance(w, Adapted)} for layer in stacks]
    theirs = [{key: (w.a, w.b) for key, w in layer.items() if isinstance(w, Adapted)} for layer in layers]
    made = _placed(ours, theirs, number)
    return tuple(
        {key: replace(w, a=new[key][0], b=new[key][1]) if key in new else w for key, w in layer.items()}
        for layer, new in zip(stacks, made, strict=True)
    )


@functools.partial(jax.jit, donate_argnums=0)
def _placed(stacks: list[Pairs], adapters: list[Pairs], number: Int[Array, ""]) -> list[Pairs]:
    def put(stack: jax.Array, part: jax.Array, axis: int) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(stack, part, number * part.shape[axis], axis)

    return [
        {key: (put(stack[key][0], a, 1), put(stack[key][1], b, 0)) for key, (a, b) in adapter.items()}
        for stack, adapter in zip(stacks, adapters, strict=True)
    ]
