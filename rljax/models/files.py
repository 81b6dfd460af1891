"""Hugging Face model directories: `config.json`, safetensors (one file, or shards with an index), tokenizer files."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from rljax.models.common.architecture import Architecture
from rljax.models.common.params import Params
from rljax.models.families.registry import from_config, to_config
from rljax.models.hf_names import check_tensors, from_hf, tensor_shapes
from sidecar.checksum import checksum
from sidecar.stored import CHECKSUMS, INDEX, WEIGHTS, StoredTensor, Tensor, every_tensor

_SHARD_BYTES = 5_000_000_000
_DTYPES = {"fp32": ("float32", np.dtype(np.float32)), "bf16": ("bfloat16", np.dtype(ml_dtypes.bfloat16))}
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "generation_config.json",
)
_SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def read_config(directory: Path) -> dict[str, Any]:
    """Returns the fields of a directory's `config.json`.

    Raises:
        ValueError: when it is missing or is no JSON object.
    """
    file = Path(directory) / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{directory} is no Hugging Face model directory: it has no config.json") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} is no valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{file} is no JSON object")
    return config


def load_architecture(directory: Path) -> Architecture:
    """Reads the architecture that a directory's `config.json` describes.

    Raises:
        ValueError: when it is missing, or describes a model that is not supported; names the directory.
    """
    config = read_config(directory)
    try:
        return from_config(config)
    except ValueError as error:
        raise ValueError(f"{directory}: {error}") from None


def load_directory(path: Path) -> tuple[Architecture, Params]:
    """Loads a model's architecture and its parameters, float32 numpy arrays, whatever dtype and files it is stored in.

    Raises:
        ValueError: one line that names the directory and what is missing, unreadable, damaged or unsupported.
    """
    architecture = load_architecture(path)
    return architecture, from_hf(stored_tensors(path), architecture)


def stored_tensors(path: Path) -> dict[str, StoredTensor]:
    """Finds the tensors of a model directory, by Hugging Face name, those of its architecture and no other. None is
    read but when it is used.

    Raises:
        ValueError: as `load_directory`; whether a tensor has its checksum is seen when it is read.
    """
    architecture, found = load_architecture(path), every_tensor(path)
    try:
        check_tensors(found, architecture)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return {name: found[name] for name in tensor_shapes(architecture)}


def save_directory(
    path: Path,
    architecture: Architecture,
    named_tensors: Mapping[str, Tensor],
    tokenizer_source: Path | None,
    dtype: str,
    shard_bytes: int = _SHARD_BYTES,
    chat_template: str | None = None,
) -> None:
    """Writes a directory that transformers and vLLM load, with a checksum of each tensor in the files' headers.

    It appears whole or not at all.

    Args:
        path: the directory; must not exist.
        architecture: of the model.
        named_tensors: every tensor under its Hugging Face name.
        tokenizer_source: a model directory whose tokenizer files and special token ids are copied; None: none are.
        dtype: of the stored weights, ``fp32`` or ``bf16``.
        shard_bytes: the weights are cut into files of at most this size (one tensor may exceed it).
        chat_template: what the tokenizer renders chats by, in the place of its source's; None: the source's.

    Raises:
        FileExistsError: when `path` exists, also when another process made it meanwhile.
        ValueError: for tensors that do not fit the architecture.
    """
    path = Path(path)
    expected = tensor_shapes(architecture)
    if {name: tuple(t.shape) for name, t in named_tensors.items()} != expected:
        raise ValueError(f"{path} was not written: the tensors are not those of the architecture")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        draft.chmod(0o755)  # mkdtemp makes it private
        config = to_config(architecture) | {"dtype": _DTYPES[dtype][0], "torch_dtype": _DTYPES[dtype][0]}
        if tokenizer_source is not None:
            config |= _copy_tokenizer(Path(tokenizer_source), draft)
        if chat_template is not None:
            _write_chat_template(draft, chat_template)
        (draft / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        _write_weights(draft, named_tensors, _DTYPES[dtype][1], shard_bytes)
        publish_directory(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def publish_directory(draft: Path, path: Path) -> None:
    """Renames a finished directory to its final name.

    Raises:
        FileExistsError: when `path` exists; it is left as it is.
    """
    try:
        os.rename(draft, path)
    except OSError as error:
        if path.exists():
            raise FileExistsError(f"{path} exists already; remove it or choose another directory") from None
        raise error


def _copy_tokenizer(source: Path, target: Path) -> dict[str, Any]:
    for name in _TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)
    if not (source / "config.json").exists():
        return {}
    config = read_config(source)
    return {key: config[key] for key in _SPECIAL_IDS if config.get(key) is not None}


def _write_chat_template(directory: Path, template: str) -> None:
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    settings = directory / "tokenizer_config.json"  # where older readers look
    if settings.exists():
        fields = json.loads(settings.read_text(encoding="utf-8")) | {"chat_template": template}
        settings.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_weights(directory: Path, tensors: Mapping[str, Tensor], dtype: np.dtype, shard_bytes: int) -> None:
    shards: list[list[str]] = [[]]
    filled = 0
    for name, tensor in tensors.items():
        size = tensor.size * dtype.itemsize
        if shards[-1] and filled + size > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    places: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = WEIGHTS if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        # safetensors writes memory in its layout: a transposed view must become contiguous first
        arrays = {name: np.ascontiguousarray(tensors[name], dtype=dtype) for name in names}
        checksums = json.dumps({name: checksum(array) for name, array in arrays.items()})
        save_file(arrays, directory / file, metadata={"format": "pt", CHECKSUMS: checksums})
        _sort_metadata(directory / file)
        places |= dict.fromkeys(names, file)
    if len(shards) > 1:
        total = sum(tensor.size for tensor in tensors.values()) * dtype.itemsize
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _sort_metadata(file: Path) -> None:
    """Orders the metadata in a safetensors header by name: safetensors writes it in an order of the process's own, and
    the same tensors are to give the same bytes.
    """
    with file.open("r+b") as weights:
        size = int.from_bytes(weights.read(8), "little")
        header = json.loads(weights.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(size)
        if len(text) != size:
            raise ValueError(f"{file}: safetensors writes its header in an unknown form")
        weights.seek(8)
        weights.write(text)
