"""Decoder layer whose MLP is a mixture of experts."""

from __future__ import annotations

from flax import nnx
from jaxtyping import Array, Float, Int

from rljax.models.common.block import LAYER_NAMES, Block, Matrix
from rljax.models.common.experts.experts import mixture
from rljax.models.common.experts.routing import Routing, route
from rljax.models.common.hardware import EXPERT_COLUMNS, EXPERT_ROWS, FSDP, Hardware, Rule

ROUTER = "router"
"""Name of the router's matrix, which is no linear layer of the model: it chooses."""

SHARDING: dict[str, Rule] = {
    ROUTER: (None, FSDP, None),
    "expert_gate": (None, *EXPERT_COLUMNS),
    "expert_up": (None, *EXPERT_COLUMNS),
    "expert_down": (None, *EXPERT_ROWS),
}
"""Sharding rules of the parameters of an `ExpertsBlock`."""


def names(router: str, gate: str, up: str, down: str) -> dict[str, str]:
    """Returns the Hugging Face names of a layer with experts, ``{}`` where the number of an expert stands."""
    attention = {key: name for key, name in LAYER_NAMES.items() if key not in ("gate", "up", "down")}
    return {**attention, ROUTER: router, "expert_gate": gate, "expert_up": up, "expert_down": down}


class ExpertsBlock(Block):
    """Layer with a router and experts in the place of one MLP."""

    def make_mlp(self, matrix: Matrix) -> None:
        """Makes the router, and of each expert the parameters of a gated MLP."""
        hidden, experts = self.architecture.hidden_size, self.architecture.experts
        assert experts is not None
        self.router = matrix(hidden, experts.count)
        self.expert_gate = matrix(hidden, experts.width, experts.count)
        self.expert_up = matrix(hidden, experts.width, experts.count)
        self.expert_down = matrix(experts.width, hidden, experts.count)

    def mlp(
        self,
        normed: Float[Array, "batch time hidden"],
        hardware: Hardware,
        routes: Int[Array, "batch time picked"] | None = None,
    ) -> Float[Array, "batch time hidden"]:
        """Returns what the experts of each token add to the residual stream; `routing` says which they were."""
        assert self.architecture.experts is not None
        routing = route(normed, self.router[...], self.architecture.experts, hardware, routes)
        self.routed = nnx.Intermediate(routing)
        weights = self.expert_gate[...], self.expert_up[...], self.expert_down[...]
        return mixture(normed, routing.chosen, routing.gates, weights, hardware, self.architecture.activation)

    @property
    def routing(self) -> Routing:
        """Choice of the router in the last call of `mlp`."""
        chosen: Routing = self.routed.get_value()
        return chosen
