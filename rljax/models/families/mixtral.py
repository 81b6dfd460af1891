"""Mixtral: a layer of Mistral whose MLP is a mixture of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljax.models.common.architecture import Architecture, Experts
from rljax.models.common.experts.block import SHARDING, ExpertsBlock, names
from rljax.models.families.family import Family
from rljax.models.families.windows import EVERY_LAYER

_EXPERT = "block_sparse_moe.experts.{}."


class _Mixtral(Family):
    def features(self, config: Mapping[str, Any]) -> dict[str, Any]:
        count, per_token = int(config["num_local_experts"]), int(config["num_experts_per_tok"])
        return super().features(config) | {"experts": Experts(count, per_token, int(config["intermediate_size"]))}

    def own_fields(self, architecture: Architecture) -> dict[str, Any]:
        experts = architecture.experts
        assert experts is not None
        return {"num_local_experts": experts.count, "num_experts_per_tok": experts.per_token}


MIXTRAL = _Mixtral(
    "mixtral",
    "MixtralForCausalLM",
    block=ExpertsBlock,
    names=names("block_sparse_moe.gate.weight", f"{_EXPERT}w1.weight", f"{_EXPERT}w3.weight", f"{_EXPERT}w2.weight"),
    sharding=SHARDING,
    windows=EVERY_LAYER,
    fixed={"attention_bias": False},
    defaults={"max_position_embeddings": 131072, "rope_theta": 1_000_000.0, "rms_norm_eps": 1e-5},
)
