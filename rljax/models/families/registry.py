"""Registry of the supported model families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljax.models.common.architecture import Architecture
from rljax.models.families.family import Family
from rljax.models.families.llama import LLAMA
from rljax.models.families.mixtral import MIXTRAL
from rljax.models.families.qwen2 import QWEN2
from rljax.models.families.qwen3 import QWEN3
from rljax.models.families.qwen3_moe import QWEN3_MOE

FAMILIES: Mapping[str, Family] = {family.name: family for family in (LLAMA, QWEN2, QWEN3, QWEN3_MOE, MIXTRAL)}


def from_config(config: Mapping[str, Any]) -> Architecture:
    """Reads the architecture of a model from its `config.json`.

    Raises:
        ValueError: for a model type or a feature that is not supported, or a missing field.
    """
    name: Any = config.get("model_type")
    if name not in FAMILIES:
        raise ValueError(f"model_type {name!r} is not supported; supported are {', '.join(FAMILIES)}")
    return FAMILIES[name].from_config(config)


def to_config(architecture: Architecture) -> dict[str, Any]:
    """Returns the fields of the `config.json` of a model of this architecture; see `Family.to_config`."""
    return FAMILIES[architecture.family].to_config(architecture)
