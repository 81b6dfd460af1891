"""Architectures of a run's models, and the bytes of their files, without reading weights."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rljax.config.distill import TEACHERS
from rljax.config.fields import ConfigError, user_path
from rljax.config.model import check_model_path
from rljax.config.refusals import joined
from rljax.config.schema import Config, ModelConfig
from rljax.models.adapter_files import adapter_directory, base_config, check_adapter
from rljax.models.common.architecture import Architecture
from rljax.models.files import read_config, stored_tensors
from rljax.models.hf_names import layer_of, tensor_shapes
from rljax.models.resolve import ModelNotFound, architecture_at, resolve_model
from rljax.models.tiny import tiny_architecture
from rljax.pipeline.assemble.judges import judge_config


def read_architecture(model: ModelConfig, seed: int) -> Architecture:
    """Reads the architecture of a model; of one of the hub its ``config.json`` is fetched.

    Raises:
        ModelNotFound: it is not here and cannot be fetched.
        ConfigError: its directory holds no supported model.
    """
    base = base_config(model)
    if base.path == "tiny":
        return tiny_architecture(base)
    return architecture_at(_directory(base, seed), model.path)


def stored_sizes(model: ModelConfig, seed: int, architecture: Architecture) -> dict[str, int]:
    """Returns the bytes of each tensor of a model as it is stored, by name: in its files, or, where they are not here,
    in the dtype that its ``config.json`` names, which is float32 where it names none.

    Raises:
        ModelNotFound, ConfigError: as `read_architecture`.
    """
    model, declared = base_config(model), "float32"  # as `tiny` is made
    if model.path != "tiny":
        directory = _directory(model, seed)
        with contextlib.suppress(ValueError):  # a plan needs none of the files
            return {name: tensor.nbytes for name, tensor in stored_tensors(directory).items()}
        fields = read_config(directory)
        declared = str(fields.get("dtype") or fields.get("torch_dtype"))
    width = 2 if declared in ("bfloat16", "float16") else 4
    return {name: width * math.prod(shape) for name, shape in tensor_shapes(architecture).items()}


def read_at_once(stored: Mapping[str, int]) -> float:
    """Returns the bytes that reading a model takes: its largest tensor, or two layers."""
    layers = Counter[int]()
    for name, size in stored.items():
        if (layer := layer_of(name)) is not None:
            layers[layer] += size
    return float(max(*stored.values(), 2 * max(layers.values())))


def _directory(model: ModelConfig, seed: int) -> Path:
    """Returns a directory with the ``config.json`` of a model, which is fetched if need be."""
    path = user_path(model.path)
    if model.path == "smollm2-135m":
        return resolve_model(model, seed, path)
    if path.is_dir():
        return path
    check_model_path(model.path)
    try:
        return _fetched(model.path)
    except Exception as error:  # of whichever HTTP library the client uses
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelNotFound(
            f"model.path={model.path}: its config.json is not here and cannot be fetched ({reason}); give a "
            "directory that holds it"
        ) from None


def _fetched(name: str) -> Path:
    """Returns the directory with the ``config.json`` of a model of the hub, kept from before or fetched."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache

    kept = try_to_load_from_cache(name, "config.json")
    if not isinstance(kept, str):
        get_hf_file_metadata(hf_hub_url(name, "config.json"))  # asks once; a download goes on asking, and prints so
        kept = hf_hub_download(name, "config.json")
    return Path(kept).parent


def read_models(config: Config) -> tuple[Architecture, dict[str, Architecture]]:
    """Reads the architectures of the policy, and of judges, reward models and teachers, by the keys of their sections;
    a reward model has no output head, which is told as a tied one.

    Raises:
        ModelNotFound, ConfigError: as `read_architecture`, of each; of what scores it begins with its key.
    """
    models = {"": config.model}
    models |= {f"judges.{name}": judge_config(config, name).model for name in config.judges}
    models |= {f"reward_models.{name}": ModelConfig(path=one.path) for name, one in config.reward_models.items()}
    models |= {
        f"{TEACHERS}.{name}": ModelConfig(path=one.path) for name, one in config.algorithm.distill.stored.items()
    }
    found, refused = dict[str, Architecture](), list[ConfigError]()
    for key, model in models.items():
        try:
            architecture = read_architecture(model, config.seed)
            if not key and (adapter := adapter_directory(model)) is not None:
                check_adapter(adapter, architecture, model.lora)
        except ConfigError as error:
            refused.append(type(error)(f"{key}: {error}") if key else error)
        else:
            headless = key.startswith("reward_models.")
            found[key] = replace(architecture, tie_embeddings=True) if headless else architecture
    if refused:
        raise joined(refused)
    return found.pop(""), found
