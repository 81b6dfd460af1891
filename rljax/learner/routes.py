"""Experts that engines recorded, beside the packed tokens that they were recorded of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rljax.learner.packing import PackedBatch
from rljax.models.common.architecture import Experts
from rljax.trajectory import Trajectory
from sidecar.protocol import UNKNOWN_ROUTE

_ANOTHER = "they are another model's: write its model.path, or algorithm.router_replay=off"


def with_routes(packed: PackedBatch, trajectories: Sequence[Trajectory], layers: int, experts: Experts) -> PackedBatch:
    """Returns the packed batch of these trajectories with the experts that were recorded for their tokens, -1 where
    none were.

    Raises:
        ValueError: a model with these ``experts`` in its ``layers`` cannot have been what they were recorded of.
    """
    shape, unknown = (layers, experts.per_token), np.int16(UNKNOWN_ROUTE)
    for trajectory in trajectories:
        if trajectory.routes is not None:
            _check(f"routes of member {trajectory.member}", trajectory.routes, shape, experts.count)
    each = [np.full((len(t.token_ids), *shape), unknown) if t.routes is None else t.routes for t in trajectories]
    routes = np.full((packed.batch.token_ids.size, *shape), unknown)
    if each:
        routes[packed.filled] = np.concatenate(each)[packed.read]
    placed: Any = routes.reshape(*packed.batch.token_ids.shape, *shape)  # numpy here, JAX on the device
    return replace(packed, batch=replace(packed.batch, routes=placed))


def _check(what: str, routes: np.ndarray, shape: tuple[int, int], count: int) -> None:
    if routes.shape[1:] != shape:
        found, wanted = (f"{layers} layers, {picked} experts a token" for layers, picked in (routes.shape[1:], shape))
        raise ValueError(f"{what}: {found}; the model has {wanted}; {_ANOTHER}")
    outside = np.argwhere((routes < UNKNOWN_ROUTE) | (routes >= count))
    if len(outside):
        token, layer, place = outside[0]
        raise ValueError(
            f"{what}: token {token} goes to expert {routes[token, layer, place]} of layer {layer}; the model has "
            f"experts 0 to {count - 1}; {_ANOTHER}"
        )
