"""Registries of the functions that make up the objective, slot by slot, with their signatures.

An entry is a pure function in a file of its own inside the slot's package; a new file there is found without being
listed anywhere. It takes what its slot hands it (the calls below) and, behind that, its own keys: an instance of the
dataclass that it was registered with, or, registered with none, keyword-only parameters. A notebook adds its own with
``@advantages.register("mine")``, a config names one of another package with ``module:function``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from jaxtyping import Float, Int

from rljax.config import registries
from rljax.config.choice import Named
from rljax.config.refusals import joined, refused_by
from rljax.config.registries import Registry
from rljax.config.schema import AlgorithmConfig
from rljax.trajectory import Group

if TYPE_CHECKING:
    from rljax.algorithms.inputs import LossInputs, TokenLoss, TokenRewards, TurnRewards


class Advantage(Protocol):
    """Computes advantages of groups of equal size, from the rewards of their members (float64).

    One that is registered with ``needs=("greedy",)`` is also handed, by that name, the reward of each group's greedy
    answer, float64 ``[groups]``.
    """

    def __call__(  # noqa: D102
        self, rewards: Float[np.ndarray, "groups member"], /, **needed: Any
    ) -> Float[np.ndarray, "groups member"]: ...


class TurnAdvantage(Protocol):
    """Computes advantages of every turn of a batch; what is beyond a trajectory's last turn is not used."""

    def __call__(  # noqa: D102
        self, scored: TurnRewards, /
    ) -> Float[np.ndarray, "groups member turn"]: ...


class TokenAdvantage(Protocol):
    """Computes advantages and returns of every sampled token of a batch; what is beyond a trajectory's last is unused.

    One that is registered with ``needs=("values",)`` cannot do without a critic.
    """

    def __call__(  # noqa: D102
        self, scored: TokenRewards, /
    ) -> tuple[Float[np.ndarray, "trajectory token"], Float[np.ndarray, "trajectory token"]]: ...


class PolicyLoss(Protocol):
    """Computes the unweighted loss of each token, and per-token values whose means over trained tokens are logged."""

    def __call__(self, inputs: LossInputs, /) -> TokenLoss: ...  # noqa: D102


class Aggregation(Protocol):
    """Computes the weight of each trained token of a trajectory; an update's loss is the weighted sum over tokens.

    ``token_counts`` are the trained tokens of **all** trajectories of the update, so that the loss depends neither on
    packing, nor on microbatches, nor on the mesh. The weight of a trajectory without trained tokens is not used.
    """

    def __call__(  # noqa: D102
        self, token_counts: Int[np.ndarray, " trajectories"], max_response_tokens: int, /
    ) -> Float[np.ndarray, " trajectories"]: ...


class Filter(Protocol):
    """Returns why a scored group is not trained, or None where it is kept. The ledger counts by reason."""

    def __call__(self, group: Group, /) -> str | None: ...  # noqa: D102


advantages: Registry[Advantage] = registries.advantages
turn_advantages: Registry[TurnAdvantage] = registries.turn_advantages
token_advantages: Registry[TokenAdvantage] = registries.token_advantages
policy_losses: Registry[PolicyLoss] = registries.policy_losses
aggregations: Registry[Aggregation] = registries.aggregations
filters: Registry[Filter] = registries.filters


def check_names(config: AlgorithmConfig) -> None:
    """Looks up every function of the config, with its keys.

    Raises:
        ConfigError: a name leads nowhere, its keys are not those of the function, or it takes other arguments; all but
            the first are its ``others``.
    """
    if refused := [error for one in config.functions() for error in refused_by(_check_name, one)]:
        raise joined(refused)


def _check_name(one: Named) -> None:
    slot = next((slot for slot in one.slots if one.name in slot.names()), one.slots[0])
    slot.entry(one.name, one.key, others=registries.all_names(one.slots))
    slot.bound(one.name, one.keys, one.key)


def chosen_filters(config: AlgorithmConfig) -> list[tuple[str, Callable[[Group], str | None]]]:
    """Returns the filters that a config names, in its order, each a function of the group alone.

    Raises:
        ConfigError: one leads nowhere, or does not take a group.
    """
    return [(name, filters.bound(name, config.filter.get(name.rpartition(":")[2]))) for name in config.filters]
