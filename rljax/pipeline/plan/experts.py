"""Arithmetic of a model with experts: of all its parameters those that a token goes through, and what is exchanged."""

from __future__ import annotations

import math

from rljax.config.schema import MeshConfig
from rljax.models.common.architecture import Architecture
from rljax.models.transformer import abstract_params


def expert_parameters(architecture: Architecture) -> int:
    """Returns the number of parameters of all experts; 0 of a dense model."""
    if architecture.experts is None:
        return 0
    layers = abstract_params(architecture)["layers"].values()
    return sum(math.prod(leaf.shape) for leaf in layers if len(leaf.shape) == 4)  # layer, expert, in, out


def idle_parameters(architecture: Architecture) -> int:
    """Returns the number of parameters of the experts that a token does not get."""
    experts = architecture.experts
    return expert_parameters(architecture) * (experts.count - experts.per_token) // experts.count if experts else 0


def sorted_width(architecture: Architecture, mesh: MeshConfig) -> float:
    """Returns the numbers that a device has of each of its tokens for the rows that are sorted by expert, as they are
    read and as they are added up. It gathers the tokens of the devices along `expert`; few of these choose its experts
    where choices are even, but there is room for all.
    """
    experts = architecture.experts
    return 2 * experts.per_token * architecture.hidden_size * mesh.expert if experts else 0
