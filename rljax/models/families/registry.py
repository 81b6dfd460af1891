"""Registry of the supported model families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljax.models.common.architecture import Architecture
from rljax.models.families.family import Family
from rljax.models.families.gemma3 import GEMMA3
from rljax.models.families.llama import LLAMA
from rljax.models.families.mistral import MISTRAL
from rljax.models.families.mixtral import MIXTRAL
from rljax.models.families.phi3 import PHI3
from rljax.models.families.qwen2 import QWEN2
from rljax.models.families.qwen3 import QWEN3
from rljax.models.families.qwen3_moe import QWEN3_MOE

_EVERY = (LLAMA, QWEN2, QWEN3, MISTRAL, PHI3, GEMMA3, QWEN3_MOE, MIXTRAL)
FAMILIES: Mapping[str, Family] = {family.name: family for family in _EVERY}


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
