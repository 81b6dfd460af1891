"""Versions that hold an adapter alone, as vLLM loads them: a directory of PEFT's for each."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file
from vllm.lora.request import LoRARequest

from sidecar.adapters import FIRST, by_layer, frozen
from sidecar.channels.versions import PublishedVersion, VersionError
from sidecar.errors import first_line
from sidecar.own_directory import OwnDirectory
from sidecar.stored import Tensor, every_tensor
from sidecar.vllm.weights import expected_shapes

_PEFT = "base_model.model."
"""Prefix of PEFT's, before the name that a module has in its model."""


class AdapterDirectories:
    """Directories of the adapters that an engine holds, in a temporary one of their own: the next engine of a machine
    removes what a killed one has left. They are its reader's to remove: vLLM reads an adapter again that it had no
    room for.
    """

    def __init__(self, model: str, rank: int) -> None:
        """Takes the directory of the model that the engine was started on, and the rank that it has room for."""
        self._model = model
        self._rank = rank
        self._root = OwnDirectory("rljax-adapters-")
        self._serial = itertools.count(1)
        self._base: str | None = None

    def written(self, published: PublishedVersion) -> LoRARequest:
        """Writes a version, and returns what requests name it by: never the same twice.

        Raises:
            VersionError: it is none of an adapter of the engine's model; what is wrong with it.
            DamagedFileError: a file of the model cannot be read.
            OSError: it cannot be written.
        """
        manifest, factors = published.manifest, by_layer(published.tensors)
        if manifest.adapter is None:
            raise VersionError("the version is a whole model, and the engine was opened for adapters of its own")
        if self._base != manifest.adapter.base:
            stored = every_tensor(Path(self._model))
            frozen(manifest.adapter, {name: stored[name] for name in expected_shapes(self._model)}, self._model)
            self._base = manifest.adapter.base
        rank = self._checked_rank(factors)
        number = next(self._serial)
        name = f"v{manifest.version}-{manifest.lineage}-{number}"
        path = self._root.path / name
        words = sorted({factor.split(".lora_")[0].rpartition(".")[2] for factor in factors})
        fields = {"peft_type": "LORA", "r": rank, "lora_alpha": manifest.adapter.scale * rank, "target_modules": words}
        named = {f"{_PEFT}{factor}": np.ascontiguousarray(x, np.float32) for factor, x in factors.items()}
        try:
            path.mkdir()
            (path / "adapter_config.json").write_text(json.dumps(fields))
            save_file(named, path / "adapter_model.safetensors")
        except (OSError, SafetensorError) as error:
            shutil.rmtree(path, ignore_errors=True)
            raise OSError(f"{path} cannot be written: {first_line(error)}; free disk space") from error
        return LoRARequest(lora_name=name, lora_int_id=number, lora_path=str(path))

    def close(self) -> None:
        """Removes all that is there."""
        self._root.close()

    def _checked_rank(self, factors: Mapping[str, Tensor]) -> int:
        """Returns the rank of factors that fit the model, which vLLM would end of otherwise."""
        shapes, ranks = expected_shapes(self._model), set[int]()
        for name, factor in factors.items():
            module, _, end = name.partition(".lora_")
            matrix = shapes.get(f"{module}.weight")
            inner, outer = (0, 1) if f"lora_{end}" == FIRST else (1, 0)
            if matrix is None or len(factor.shape) != 2 or factor.shape[outer] != matrix[outer]:
                raise VersionError(
                    f"the adapter's {name} is {list(factor.shape)}, its matrix {matrix}: not of this model"
                )
            ranks.add(factor.shape[inner])
        if len(ranks) != 1 or max(ranks) > self._rank:
            raise VersionError(f"the adapter is of rank {sorted(ranks)}, and the engine has room for {self._rank}")
        return ranks.pop()
