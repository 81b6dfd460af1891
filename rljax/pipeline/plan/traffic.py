"""Estimates what a device receives in a microbatch, by arithmetic on shapes and sharding rules."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from rljax.models.adapter import publishes_adapter
from rljax.pipeline.plan.estimate import BYTES, Estimate
from rljax.pipeline.plan.experts import exchanges, expert_parameters


@dataclass(frozen=True)
class Sent:
    """A collective: what is sent over which mesh axis, and the bytes that a device receives of it in a microbatch."""

    collective: str
    what: str
    axis: str
    size: float

    def __str__(self) -> str:
        return f"{self.collective} of {self.what} ({self.axis})"

    def by(self, share: float) -> Sent:
        """Returns the same with that share of the bytes."""
        return dataclasses.replace(self, size=self.size * share)


def version_traffic(estimate: Estimate) -> list[Sent]:
    """Returns what a device receives when a version is made: each layer is put together on every device."""
    sizes, cut = dataclasses.asdict(estimate.mesh), ("fsdp", "expert", "tensor")
    whole = (estimate.adapter if publishes_adapter(estimate.config) else estimate.parameters) * BYTES[
        estimate.config.resolved_sync_dtype
    ]
    had, found = whole / math.prod(sizes[axis] for axis in cut), []
    for axis in cut:
        found.append(Sent("all-gather", "a version", axis, had * (sizes[axis] - 1)))
        had *= sizes[axis]
    return found


def traffic(estimate: Estimate) -> list[Sent]:
    """Returns what a device receives in a microbatch, collective by collective; nothing with one device.

    A layer's weights are gathered for the forward and for the backward pass, which computes it again with them.
    """
    mesh, a, layers = estimate.mesh, estimate.architecture, estimate.architecture.num_layers
    again = estimate.config.model.remat == "full"
    of_experts, hidden = expert_parameters(a), estimate.places * a.hidden_size * estimate.width
    dense = (estimate.used - of_experts) * estimate.width / mesh.tensor
    weights = dense + of_experts * estimate.width / mesh.tensor / mesh.expert
    narrow = estimate.gradient_width / estimate.width
    reduced, keys = (
        estimate.sharded(estimate.trained, estimate.gradient_width),
        estimate.keys_and_values * mesh.sequence,
    )
    gradients = [weights * narrow, dense / mesh.fsdp * narrow]
    if estimate.adapts:
        gradients = [reduced * mesh.expert * mesh.fsdp, reduced * mesh.expert]
    reducing = "reduce-scatter and all-gather" if estimate.config.learner.sequence_parallel else "all-reduce"
    each = [  # of the layers' part in the first two, that of the head besides is little
        Sent("all-gather", "weights", "fsdp", 2 * weights),
        Sent("reduce-scatter", "gradients", "fsdp", gradients[0]),
        Sent("all-gather", "weights", "expert", 2 * dense / mesh.fsdp),
        Sent("reduce-scatter", "gradients", "expert", gradients[1]),
        *(Sent(kind, what, "expert", n * layers * hidden) for kind, what, n in exchanges(a, mesh, estimate.platform)),
        Sent("all-reduce", "gradients", "data", 2 * reduced),
        Sent("all-reduce", "gradients", "sequence", 2 * reduced),
        Sent("all-gather", "keys and values", "sequence", (1 + again) * layers * keys),
        Sent("reduce-scatter", "their gradients", "sequence", layers * keys),
        Sent(reducing, "activations", "tensor", 2 * (4 + again) * layers * hidden),
    ]
    sizes = dataclasses.asdict(mesh)
    return [one.by((sizes[one.axis] - 1) / sizes[one.axis]) for one in each if sizes[one.axis] > 1]
