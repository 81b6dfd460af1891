"""Loads weights inside vLLM's workers: reads a version as numpy, checks it against the model, and loads it.

vLLM mixes `WeightLoader` into its worker class, and its methods are called by ``collective_rpc``. Reading and checking
leave the model alone; only `load_prepared` touches it, and an exception of it ends the engine.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sidecar.adapters import whole_version
from sidecar.channels.versions import PublishedVersion, VersionError, VersionGoneError, check_identity, receive
from sidecar.errors import first_line
from sidecar.failpoints import failpoint
from sidecar.stored import every_tensor


@dataclass
class _Reading:
    """A version being read; ``done`` is set once the other fields are."""

    identity: tuple[int, int]
    done: threading.Event = field(default_factory=threading.Event)
    tensors: Mapping[str, np.ndarray] | None = None
    error: str = ""
    gone: bool = False


class WeightLoader:
    """Extends vLLM's worker class. Attributes begin with ``rljax_``, to collide with nothing of vLLM's."""

    model_runner: Any
    model_config: Any
    rljax_reading: _Reading

    def prepare_version(self, path: str, version: int, lineage: int) -> None:
        """Begins to read a version, in parallel with generation; `prepared_version` returns the outcome."""
        reading = self.rljax_reading = _Reading((version, lineage))

        def read() -> None:
            try:
                published = whole(receive(path), self.model_config.model)
                check_identity(published, path, version, lineage)
                check_against_model(published, self.model_config.model)
                reading.tensors = published.tensors
            except Exception as error:
                reading.gone = isinstance(error, VersionGoneError)
                reading.error = first_line(error)
            finally:
                reading.done.set()

        threading.Thread(target=read, name="version reader", daemon=True).start()

    def prepared_version(self) -> tuple[str, bool] | None:
        """Returns None while the version is being read; afterwards its error, empty if none, and whether it is gone."""
        reading = self.rljax_reading
        return (reading.error, reading.gone) if reading.done.is_set() else None

    def load_prepared(self, version: int, lineage: int) -> None:
        """Loads the version that `prepare_version` has read last. Not while a token is being sampled.

        Raises:
            RuntimeError: another version was read last.
        """
        reading = self.rljax_reading
        tensors, reading.tensors = reading.tensors, None
        if reading.identity != (version, lineage) or tensors is None:
            raise RuntimeError(f"version {version} of lineage {lineage} is not what was read: {reading.identity}")
        self.load_version(tensors)

    def load_version(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Loads checked tensors by Hugging Face name. Not while a token is being sampled."""
        model = self.model_runner.get_model()
        have_experts_packed(model)
        self.model_runner.reload_weights(weights_iterator=_as_torch(tensors), is_checkpoint_format=True)
        rebuild_head(model)


def have_experts_packed(model: Any) -> None:
    """Has vLLM pack the experts of the next reload as it does those of a first load, where it packs them for a CPU.

    A reload finds their kernel made and takes the weights for packed: log-probabilities are then those of no version at
    all (off by 4.7 nats on a tiny model).
    """
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None and module.w13_weight.device.type == "cpu":
            method.moe_kernel = None


def rebuild_head(model: Any) -> None:
    """Repacks the output head where vLLM keeps a packed copy of it.

    On a CPU a layerwise reload updates tied embeddings but leaves the head's packed copy as it was: log-probabilities
    are then those of no version at all (off by 0.86 nats on a 135M model).
    """
    head = getattr(model, "lm_head", None)
    if head is not None and hasattr(head, "cpu_linear"):
        head.quant_method.process_weights_after_loading(head)


def whole(published: PublishedVersion, directory: str) -> PublishedVersion:
    """Returns a version of all weights: itself, or of an adapter merged into the model in ``directory``.

    Raises:
        VersionError: it is an adapter of another model.
        ValueError: a file of the model is missing or damaged.
    """
    if published.manifest.adapter is None:
        return published
    stored = every_tensor(Path(directory))
    return whole_version(published, {name: stored[name] for name in expected_shapes(directory)}, directory)


def check_against_model(published: PublishedVersion, directory: str) -> None:
    """Checks names and shapes against those of the model in ``directory``.

    Raises:
        VersionError: a tensor is missing, too many or of another shape.
    """
    expected = dict(expected_shapes(directory))
    for name, tensor in published.tensors.items():
        shape = expected.pop(name, None)
        if shape != tensor.shape:
            wanted = "no such tensor" if shape is None else str(list(shape))
            raise VersionError(f"tensor {name} is {list(tensor.shape)}, the engine's model has {wanted}")
    if expected:
        raise VersionError(f"{len(expected)} tensors are missing, {min(expected)} among them")


@functools.lru_cache(maxsize=4)
def expected_shapes(directory: str) -> Mapping[str, tuple[int, ...]]:
    """Returns the shape of every tensor of a model's checkpoint by name; without the head where it is tied. An expert's
    are tensors of their own there, where the model of transformers has those of all experts in one.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.core_model_loading import revert_weight_conversion

    config = AutoConfig.from_pretrained(directory, local_files_only=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    # parameters() names what is shared once, by its first name
    stored = revert_weight_conversion(model, dict(model.named_parameters()))
    return {name: tuple(tensor.shape) for name, tensor in stored.items()}


def _as_torch(tensors: Mapping[str, np.ndarray]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in tensors.items():
        failpoint("engine_load")
        array = np.ascontiguousarray(tensor)
        if array.dtype.name == "bfloat16":  # numpy's is not torch's, but the bits are
            yield name, torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            yield name, torch.from_numpy(array)
