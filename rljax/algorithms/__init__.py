"""Pure functions that make up the objective, each found by the name that a config gives it."""

from rljax.algorithms.registry import (
    advantages,
    aggregations,
    filters,
    policy_losses,
    token_advantages,
    turn_advantages,
)

__all__ = ["advantages", "aggregations", "filters", "policy_losses", "token_advantages", "turn_advantages"]
