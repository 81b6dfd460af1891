"""Finds the parts of the objective by the names that a config gives them.

One registry for each slot: `advantages` (and `turn_advantages` and `token_advantages`, found by the same key),
`policy_losses`, `aggregations`, `filters`. An entry is a pure function in a file of its own inside the slot's package;
a new file there is found without being listed anywhere. A notebook adds its own with ``@advantages.register("mine")``,
a config names one of another package with ``module:function``.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

import numpy as np
from jaxtyping import Float, Int

from rljax.config.names import closest, note
from rljax.config.validate import ConfigError, check_estimator, imported
from rljax.trajectory import Group

if TYPE_CHECKING:
    from rljax.algorithms.inputs import LossInputs, TokenLoss, TokenRewards, TurnRewards
    from rljax.config.schema import AlgorithmConfig

Function = TypeVar("Function", bound=Callable[..., object])
Needs = Iterable[str] | Callable[["AlgorithmConfig"], Iterable[str]]


class Advantage(Protocol):
    """Advantages of groups of equal size, from the rewards of their members (float64).

    One that is registered with ``needs=("greedy",)`` is also handed, by that name, the reward of each group's greedy
    answer, float64 ``[groups]``.
    """

    def __call__(  # noqa: D102
        self, rewards: Float[np.ndarray, "groups member"], config: AlgorithmConfig, /
    ) -> Float[np.ndarray, "groups member"]: ...


class TurnAdvantage(Protocol):
    """Advantages of every turn of a batch; what is beyond a trajectory's last turn is not used."""

    def __call__(  # noqa: D102
        self, scored: TurnRewards, config: AlgorithmConfig, /
    ) -> Float[np.ndarray, "groups member turn"]: ...


class TokenAdvantage(Protocol):
    """Advantages and returns of every sampled token of a batch; what is beyond a trajectory's last is not used.

    One that is registered with ``needs=("values",)`` cannot do without a critic.
    """

    def __call__(  # noqa: D102
        self, scored: TokenRewards, config: AlgorithmConfig, /
    ) -> tuple[Float[np.ndarray, "trajectory token"], Float[np.ndarray, "trajectory token"]]: ...


class PolicyLoss(Protocol):
    """Loss of each token, unweighted, and per-token values whose mean over the trained tokens is logged by name."""

    def __call__(  # noqa: D102
        self, inputs: LossInputs, config: AlgorithmConfig, /
    ) -> TokenLoss: ...


class Aggregation(Protocol):
    """Weight of each trained token of a trajectory; the loss of an update is the weighted sum of its token losses.

    ``token_counts`` are the trained tokens of **all** trajectories of the update, so that the loss depends neither on
    packing, nor on microbatches, nor on the mesh. The weight of a trajectory without trained tokens is not used.
    """

    def __call__(  # noqa: D102
        self, token_counts: Int[np.ndarray, " trajectories"], max_response_tokens: int, /
    ) -> Float[np.ndarray, " trajectories"]: ...


class Filter(Protocol):
    """Reason for which a scored group is not trained, or None where it is kept. The ledger counts by reason."""

    def __call__(self, group: Group, config: AlgorithmConfig, /) -> str | None: ...  # noqa: D102


class Registry(Generic[Function]):
    """The functions of one slot, by name.

    Args:
        slot: what the functions are, for messages.
        key: path of the config key that names one.
        package: package whose modules hold the built-in ones; imported at the first look-up.
    """

    def __init__(self, slot: str, key: str, package: str) -> None:
        self.slot = slot
        self.key = key
        self._package = package
        self._entries: dict[str, Function] = {}
        self._needs: dict[str, Needs] = {}
        self._discovered = False

    def register(self, name: str, needs: Needs = ()) -> Callable[[Function], Function]:
        """Decorator that adds a function; a later one of the same name replaces it, so that a cell can be re-run.

        Args:
            name: in the config.
            needs: what the learner computes for it and not for every function, or a function of the config that says
                so; see the inputs of the slot.
        """

        def add(function: Function) -> Function:
            self._discover()
            self._entries[name] = function
            self._needs[name] = needs
            in_a_file = getattr(function, "__module__", "").startswith(f"{self._package}.")
            note(self._package.rpartition(".")[2], name, own=not in_a_file)
            return function

        return add

    def names(self) -> list[str]:
        """All names, sorted."""
        self._discover()
        return sorted(self._entries)

    def get(self, name: str, key: str = "", others: Collection[str] = ()) -> Function:
        """The function of that name, or the one that ``module:function`` points to.

        Args:
            name: in the config.
            key: path of the config key that named it, where that is not the slot's own.
            others: what that key may name besides, for the message.

        Raises:
            ConfigError: no such name, module or function; the closest names are in the message.
        """
        key = key or self.key
        if ":" in name:
            return cast("Function", imported(key, name))
        self._discover()
        if name in self._entries:
            return self._entries[name]
        raise ConfigError(f"{key}={name!r}: no such {self.slot}; {closest(name, {*self._entries, *others})}")

    def needs(self, name: str, config: AlgorithmConfig) -> frozenset[str]:
        """What the function of that name asks for; nothing for ``module:function`` and what is not in this slot."""
        self._discover()
        needs = self._needs.get(name, ())
        return frozenset(needs(config) if callable(needs) else needs)

    def _discover(self) -> None:
        # A user's entry must not be overwritten by the built-in of the same name, so built-ins are imported first;
        # the flag is set before, because their own decorators come back here.
        if self._discovered:
            return
        self._discovered = True
        package = importlib.import_module(self._package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self._package}.{module.name}")


advantages: Registry[Advantage] = Registry("advantage", "algorithm.adv_estimator", "rljax.algorithms.advantage")
turn_advantages: Registry[TurnAdvantage] = Registry(
    "advantage", "algorithm.adv_estimator", "rljax.algorithms.turn_advantage"
)
token_advantages: Registry[TokenAdvantage] = Registry(
    "advantage", "algorithm.adv_estimator", "rljax.algorithms.token_advantage"
)
policy_losses: Registry[PolicyLoss] = Registry("policy loss", "algorithm.pg_variant", "rljax.algorithms.policy_loss")
aggregations: Registry[Aggregation] = Registry("aggregation", "algorithm.aggregation", "rljax.algorithms.aggregation")
filters: Registry[Filter] = Registry("filter", "algorithm.filters", "rljax.algorithms.filter")


def check_names(config: AlgorithmConfig) -> None:
    """Looks every name of the config up.

    Raises:
        ConfigError: one of them leads nowhere, or another key has no meaning with it.
    """
    name, of_tokens = config.adv_estimator, token_advantages.names()
    others = turn_advantages.names() + of_tokens
    if name not in others:
        advantages.get(name, others=others)
    check_estimator(config, of_tokens)
    aggregations.get(config.aggregation)
    for name in config.filters:
        filters.get(name)
    policy_losses.get(config.pg_variant)
    policy_losses.get(config.mix_variant, key="algorithm.mix_variant")


def chosen_filters(config: AlgorithmConfig) -> list[tuple[str, Callable[[Group], str | None]]]:
    """The filters that a config names, in its order, each a function of the group alone.

    Raises:
        ConfigError: one leads nowhere, or does not take a group and a config.
    """
    return [(name, _bound(name, config)) for name in config.filters]


def _bound(name: str, config: AlgorithmConfig) -> Callable[[Group], str | None]:
    reason = filters.get(name)
    try:
        inspect.signature(reason).bind(None, config)
    except TypeError:
        raise ConfigError(f"algorithm.filters={name!r}: must take a group and the algorithm's config") from None
    return lambda group: reason(group, config)
