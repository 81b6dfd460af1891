"""Reward models: a decoder whose head of one label reads the last token, as ``*ForSequenceClassification`` has it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from rljax.models.common.architecture import Architecture
from rljax.models.common.hardware import Hardware
from rljax.models.common.params import Params
from rljax.models.common.value_head import HEAD, values
from rljax.models.files import load_architecture, read_config
from rljax.models.hf_names import check_tensors, place_hf
from rljax.models.transformer import hidden_states
from sidecar.stored import StoredTensor, every_tensor

_WEIGHT, _BIAS = "score.weight", "score.bias"
_ADDED = "score_bias"

Score = Callable[[Int[np.ndarray, "rows time"], Int[np.ndarray, " rows"]], Float[np.ndarray, " rows"]]
"""Scores rows of token ids, padded on the right with anything, by their lengths, each at least 1."""


@dataclass(frozen=True)
class StoredRewardModel:
    """A reward model in its files; no tensor is read but when it is used.

    Attributes:
        architecture: of the decoder; it has no output head, which is told as a tied one.
        tensors: of the decoder and its scoring head, by Hugging Face name.
        pad_token_id: of its `config.json`; None: it has none.
    """

    architecture: Architecture
    tensors: Mapping[str, StoredTensor]
    pad_token_id: int | None


def open_reward_model(directory: Path) -> StoredRewardModel:
    """Finds the tensors of a reward model's directory.

    Raises:
        ValueError: one line that names the directory: as `load_directory`; or there is no head, or one of several
            labels.
    """
    architecture = replace(load_architecture(directory), tie_embeddings=True)
    tensors = every_tensor(directory)
    if _WEIGHT not in tensors:
        raise ValueError(f"{directory}: no reward model: it has no {_WEIGHT}; give a *ForSequenceClassification")
    shape, wanted = tensors[_WEIGHT].shape, (1, architecture.hidden_size)
    if len(shape) == 2 and shape[0] > 1:
        raise ValueError(f"{directory}: its head {_WEIGHT} has {shape[0]} labels; a reward model has one")
    if shape != wanted or (_BIAS in tensors and tensors[_BIAS].shape != (1,)):
        raise ValueError(f"{directory}: its head {_WEIGHT} has shape {list(shape)}, expected {list(wanted)}, bias [1]")
    try:
        check_tensors({name: t for name, t in tensors.items() if name not in (_WEIGHT, _BIAS)}, architecture)
    except ValueError as error:
        raise ValueError(f"{directory}: {error}") from None
    pad = read_config(directory).get("pad_token_id")
    return StoredRewardModel(architecture, tensors, pad if isinstance(pad, int) else None)


def load_score(stored: StoredRewardModel, shardings: Params, dtype: DTypeLike, hardware: Hardware) -> Score:
    """Reads a reward model's weights onto devices, in the dtype of the computation, and returns what scores by them.

    Args:
        stored: its files; each tensor is read once.
        shardings: tree of `NamedSharding`, one for each parameter of the decoder.
        dtype: of weights and computation; the head's product is float32 always.
        hardware: the devices of ``shardings``.

    Raises:
        DamagedFileError: a file cannot be read.
    """
    decoder = {name: tensor for name, tensor in stored.tensors.items() if name not in (_WEIGHT, _BIAS)}
    params = place_hf(decoder, stored.architecture, shardings, dtype)
    everywhere = NamedSharding(shardings["final_norm"].mesh, P())
    weight = np.asarray(stored.tensors[_WEIGHT]).astype(np.float32)[0]
    bias = np.asarray(stored.tensors[_BIAS]).astype(np.float32)[0] if _BIAS in stored.tensors else np.float32(0)
    params |= jax.device_put({HEAD: weight, _ADDED: bias}, everywhere)
    program = jax.jit(functools.partial(_scores, architecture=stored.architecture, dtype=dtype, hardware=hardware))

    def score(token_ids: Int[np.ndarray, "rows time"], lengths: Int[np.ndarray, " rows"]) -> np.ndarray:
        return np.asarray(program(params, *jax.device_put((token_ids, lengths), everywhere)))

    return score


def _scores(
    params: Params,
    token_ids: Int[Array, "rows time"],
    lengths: Int[Array, " rows"],
    *,
    architecture: Architecture,
    dtype: DTypeLike,
    hardware: Hardware,
) -> Float[Array, " rows"]:
    steps = jnp.broadcast_to(jnp.arange(token_ids.shape[1], dtype=jnp.int32), token_ids.shape)
    segments = (steps < lengths[:, None]).astype(jnp.int32)
    hidden = hidden_states(params, architecture, token_ids, steps, segments, dtype=dtype, hardware=hardware)
    last = jnp.take_along_axis(hidden, lengths[:, None, None] - 1, axis=1)[:, 0]
    return values(params, last) + params[_ADDED]
