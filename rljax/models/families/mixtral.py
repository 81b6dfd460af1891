"""Mixtral: a layer of Llama whose MLP is a mixture of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljax.models.common.architecture import Experts
from rljax.models.common.experts.block import SHARDING, ExpertsBlock, names
from rljax.models.families.family import ExpertFields, Family


def _read(config: Mapping[str, Any]) -> Experts:
    if config.get("sliding_window") is not None:
        raise ValueError("mixtral with a sliding attention window in use is not supported")
    count, per_token = int(config["num_local_experts"]), int(config["num_experts_per_tok"])
    return Experts(count, per_token, int(config["intermediate_size"]))


def _written(experts: Experts) -> dict[str, Any]:
    return {"num_local_experts": experts.count, "num_experts_per_tok": experts.per_token, "sliding_window": None}


_EXPERT = "block_sparse_moe.experts.{}."

MIXTRAL = Family(
    "mixtral",
    "MixtralForCausalLM",
    block=ExpertsBlock,
    names=names("block_sparse_moe.gate.weight", f"{_EXPERT}w1.weight", f"{_EXPERT}w3.weight", f"{_EXPERT}w2.weight"),
    sharding=SHARDING,
    fixed={"attention_bias": False},
    experts=ExpertFields(_read, _written),
)
