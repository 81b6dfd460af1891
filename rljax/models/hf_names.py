"""Conversion between the stacked parameter tree and the flat names and shapes of Hugging Face."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike

from rljax.models.common.architecture import Architecture
from rljax.models.common.params import Params
from rljax.models.common.placing import on_mesh
from rljax.models.families.family import Family
from rljax.models.families.registry import FAMILIES
from rljax.models.transformer import abstract_params
from sidecar.stored import Tensor

_LAYERS = "model.layers."
_TOP = {"embedding": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "head": "lm_head.weight"}
_IGNORED = ("rotary_emb.inv_freq",)  # a constant that old checkpoints carry


@dataclass(frozen=True)
class _Place:
    """Position of a parameter in the files and in the tree: the name of its tensor and the rows that it has there (None
    for all), its key, its layer (None at the top), whether it is stored transposed, and which expert's it is.
    """

    name: str
    rows: slice | None
    key: str
    layer: int | None
    transposed: bool
    shape: tuple[int, ...]
    expert: int | None = None

    def of(self, tensors: Mapping[str, Any]) -> Any:
        """Returns the parameter as it is stored."""
        return tensors[self.name] if self.rows is None else tensors[self.name][self.rows]


def _places(architecture: Architecture) -> list[_Place]:
    tree, family = abstract_params(architecture), FAMILIES[architecture.family]
    places = []
    for key, name in _TOP.items():
        if key in tree:
            transposed = key == "head"
            shape = tree[key].shape
            places.append(_Place(name, None, key, None, transposed, shape[::-1] if transposed else shape))
    whole = {part: name for name, parts in family.fused.items() for part in parts}
    for layer in range(architecture.num_layers):
        filled = dict[str, int]()
        for key in _in_files(tree["layers"], family):
            # torch's Linear keeps [out, in]; ours are [in, out]
            leaf, part = tree["layers"][key], family.names[key]
            if len(leaf.shape) == 4:
                for expert in range(leaf.shape[1]):
                    name = f"{_LAYERS}{layer}.{part.format(expert)}"
                    places.append(_Place(name, None, key, layer, True, leaf.shape[:1:-1], expert))
                continue
            transposed = len(leaf.shape) == 3
            shape, rows = leaf.shape[:0:-1] if transposed else leaf.shape[1:], None
            if part in whole:
                first = filled.get(whole[part], 0)
                filled[whole[part]] = first + shape[0]
                rows = slice(first, first + shape[0])
            places.append(_Place(f"{_LAYERS}{layer}.{whole.get(part, part)}", rows, key, layer, transposed, shape))
    return places


def _in_files(layers: Params, family: Family) -> list[str]:
    """Returns the parameters of a layer, those of one tensor in the order of its rows."""
    order = [part for parts in family.fused.values() for part in parts]
    return sorted(layers, key=lambda key: order.index(family.names[key]) if family.names[key] in order else -1)


def tensor_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Returns the Hugging Face name and shape of every tensor of the model; a tied head has none."""
    return _shapes(_places(architecture))


def _shapes(places: Sequence[_Place]) -> dict[str, tuple[int, ...]]:
    shapes = dict[str, tuple[int, ...]]()
    for place in places:
        above = shapes[place.name][0] if place.name in shapes else 0
        shapes[place.name] = (above + place.shape[0], *place.shape[1:])
    return shapes


def layer_of(name: str) -> int | None:
    """Returns the layer that a tensor's Hugging Face name says it is of; None: of none."""
    _, _, rest = name.partition(_LAYERS)
    return int(rest.partition(".")[0]) if rest else None


def to_hf(params: Params, architecture: Architecture) -> dict[str, Any]:
    """Converts the parameters to Hugging Face names: unstacked, [out, in], dtype unchanged. Can be jitted; numpy
    arrays give views of them.
    """
    tensors = top_to_hf(params)
    for layer in range(architecture.num_layers):
        slices = {key: array[layer] for key, array in params["layers"].items()}
        tensors |= under_layer(layer, layer_to_hf(slices, architecture))
    return tensors


def top_to_hf(params: Params) -> dict[str, Any]:
    """Converts the parameters outside the layers like `to_hf`. Can be jitted."""
    return {
        name: params[key].swapaxes(0, 1) if key == "head" else params[key]
        for key, name in _TOP.items()
        if key in params
    }


def layer_to_hf(layer: Params, architecture: Architecture) -> dict[str, Any]:
    """Converts one layer like `to_hf`, under names that `under_layer` completes. Can be jitted. A tensor that is
    several of our arrays is a new one.
    """
    # torch's Linear keeps [out, in]; ours are [in, out]
    family, named = FAMILIES[architecture.family], dict[str, Any]()
    for key, array in layer.items():
        turned = array.swapaxes(-1, -2) if array.ndim > 1 else array
        if array.ndim == 3:
            named |= {family.names[key].format(expert): turned[expert] for expert in range(array.shape[0])}
        else:
            named[family.names[key]] = turned
    for name, parts in family.fused.items():
        arrays = [named.pop(part) for part in parts]
        named[name] = (np if isinstance(arrays[0], np.ndarray) else jnp).concatenate(arrays)
    return named


def under_layer(layer: int | str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tensors of a layer under their whole Hugging Face names."""
    return {f"{_LAYERS}{layer}.{name}": tensor for name, tensor in tensors.items()}


def from_hf(tensors: Mapping[str, Tensor], architecture: Architecture) -> Params:
    """Converts a model's Hugging Face tensors to the stacked float32 parameter tree of numpy arrays.

    Args:
        tensors: name to array in any float dtype; `lm_head.weight` may be there in a tied model, where it is ignored.
        architecture: of the model.

    Raises:
        ValueError: naming the first tensors that are missing, unexpected or of the wrong shape.
    """
    places = _places(architecture)
    _check(tensors, _shapes(places), architecture.tie_embeddings)
    params: Params = {"layers": {}}
    for place in places:
        array = np.asarray(place.of(tensors))
        array = array.T if place.transposed else array
        if place.layer is None:
            params[place.key] = np.ascontiguousarray(array, dtype=np.float32)
            continue
        if place.key not in params["layers"]:
            shape = abstract_params(architecture)["layers"][place.key].shape
            params["layers"][place.key] = np.empty(shape, np.float32)
        params["layers"][place.key][place.layer if place.expert is None else (place.layer, place.expert)] = array
    return params


def place_hf(
    tensors: Mapping[str, Tensor], architecture: Architecture, shardings: Params, dtype: DTypeLike = jnp.float32
) -> Params:
    """Converts like `from_hf`, onto devices: no device gets more than its shards, and beside what stays nothing is held
    but a layer or two.

    Args:
        tensors: as `from_hf` takes them; each is read once for each parameter in it.
        architecture: of the model.
        shardings: tree of `NamedSharding`, one for each parameter.
        dtype: of the parameters; masters are float32.

    Raises:
        ValueError: as `from_hf`.
    """
    places = _places(architecture)
    _check(tensors, _shapes(places), architecture.tie_embeddings)
    params: Params = {}
    # First what is outside the layers: it is the largest, and what stays is not there yet.
    for place in (place for place in places if place.layer is None):
        ours = functools.partial(_ours, transposed=place.transposed, dtype=dtype)
        convert = jax.jit(ours, out_shardings=shardings[place.key])
        params[place.key] = jax.block_until_ready(convert(_put([place.of(tensors)], place, shardings[place.key])))

    stacked, insert = _stacked(architecture, shardings["layers"], dtype)
    for layer in range(architecture.num_layers):
        of_key: dict[str, list[tuple[Tensor, _Place]]] = {}
        for place in places:
            if place.layer == layer:
                of_key.setdefault(place.key, []).append((place.of(tensors), place))
        of_layer = {
            key: _put([tensor for tensor, _ in parts], parts[0][1], shardings["layers"][key])
            for key, parts in of_key.items()
        }
        jax.block_until_ready(stacked)  # else the devices could be several layers behind
        stacked = insert(stacked, of_layer, np.int32(layer))
    return params | {"layers": stacked}


def _put(tensors: Sequence[Tensor], place: _Place, sharding: NamedSharding) -> jax.Array:
    """Puts a tensor in its own layout and dtype onto the shards of its parameter; of experts all, one on another."""
    array = np.asarray(tensors[0]) if place.expert is None else np.stack([np.asarray(tensor) for tensor in tensors])
    if array.dtype.itemsize > np.dtype(np.float32).itemsize:
        array = array.astype(np.float32)  # JAX would do so too, and warn
    axes = sharding.spec if place.layer is None else sharding.spec[1:]
    axes = (*axes[:-2], *axes[:-3:-1]) if place.transposed else axes
    return on_mesh(array, NamedSharding(sharding.mesh, P(*axes)), may_alias=False)


def _ours(tensor: jax.Array, transposed: bool, dtype: DTypeLike) -> jax.Array:
    return (tensor.swapaxes(-1, -2) if transposed else tensor).astype(dtype)


def _stacked(architecture: Architecture, shardings: Params, dtype: DTypeLike) -> tuple[Params, Any]:
    """Returns layers of zeros, and the program that fills in one of them in place."""
    abstract = abstract_params(architecture)["layers"]

    def zeros() -> Params:
        return {key: jnp.zeros(leaf.shape, dtype) for key, leaf in abstract.items()}

    def insert(layers: Params, layer: Params, index: jax.Array) -> Params:
        return {
            key: jax.lax.dynamic_update_index_in_dim(array, _ours(layer[key], layer[key].ndim > 1, dtype), index, 0)
            for key, array in layers.items()
        }

    return jax.jit(zeros, out_shardings=shardings)(), jax.jit(insert, donate_argnums=0, out_shardings=shardings)


def from_hf_by_layer(
    tensors: Mapping[str, Any], architecture: Architecture, converted: Callable[[Any, bool], jax.Array]
) -> Params:
    """Converts like `from_hf`, with ``layers`` as a tuple of one tree a layer: how the sampler reads them without
    copying. Shapes are checked by `check_tensors`.

    Args:
        tensors: of the model; each is read once for each parameter in it, and held no longer than that is converted.
        architecture: of the model.
        converted: returns a tensor as a parameter, with the axes of a matrix exchanged where it is told so.
    """
    params: Params = {"layers": tuple({} for _ in range(architecture.num_layers))}
    stacked, parts = abstract_params(architecture)["layers"], list[jax.Array]()
    for place in _places(architecture):
        target = params if place.layer is None else params["layers"][place.layer]
        ours = converted(place.of(tensors), place.transposed)
        if place.expert is None:
            target[place.key] = ours
        else:
            parts.append(ours)
            if len(parts) == stacked[place.key].shape[1]:
                target[place.key], parts = jnp.stack(parts), []
    return params


def check_tensors(tensors: Mapping[str, Tensor], architecture: Architecture) -> None:
    """Raises the ValueError that `from_hf` raises for tensors that are not those of the model."""
    _check(tensors, tensor_shapes(architecture), architecture.tie_embeddings)


def _check(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], tied: bool) -> None:
    missing = sorted(set(shapes) - set(tensors))
    ignored = {name for name in tensors if name.endswith(_IGNORED) or (tied and name == _TOP["head"])}
    unexpected = sorted(set(tensors) - set(shapes) - ignored)
    if missing:
        raise ValueError(f"the model lacks {len(missing)} tensors, the first is {missing[0]}")
    if unexpected:
        raise ValueError(f"the model has {len(unexpected)} tensors that nothing reads, the first is {unexpected[0]}")
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != tuple(shape):
            raise ValueError(f"tensor {name} has shape {list(tensors[name].shape)}, expected {list(shape)}")
