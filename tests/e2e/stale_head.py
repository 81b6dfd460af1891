"""A weight loader for vLLM that makes the mistake which promise P7 exists for."""

from __future__ import annotations

from collections.abc import Mapping
from unittest import mock

import numpy as np

from sidecar.vllm import reloading
from sidecar.vllm.weights import WeightLoader


class StaleHead(WeightLoader):
    """Leaves the packed copy of the tied head at what it was when the engine started."""

    def load_version(self, tensors: Mapping[str, np.ndarray]) -> None:
        with mock.patch.object(reloading, "rebuild_head"):
            super().load_version(tensors)

    def stage_version(self, tensors: Mapping[str, np.ndarray], seconds: float) -> bool:
        with mock.patch.object(reloading, "rebuild_head"):
            return super().stage_version(tensors, seconds)
