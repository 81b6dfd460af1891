"""Qwen3 with experts: a layer of Qwen3 whose MLP is a mixture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljax.models.common.architecture import Architecture, Experts
from rljax.models.common.experts.block import SHARDING, ExpertsBlock, names
from rljax.models.families.family import Family
from rljax.models.families.qwen3 import QWEN3, Qwen3Block
from rljax.models.families.windows import IN_ALL_IF_USED

_EXPERT = "mlp.experts.{}."


class Qwen3MoeBlock(ExpertsBlock, Qwen3Block):
    """Layer with Qwen3's attention and experts."""


class _Qwen3Moe(Family):
    def features(self, config: Mapping[str, Any]) -> dict[str, Any]:
        if config.get("decoder_sparse_step", 1) != 1 or config.get("mlp_only_layers"):
            raise ValueError(
                "qwen3_moe with experts in some layers only (decoder_sparse_step, mlp_only_layers) is not supported"
            )
        experts = Experts(
            # transformers 5 writes it under the second name
            count=int(config["num_experts"] if "num_experts" in config else config["num_local_experts"]),
            per_token=int(config["num_experts_per_tok"]),
            width=int(config["moe_intermediate_size"]),
            normalised=bool(config.get("norm_topk_prob", False)),
        )
        return super().features(config) | {"experts": experts}

    def own_fields(self, architecture: Architecture) -> dict[str, Any]:
        experts = architecture.experts
        assert experts is not None
        return {
            "num_experts": experts.count,
            "num_experts_per_tok": experts.per_token,
            "moe_intermediate_size": experts.width,
            "norm_topk_prob": experts.normalised,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }


QWEN3_MOE = _Qwen3Moe(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    block=Qwen3MoeBlock,
    names={
        **{key: name for key, name in QWEN3.names.items() if key not in ("gate", "up", "down")},
        **names("mlp.gate.weight", *(f"{_EXPERT}{part}_proj.weight" for part in ("gate", "up", "down"))),
    },
    sharding=SHARDING,
    windows=IN_ALL_IF_USED,
    fixed=QWEN3.fixed,
    defaults=QWEN3.defaults,
)
