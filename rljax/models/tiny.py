"""The `tiny` model: a small random transformer with a tokenizer of its own, made from the run's seed."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from pathlib import Path

import jax
import numpy as np

from rljax.config.model import TINY_EXPERTS, TINY_EXPERTS_PER_TOKEN
from rljax.config.schema import ModelConfig, TinyConfig
from rljax.config.validate import ConfigError
from rljax.models.common.architecture import Architecture, Experts
from rljax.models.common.experts.block import ExpertsBlock
from rljax.models.families.registry import FAMILIES
from rljax.models.files import load_architecture, save_directory
from rljax.models.hf_names import to_hf
from rljax.models.tokenizer import save_tiny_tokenizer, tiny_vocabulary
from rljax.models.transformer import init_params

_LEAST_POSITIONS = 2048


def tiny_architecture(model: ModelConfig) -> Architecture:
    """Returns the architecture that `model.tiny` asks for, with the vocabulary of the tiny tokenizer."""
    tiny = model.tiny
    return Architecture(
        family=tiny.family,
        vocab_size=len(tiny_vocabulary(tiny.characters)),
        hidden_size=tiny.hidden_size,
        intermediate_size=tiny.intermediate_size,
        num_layers=tiny.num_layers,
        num_heads=tiny.num_heads,
        num_kv_heads=tiny.num_kv_heads,
        head_dim=tiny.head_dim,
        tie_embeddings=tiny.tie_embeddings,
        max_position_embeddings=max(
            _LEAST_POSITIONS, model.sequence_length or model.max_prompt_tokens + model.max_response_tokens
        ),
        experts=_experts(tiny),
        **FAMILIES[tiny.family].fixed,
    )


def _experts(tiny: TinyConfig) -> Experts | None:
    if not issubclass(FAMILIES[tiny.family].block, ExpertsBlock):
        return None
    width = tiny.moe_intermediate_size or tiny.intermediate_size
    return Experts(tiny.num_experts or TINY_EXPERTS, tiny.num_experts_per_tok or TINY_EXPERTS_PER_TOKEN, width)


def make_tiny(model: ModelConfig, seed: int, directory: Path) -> Path:
    """Makes the model directory if it is not there. Processes may race: one of them makes it, all see it whole.

    Raises:
        ConfigError: when `directory` holds a model of another shape.
    """
    architecture = tiny_architecture(model)
    if not directory.exists():
        params = jax.jit(init_params, static_argnums=0)(architecture, seed)
        tensors = {name: np.asarray(tensor) for name, tensor in to_hf(params, architecture).items()}
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tokenizer-", dir=directory.parent) as draft:
            save_tiny_tokenizer(Path(draft), model.tiny.characters)
            with contextlib.suppress(FileExistsError):  # another process was faster, with the same seed
                save_directory(directory, architecture, tensors, Path(draft), "fp32")
    found = load_architecture(directory)
    if found != architecture:
        was, wanted = dataclasses.asdict(found), dataclasses.asdict(architecture)
        name = next(name for name in wanted if was[name] != wanted[name])
        raise ConfigError(
            f"model.tiny: {directory} holds a model of another shape: {name} {was[name]}, and the config asks for "
            f"{wanted[name]}; use the run's own values, or another run_dir"
        )
    return directory
