"""Parts that a family brings to the common model. The families lie above: they are imported at the first look-up."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from flax import nnx

from rljax.models.common.architecture import Architecture
from rljax.models.common.hardware import Rule

_REGISTRY = "rljax.models.families.registry"


class FamilyParts(Protocol):
    """Parts of a model that its family may have of its own.

    Attributes:
        block: makes one decoder layer: `rljax.models.common.transformer.Block`, or one derived from it.
        names: Hugging Face name of each parameter of a layer, within its layer.
        sharding: sharding rules of parameters that no other family has.
    """

    block: Callable[[Architecture, nnx.Rngs], Any]
    names: Mapping[str, str]
    sharding: Mapping[str, Rule]


def parts_of(architecture: Architecture) -> FamilyParts:
    """Returns the parts of the model's family.

    Raises:
        KeyError: no family has the name.
    """
    return importlib.import_module(_REGISTRY).FAMILIES[architecture.family]
