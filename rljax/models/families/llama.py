"""Llama 2 and 3, and models of the same architecture (SmolLM2, for one)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljax.models.common.architecture import Architecture
from rljax.models.families.family import Family


class _Llama(Family):
    def features(self, config: Mapping[str, Any]) -> dict[str, Any]:
        mlp_bias = bool(config.get("mlp_bias"))
        return {"mlp_bias": mlp_bias} | super().features({**config, "mlp_bias": False})

    def own_fields(self, architecture: Architecture) -> dict[str, Any]:
        return {"mlp_bias": architecture.mlp_bias}


LLAMA = _Llama("llama", "LlamaForCausalLM")
