"""Directories of adapters, as PEFT writes and loads them: `adapter_config.json` and `adapter_model.safetensors`."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from rljax.config.fields import ConfigError, user_path
from rljax.config.model import LoraConfig, ModelConfig
from rljax.models.adapter import adapter_from_peft, adapter_to_peft, target_words
from rljax.models.common.architecture import Architecture
from rljax.models.common.params import Params
from rljax.models.files import publish_directory
from sidecar.errors import first_line

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "fan_in_fan_out": (False, None),
    "use_dora": (False, None),
    "lora_bias": (False, None),
    "modules_to_save": (None, []),
    "layers_to_transform": (None, []),
    "layer_replication": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "trainable_token_indices": (None, []),
    "target_parameters": (None, []),
    "alora_invocation_tokens": (None, []),
    "use_qalora": (False, None),
}
"""Fields of PEFT's by which an adapter would be of another kind, with the values by which it is not."""


def adapter_directory(model: ModelConfig) -> Path | None:
    """Returns the directory of the adapter that a run goes on from; None where `model.path` is a whole model."""
    path = user_path(model.path)
    return path if (path / _CONFIG).is_file() else None


def base_config(model: ModelConfig) -> ModelConfig:
    """Returns the config of the whole model: itself, or of an adapter's base, which its directory names.

    Raises:
        ConfigError: it names none, or another adapter, or is damaged; or the config has no adapter.
    """
    directory = adapter_directory(model)
    if directory is None:
        return model
    fields = _fields(directory)
    if model.lora.rank is None:
        keys = {"rank": fields.get("r"), "alpha": fields.get("lora_alpha"), "targets": ",".join(_targets(directory))}
        keys |= {"rslora": "true"} if fields.get("use_rslora") else {}
        written = ", ".join(f"model.lora.{key}={value}" for key, value in keys.items())
        raise ConfigError(
            f"model.path={model.path}: is an adapter; to train it on write {written}; elsewhere merge it first, by "
            "mode=export and checkpoint=initial beside these keys"
        )
    base = fields.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ConfigError(f"model.path={model.path}: its {_CONFIG} names no base_model_name_or_path; write one there")
    found = replace(model, path=base)
    if adapter_directory(found) is not None:
        raise ConfigError(
            f"model.path={model.path}: the base that its {_CONFIG} names, {base}, is an adapter too; merge that first, "
            "and write the merged model there"
        )
    return found


def check_adapter(directory: Path, architecture: Architecture, lora: LoraConfig) -> None:
    """Checks that a directory's adapter is one that the config trains, without its numbers.

    Raises:
        ConfigError: a key says something else than the directory; or the adapter is of a kind that is not supported.
    """
    fields, where = _fields(directory), f"the adapter in {directory}"
    for name, plain in _PLAIN.items():
        if fields.get(name, plain[-1]) not in plain:
            raise ConfigError(f"model.path={directory}: {name}={fields[name]!r} of {where} is not supported")
    said = {"rank": fields.get("r"), "alpha": fields.get("lora_alpha"), "rslora": bool(fields.get("use_rslora"))}
    for key, value in said.items():
        if (given := getattr(lora, key)) != value:
            raise ConfigError(f"model.lora.{key}={given}: {where} has {value}; write model.lora.{key}={value}")
    if (has := _targets(directory)) != target_words(architecture, lora):
        words = ",".join(has)
        raise ConfigError(f"model.lora.targets={','.join(lora.targets)}: {where} has others; write {words}")


def _targets(directory: Path) -> list[str]:
    """Returns the last words of the names of the matrices that a directory's adapter changes, sorted."""
    return sorted({name.partition(".lora_")[0].rpartition(".")[2] for name in _names(directory)})


def load_adapter(directory: Path, architecture: Architecture, lora: LoraConfig) -> Params:
    """Reads an adapter, float32 numpy arrays.

    Raises:
        ConfigError: one line: which tensor is missing, unexpected, unreadable or of the wrong shape.
    """
    try:
        with safe_open(directory / _WEIGHTS, framework="numpy") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        return adapter_from_peft(tensors, architecture, lora)
    except (SafetensorError, OSError, ValueError) as error:
        raise ConfigError(f"model.path={directory}: {first_line(error)}") from error


def save_adapter(path: Path, adapter: Params, architecture: Architecture, lora: LoraConfig, base: str) -> None:
    """Writes a directory that PEFT and vLLM load, float32. It appears whole or not at all.

    Args:
        path: the directory; must not exist.
        adapter: numpy arrays.
        architecture: of the model.
        lora: of the run.
        base: hub id or directory of the model that it is an adapter of.

    Raises:
        FileExistsError: `path` exists.
    """
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha,
        "lora_dropout": lora.dropout,
        "use_rslora": lora.rslora,
        "target_modules": target_words(architecture, lora),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        draft.chmod(0o755)  # mkdtemp makes it private
        (draft / _CONFIG).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
        named = adapter_to_peft(adapter, architecture, lora)
        save_file({name: np.ascontiguousarray(x) for name, x in named.items()}, draft / _WEIGHTS, {"format": "pt"})
        publish_directory(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _fields(directory: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((directory / _CONFIG).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"model.path={directory}: its {_CONFIG} cannot be read: {first_line(error)}") from None


def _names(directory: Path) -> list[str]:
    try:
        with safe_open(directory / _WEIGHTS, framework="numpy") as opened:
            return list(opened.keys())
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"model.path={directory}: its {_WEIGHTS} cannot be read: {first_line(error)}") from None
