"""Warning of a run that is to replay the experts of its engines, and has none."""

from __future__ import annotations

from collections.abc import Mapping

from rljax.config.algorithm import AlgorithmConfig

FEW = 0.01
"""Share of the choices that engines have to have recorded, at least, for something to be replayed."""


def lost_routes(algorithm: AlgorithmConfig, values: Mapping[str, float]) -> str | None:
    """Returns a warning for the metrics of a step that was to be trained along recorded routes, and was not."""
    known = values.get("router/routes_known", 1.0)
    if not algorithm.replays_routes or known >= FEW:
        return None
    return (
        f"algorithm.router_replay=replay: engines recorded {known:.2%} of the choices that this step's tokens came of "
        "(router/routes_known), so that the learner's routers chose for nearly all. Groups that were sampled before it "
        "was set have none; where it stays so, choose another sidecar.engine, or write algorithm.router_replay=off"
    )
