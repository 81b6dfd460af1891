"""Phi-3 and Phi-4 (of text): Llama's layer with fused projections in its files, of which a part may rotate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljax.models.common.architecture import Architecture
from rljax.models.common.block import LAYER_NAMES
from rljax.models.common.rope_scaling import LongRope
from rljax.models.families.family import Family
from rljax.models.families.windows import EVERY_LAYER


class _Phi3(Family):
    def normalised(self, config: dict[str, Any]) -> dict[str, Any]:
        scaling = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        if kind in ("su", "yarn"):  # what longrope was called at first
            kind = LongRope.rope_type
        return config | {"rope_parameters": scaling | {"rope_type": kind}}

    def features(self, config: Mapping[str, Any]) -> dict[str, Any]:
        part = config["rope_parameters"].get("partial_rotary_factor", config.get("partial_rotary_factor"))
        part = 1.0 if part is None else float(part)
        return {"partial_rotary_factor": part} | super().features({**config, "partial_rotary_factor": 1.0})

    def own_fields(self, architecture: Architecture) -> dict[str, Any]:
        original = getattr(architecture.rope_scaling, "original_max_position_embeddings", None)
        return {
            "partial_rotary_factor": architecture.partial_rotary_factor,
            "original_max_position_embeddings": original or architecture.max_position_embeddings,
            "pad_token_id": None,  # transformers' own need not be in the vocabulary; the tokenizer's is added
        }


PHI3 = _Phi3(
    "phi3",
    "Phi3ForCausalLM",
    fused={
        "self_attn.qkv_proj.weight": tuple(LAYER_NAMES[part] for part in ("query", "key", "value")),
        "mlp.gate_up_proj.weight": tuple(LAYER_NAMES[part] for part in ("gate", "up")),
    },
    windows=EVERY_LAYER,
    fixed={"attention_bias": False},
    defaults={
        "sliding_window": None,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    },
)
