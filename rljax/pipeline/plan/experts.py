"""Arithmetic of a model with experts: of all its parameters those that a token goes through, and what is exchanged."""

from __future__ import annotations

import math

from rljax.config.schema import MeshConfig
from rljax.models.common.architecture import Architecture
from rljax.models.common.experts.exchange import sends_choices
from rljax.models.common.hardware import Hardware
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


def route_bytes(architecture: Architecture, *, stored: bool) -> int:
    """Returns the bytes of a token's recorded choices, where they are ``stored`` (`rljax.trajectory.encode`), or else
    where the learner reads them.
    """
    experts = architecture.experts
    if experts is None:
        return 0
    return architecture.num_layers * experts.per_token * (1 if stored and experts.count <= 128 else 2)


def sorted_width(architecture: Architecture, mesh: MeshConfig) -> float:
    """Returns the numbers that a device has of each of its tokens for the rows that are sorted by expert, as they are
    read and as they are added up. It gathers the tokens of the devices along `expert`; few of these choose its experts
    where choices are even, but there is room for all.
    """
    experts = architecture.experts
    return 2 * experts.per_token * architecture.hidden_size * mesh.expert if experts else 0


def exchanges(architecture: Architecture, mesh: MeshConfig, platform: str) -> list[tuple[str, str, float]]:
    """Returns what devices along `expert` exchange in a layer and a microbatch: the collective, of what, and how many
    times a device's tokens that is. Tokens go forward, again for the backward pass, and there as the outputs' gradient.
    """
    experts = architecture.experts
    if experts is None:
        return []
    if sends_choices(Hardware(platform), mesh.expert, experts.per_token):
        choices = experts.per_token
        return [("ragged-all-to-all", "tokens", 3 * choices), ("ragged-all-to-all", "experts' outputs", 2 * choices)]
    return [("all-gather", "tokens", 3 * mesh.expert), ("reduce-scatter", "experts' outputs", 2 * mesh.expert)]
