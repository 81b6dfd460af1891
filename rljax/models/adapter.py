"""The adapter of a model: which matrices have one, what it is made of, and its names in PEFT's files."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from rljax.config.fields import ConfigError, not_a_choice
from rljax.config.model import ALL_LINEAR, LoraConfig
from rljax.config.schema import Config
from rljax.models.common.architecture import Architecture
from rljax.models.common.experts.block import ROUTER
from rljax.models.common.lora import A, B
from rljax.models.common.params import Params
from rljax.models.families.registry import FAMILIES
from rljax.models.hf_names import under_layer
from rljax.models.transformer import abstract_params
from sidecar.adapters import EVERY, FIRST, SECOND, by_layer, merged_by_name
from sidecar.stored import Tensor

_PEFT = "base_model.model."
"""Prefix of PEFT's, before the name that a module has in its model."""
FACTORS: Mapping[str, str] = {A: FIRST, B: SECOND}
"""Ends of PEFT's names of the factors, which it keeps [out, in]."""


def publishes_adapter(config: Config) -> bool:
    """Returns whether versions hold an adapter alone, and engines have its base; over nccl it is the merged model."""
    return config.model.lora.rank is not None and config.sync_method != "nccl"


def modules(architecture: Architecture) -> dict[str, str]:
    """Returns the matrices of a layer that may have an adapter: their keys, by the name of their module in it."""
    names, layers = FAMILIES[architecture.family].names, abstract_params(architecture)["layers"]
    linear = [key for key, leaf in layers.items() if len(leaf.shape) == 3 and key != ROUTER]
    return {names[key].removesuffix(".weight"): key for key in linear}


def targeted(architecture: Architecture, lora: LoraConfig) -> dict[str, str]:
    """Returns those of `modules` that have an adapter.

    Raises:
        ConfigError: the model has no such module, the rank is more than its matrices have, or its files have several
            matrices in one, whose adapters PEFT could not read.
    """
    if lora.rank is not None and FAMILIES[architecture.family].fused:
        raise ConfigError(
            f"model.lora.rank={lora.rank}: models of the family {architecture.family} have several matrices in one, "
            "for which there are no adapters yet; leave it out, and all weights are trained"
        )
    every = modules(architecture)
    words = {name: name.rpartition(".")[2] for name in every}
    for target in lora.targets:
        if target not in (ALL_LINEAR, *words.values()):
            raise not_a_choice("model.lora.targets", target, (ALL_LINEAR, *dict.fromkeys(words.values())))
    if not lora.targets:
        raise ConfigError(f"model.lora.targets=(): nothing would be trained; write {ALL_LINEAR}")
    if lora.rank is not None and lora.rank > architecture.hidden_size:
        raise ConfigError(
            f"model.lora.rank={lora.rank}: the model's matrices have at most {architecture.hidden_size}, its width"
        )
    return {name: every[name] for name, word in words.items() if {ALL_LINEAR, word} & set(lora.targets)}


def target_words(architecture: Architecture, lora: LoraConfig) -> list[str]:
    """Returns the last words of the names of those that have an adapter, as PEFT's ``target_modules`` has them. Raises
    what `targeted` raises.
    """
    return sorted({name.rpartition(".")[2] for name in targeted(architecture, lora)})


@functools.partial(jax.jit, static_argnums=(0, 1))
def init_adapter(architecture: Architecture, lora: LoraConfig, seed: int | Int[Array, ""]) -> Params:
    """Returns an adapter that changes nothing yet, float32: `A` uniform within ±1/√rows, `B` zero, as PEFT makes them
    (He et al. 2015 with a slope of √5).
    """
    layers, rank = abstract_params(architecture)["layers"], lora.rank or 1
    made: Params = {}
    for number, key in enumerate(sorted(targeted(architecture, lora).values())):
        count, rows, columns = layers[key].shape
        noise = jax.random.fold_in(jax.random.key(seed), number)
        bound = rows**-0.5
        a = jax.random.uniform(noise, (count, rows, rank), jnp.float32, -bound, bound)
        made[key] = {A: a, B: jnp.zeros((count, rank, columns), jnp.float32)}
    return {"layers": made}


@functools.cache
def abstract_adapter(architecture: Architecture, lora: LoraConfig) -> Params:
    """Returns the shapes and dtypes of `init_adapter`, as `jax.ShapeDtypeStruct`."""
    return jax.eval_shape(functools.partial(init_adapter, architecture, lora), 0)


def abstract_trained(architecture: Architecture, lora: LoraConfig) -> Params:
    """Returns the shapes and dtypes of what is trained: of an adapter, or of all weights where there is none."""
    return abstract_params(architecture) if lora.rank is None else abstract_adapter(architecture, lora)


def adapter_to_peft(adapter: Params, architecture: Architecture, lora: LoraConfig) -> dict[str, np.ndarray]:
    """Converts an adapter of numpy arrays to PEFT's names: unstacked, [out, in], dtype unchanged."""
    stacked = adapter_by_name(adapter, architecture, lora)
    return {f"{_PEFT}{name}": factor for name, factor in by_layer(stacked).items()}


def adapter_by_name(adapter: Params, architecture: Architecture, lora: LoraConfig) -> dict[str, Any]:
    """Converts an adapter's arrays to a version's tensors: by PEFT's names without their prefix and with an asterisk
    for the layer, all layers of a factor in one, [layers, out, in], dtype unchanged.
    """
    return {
        name: adapter["layers"][key][factor].swapaxes(1, 2)
        for name, (key, factor) in stacked_names(architecture, lora).items()
    }


def stacked_names(architecture: Architecture, lora: LoraConfig) -> dict[str, tuple[str, str]]:
    """Returns the key and the factor of each tensor of `adapter_by_name`."""
    of_layers = under_layer(EVERY, targeted(architecture, lora))
    return {f"{module}.{end}": (key, factor) for module, key in of_layers.items() for factor, end in FACTORS.items()}


def adapter_from_peft(tensors: Mapping[str, Tensor], architecture: Architecture, lora: LoraConfig) -> Params:
    """Converts PEFT's tensors to an adapter, float32 numpy arrays.

    Raises:
        ValueError: naming the first tensor that is missing, unexpected or of the wrong shape.
    """
    shapes = abstract_adapter(architecture, lora)["layers"]
    there = _places(architecture, lora)
    if odd := sorted(there.keys() ^ tensors.keys()):
        verb = "lacks" if odd[0] in there else "has"
        raise ValueError(f"the adapter {verb} {odd[0]}, and {len(odd) - 1} more differ from those of model.lora")
    layers: Params = {key: {f: np.empty(x.shape, np.float32) for f, x in pair.items()} for key, pair in shapes.items()}
    for name, (key, factor, layer) in there.items():
        array = np.asarray(tensors[name]).T
        if array.shape != layers[key][factor].shape[1:]:
            expected = list(layers[key][factor].shape[:0:-1])
            raise ValueError(f"tensor {name} has shape {list(array.shape[::-1])}, expected {expected}")
        layers[key][factor][layer] = array
    return {"layers": layers}


def _places(architecture: Architecture, lora: LoraConfig) -> dict[str, tuple[str, str, int]]:
    """Returns where each of PEFT's tensors stands: its key, factor and layer."""
    return {
        f"{_PEFT}{name.replace(EVERY, str(layer))}": (key, factor, layer)
        for layer in range(architecture.num_layers)
        for name, (key, factor) in stacked_names(architecture, lora).items()
    }


def merged_tensors(
    base: Mapping[str, Tensor], adapter: Params, architecture: Architecture, lora: LoraConfig
) -> dict[str, Any]:
    """Returns a model's tensors by Hugging Face name, those that have an adapter merged with it when they are used."""
    return merged_by_name(base, by_layer(adapter_by_name(adapter, architecture, lora)), lora.scale)
