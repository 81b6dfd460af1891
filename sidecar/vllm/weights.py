"""Loads weights inside vLLM's workers: reads a version as numpy, checks it against the model, and loads it.

vLLM mixes `WeightLoader` into its worker class, and its methods are called by ``collective_rpc``. Reading, checking and
staging leave the model alone; only `load_version` touches it, and an exception of it ends the engine.
"""

from __future__ import annotations

import functools
import gc
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sidecar.adapters import whole_version
from sidecar.channels.versions import PublishedVersion, VersionError, VersionGoneError, check_identity, receive
from sidecar.errors import first_line
from sidecar.stored import every_tensor
from sidecar.vllm import reloading

if TYPE_CHECKING:
    from sidecar.vllm.twin import Twin

log = logging.getLogger(__name__)

FALLBACK = "versions are loaded in place from now on, as with sidecar.double_buffer=false"
"""Said where one could not be loaded beside the one in use."""


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
    rljax_twin: Twin | None = None
    rljax_stages = True

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
        if self.rljax_twin is not None:
            if self.rljax_twin.holds(tensors):
                self.rljax_twin.take_over()
                return
            self.rljax_twin.forget()
        model = self.model_runner.get_model()
        reloading.have_experts_packed(model)
        reloading.spare_lookups(model)
        given = ((name, reloading.as_torch(array)) for name, array in tensors.items())
        self.model_runner.reload_weights(weights_iterator=given, is_checkpoint_format=True)
        reloading.rebuild_head(model)

    def stage_prepared(self, seconds: float) -> bool:
        """As `stage_version`, of the version that `prepare_version` has read last."""
        tensors = self.rljax_reading.tensors
        assert tensors is not None
        return self.stage_version(tensors, seconds)

    def stage_version(self, tensors: Mapping[str, np.ndarray], seconds: float) -> bool:
        """Loads checked tensors beside those that the model computes with, for at least about so many seconds;
        `load_version` has no more to do then than to take them over. Not while a token is being sampled.

        Returns whether nothing is left to be done here: so at once where there can be no second set of weights, and
        `load_version` loads in place.
        """
        if not self.rljax_stages:
            return True
        try:
            from sidecar.vllm.twin import Twin, can_have_twin  # they need vLLM's own modules, as they are today

            if self.rljax_twin is None:
                model = self.model_runner.get_model()
                if not can_have_twin(model):
                    self.rljax_stages = False
                    return True
                self.rljax_twin = Twin(model, self.model_config)
            return self.rljax_twin.load(tensors, seconds)
        except Exception as error:  # whatever it was, the model is as it was
            log.warning("%s: %s", FALLBACK, first_line(error))
        # behind the handler: the traceback of the error holds the second set
        if self.rljax_twin is not None:
            self.rljax_twin.close()
        self.rljax_twin, self.rljax_stages = None, False
        gc.collect()  # its modules and loaders name each other
        return True


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
