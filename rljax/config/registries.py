"""Looks up the functions that a config names, with their keys and traits.

One registry for each slot. The functions lie in packages above this module, which are imported at the first look-up:
a function's keys and traits are declared beside its formula and nowhere else.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import inspect
import pkgutil
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rljax.config.fields import ConfigError, key
from rljax.config.refusals import REFUSED, joined
from rljax.config.types import converted, imported, unchecked

Bound = TypeVar("Bound")
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Traits:
    """Declared properties of a function. At registration, each may be given as a function of the function's keys.

    Attributes:
        needs: optional inputs that are computed for it; see the inputs of its slot.
    """

    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class LossTraits(Traits):
    """Declared properties of a policy loss; the defaults are what is assumed of one that declares none.

    Attributes:
        bounds_step: it bounds or penalises the step from the behaviour policy, corrects for it, or has a minimum that
            does not depend on it.
        least_weight: smallest weight that it gives a token by its ratio; None: it has no such bound.
        weighs_tokens: it weighs tokens by π/π_behaviour, so that a correction would do so twice.
        imitates: it reads which tokens are demonstrations.
        mixes: its key that names the loss of the sampled tokens; the group beside it has the keys of that loss.
        whole_groups: it compares the members of a group, which must be in one update.
        estimators: the only ones that its formula holds for; empty: any.
        shares: keys that such an estimator must have at the same value.
        remedy: change that makes it bound its step, for messages.
    """

    bounds_step: bool = False
    least_weight: float | None = None
    weighs_tokens: bool = True
    imitates: bool = False
    mixes: str = ""
    whole_groups: bool = False
    estimators: tuple[str, ...] = ()
    shares: tuple[str, ...] = ()
    remedy: str = ""


@dataclass(frozen=True)
class EstimatorTraits(Traits):
    """Declared properties of an advantage estimator.

    Attributes:
        among_members: it compares the members of a group, and gives a group of one 0 whatever its reward is.
        reads_rewards: what it gives depends on rewards.
    """

    among_members: bool = False
    reads_rewards: bool = True


@dataclass(frozen=True)
class FilterTraits(Traits):
    """Declared properties of a filter.

    Attributes:
        among_members: it drops every group of one.
    """

    among_members: bool = False


@dataclass(frozen=True)
class Entry:
    """A registered function.

    Attributes:
        name: as the config has it.
        function: takes the arguments of its slot and, after them, its keys.
        keys: dataclass of its keys. Where it was registered with one it takes an instance; else its keyword-only
            parameters are its keys, and it takes them by name.
        by_name: whether it takes its keys by name.
        declared: its traits: values of fields of its slot's `Traits`, or functions of its keys.
        user_defined: whether it is the user's, and not built in.
    """

    name: str
    function: Callable[..., Any]
    keys: type
    by_name: bool
    declared: Mapping[str, Any]
    user_defined: bool

    def build(self, values: Mapping[str, Any], path: str) -> Any:
        """Returns its keys, typed and complete: its dataclass, or a mapping where it takes them by name.

        Args:
            values: of some of them.
            path: of the group, for messages.

        Raises:
            ConfigError: keys that it does not have, some that it needs, or wrong types.
        """
        errors = [
            ConfigError(f"{path}.{spec.name}: {self.name} needs it; write {path}.{spec.name}=VALUE")
            for spec in dataclasses.fields(self.keys)
            if spec.default is spec.default_factory is dataclasses.MISSING and spec.name not in values
        ]
        fields = converted(self.keys, values, f"{path}.", self.refusal, errors.append)
        if errors:
            raise joined(errors)
        refused = any(value is REFUSED for value in fields.values())
        built = unchecked(self.keys, fields) if refused else self.keys(**fields)
        return {spec.name: getattr(built, spec.name) for spec in dataclasses.fields(built)} if self.by_name else built

    def refusal(self, dotted: str, name: str, known: Mapping[str, Any], prefix: str, value: Any) -> str:
        """Returns the message that refuses a key that it does not have."""
        near = closest(name, known, has="it has") if known else "it has none"
        return f"{dotted}: {self.name} has no such key; {near}"

    def bind(self, keys: Any, path: str) -> Callable[..., Any]:
        """Returns the function with its keys.

        Args:
            keys: what `build` returned, or a mapping of some of them.
            path: of the key that names it, for messages.

        Raises:
            ConfigError: they are not its keys.
        """
        if not self.by_name and type(keys) is self.keys:
            return _Configured(self.function, keys)
        if not isinstance(keys, Mapping):
            raise ConfigError(f"{path}={self.name!r}: the keys beside it are those of another, {type(keys).__module__}")
        built = self.build(keys, path)
        return functools.partial(self.function, **built) if self.by_name else _Configured(self.function, built)


@dataclass(frozen=True)
class _Configured:
    """A function bound to its dataclass, which it takes as its last argument."""

    function: Callable[..., Any]
    keys: Any

    def __call__(self, *given: Any, **more: Any) -> Any:
        return self.function(*given, self.keys, **more)


class Registry(Generic[Bound]):
    """Registry of the functions of one slot, by name.

    Args:
        slot: what the functions are, for messages.
        key: path of the config key that names one.
        package: package whose modules hold the built-in ones; imported at the first look-up.
        traits: dataclass of the traits of a function of the slot.
        takes: number of arguments that the slot passes to a function.
    """

    def __init__(self, slot: str, key: str, package: str, traits: type[Traits] = Traits, takes: int = 1) -> None:
        self.slot = slot
        self.key = key
        self._package = package
        self._traits = traits
        self._takes = takes
        self._built_in: dict[str, Entry] = {}
        self._user_defined: dict[str, Entry] = {}
        self._discovered = False

    def register(self, name: str, *, Config: type | None = None, **traits: Any) -> Callable[[Function], Function]:
        """Registers a function by name, as a decorator; a later one of the same name replaces it: a cell can be re-run.

        Args:
            name: in the config.
            Config: frozen dataclass of its keys, each made by `rljax.config.fields.key`; the function takes an instance
                behind what the slot hands it. None: its keyword-only parameters are its keys.
            traits: fields of the slot's `Traits`.
        """
        self._traits(**traits)  # refuses what a function of the slot cannot say

        def add(function: Function) -> Function:
            user_defined = not getattr(function, "__module__", "").startswith(f"{self._package}.")
            keys = Config or _keys_by_name(function)
            entries = self._user_defined if user_defined else self._built_in
            entries[name] = Entry(name, function, keys, Config is None, traits, user_defined)
            return function

        return add

    def names(self) -> list[str]:
        """Returns all names, sorted."""
        return sorted({entry.name for entry in self.entries()})

    def entries(self) -> Iterator[Entry]:
        """Yields all entries, by name; a function of one's own replaces the built-in of its name."""
        self._discover()
        yield from sorted(({**self._built_in, **self._user_defined}).values(), key=lambda entry: entry.name)

    def built_in(self) -> list[Entry]:
        """Returns the entries of this repository that nothing replaces, by name."""
        return [entry for entry in self.entries() if not entry.user_defined]

    def user_defined_names(self) -> set[str]:
        """Returns the names that were registered in this process alone."""
        return set(self._user_defined)

    def find(self, name: str, key: str = "") -> Entry | None:
        """Finds the function of that name, or the one that ``module:function`` points to; None: there is no such name.

        Raises:
            ConfigError: ``module:function`` points to no function; ``key`` is what named it, where not the slot's own.
        """
        if ":" not in name:
            self._discover()
            return self._user_defined.get(name) or self._built_in.get(name)
        function = imported(key or self.key, name)
        known = [entry for entry in self.entries() if entry.function is function]
        return known[0] if known else by_name(name, function)

    def entry(self, name: str, key: str = "", others: Collection[str] = ()) -> Entry:
        """Returns what `find` finds.

        Args:
            name: in the config.
            key: path of the config key that named it, where that is not the slot's own.
            others: what that key may name besides, for the message.

        Raises:
            ConfigError: no such name, module or function; the closest names are in the message.
        """
        if found := self.find(name, key):
            return found
        near = closest(name, {*self.names(), *others})
        raise ConfigError(f"{key or self.key}={name!r}: no such {self.slot}; {near}")

    def get(self, name: str) -> Callable[..., Any]:
        """Returns the function of that name as it was registered, without its keys.

        Raises:
            ConfigError: see `entry`.
        """
        return self.entry(name).function

    def bound(self, name: str, keys: Any = None, key: str = "") -> Bound:
        """Returns the function of that name bound to its keys: it takes the slot's arguments, and nothing else.

        Args:
            name: in the config.
            keys: of its own, from the group of the config that holds them; None: its defaults.
            key: path of the config key that named it, where that is not the slot's own.

        Raises:
            ConfigError: see `entry`; or they are not its keys; or it takes other arguments.
        """
        entry, key = self.entry(name, key), key or self.key
        function = entry.bind({} if keys is None else keys, key)
        try:
            inspect.signature(entry.function).bind(
                *[None] * (self._takes + (not entry.by_name)),
                **(function.keywords if isinstance(function, functools.partial) else {}),
            )
        except TypeError as error:
            raise ConfigError(
                f"{key}={name!r}: must take {self._takes} argument{'s' * (self._takes > 1)}, and its keys as "
                f"keyword-only parameters ({error})"
            ) from None
        except ValueError:
            pass  # a function of C code may not tell its signature; the first call will
        return typing.cast("Bound", function)

    def traits(self, name: str, keys: Any = None) -> Any:
        """Returns the traits of the function of that name with these keys; the defaults for one that declares none, and
        for a name that is not there, which is refused where the function is asked for. ``module:function`` may point
        to one that is registered.
        """
        try:
            entry = self.find(name)
        except ConfigError:
            entry = None
        if entry is None or not entry.declared:
            return self._traits()
        if keys is None or isinstance(keys, Mapping):
            keys = entry.build(keys or {}, self.key)
        return self._traits(**{what: said(keys) if callable(said) else said for what, said in entry.declared.items()})

    def needs(self, name: str, keys: Any = None) -> frozenset[str]:
        """Returns what the function of that name needs, as `traits` says."""
        return frozenset(self.traits(name, keys).needs)

    def _discover(self) -> None:
        if self._discovered:
            return
        self._discovered = True  # before: a module may look others up while it is imported
        package = importlib.import_module(self._package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self._package}.{module.name}")


def by_name(name: str, function: Callable[..., Any]) -> Entry:
    """Makes an entry of a function whose keyword-only parameters are its keys, and whose traits are the defaults.

    Raises:
        ConfigError: their annotations cannot be read.
    """
    return Entry(name, function, _keys_by_name(function), True, {}, True)


def _keys_by_name(function: Callable[..., Any]) -> type:
    """Makes a dataclass of the keyword-only parameters of a function."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a function of C code may not tell its signature
        parameters = []
    keys = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    written = {p.name: Any if p.annotation is p.empty else p.annotation for p in keys}
    defined_in = sys.modules.get(getattr(function, "__module__", None) or "")
    scope = getattr(inspect.unwrap(function), "__globals__", None) or getattr(defined_in, "__dict__", {})  # of a class
    meaning = f"of {getattr(function, '__name__', function)}"
    try:
        hints = typing.get_type_hints(types.SimpleNamespace(__annotations__=written), globalns=scope)
    except NameError as error:
        raise ConfigError(f"keyword-only parameters {meaning}: an annotation cannot be read ({error})") from None
    made = {
        p.name: dataclasses.field(metadata={"help": meaning}) if p.default is p.empty else key(p.default, meaning)
        for p in keys
    }
    fields = [(name, hints[name], field) for name, field in made.items()]
    return dataclasses.make_dataclass("Keys", fields, frozen=True, kw_only=True)


def closest(name: str, there: Collection[str], has: str = "there are") -> str:
    """Returns which of the known names may have been meant, whatever its case; all of them where none is near."""
    by_case = {found.casefold(): found for found in there}
    close = [by_case[near] for near in difflib.get_close_matches(name.casefold(), by_case, n=3, cutoff=0.5)]
    return f"closest: {', '.join(close)}" if close else f"{has}: {', '.join(sorted(there))}"


advantages: Registry[Any] = Registry(
    "advantage", "algorithm.adv_estimator", "rljax.algorithms.advantages", EstimatorTraits
)
turn_advantages: Registry[Any] = Registry(
    "advantage", "algorithm.adv_estimator", "rljax.algorithms.turn_advantages", EstimatorTraits
)
token_advantages: Registry[Any] = Registry(
    "advantage", "algorithm.adv_estimator", "rljax.algorithms.token_advantages", EstimatorTraits
)
policy_losses: Registry[Any] = Registry("policy loss", "algorithm.pg_variant", "rljax.algorithms.losses", LossTraits)
aggregations: Registry[Any] = Registry("aggregation", "algorithm.aggregation", "rljax.algorithms.aggregation", takes=2)
filters: Registry[Any] = Registry("filter", "algorithm.filters", "rljax.algorithms.filter", FilterTraits)
workflows: Registry[Any] = Registry("workflow", "rollout.workflow", "rljax.rollout.workflows")
ESTIMATORS = (advantages, turn_advantages, token_advantages)
SLOTS = (*ESTIMATORS, policy_losses, aggregations, filters, workflows)


def user_defined_names(slots: Iterable[Registry[Any]]) -> set[str]:
    """Returns the names in these slots that were registered in this process alone."""
    return {name for slot in slots for name in slot.user_defined_names()}


def all_names(slots: Iterable[Registry[Any]]) -> set[str]:
    """Returns the names in these slots that this process can look up."""
    return {name for slot in slots for name in slot.names()}


def no_such_name(name: str, slots: Collection[Registry[Any]]) -> str:
    """Returns the message for a name that is in none of these slots; an estimator is often called a loss, as GRPO."""
    asked, pair = {slot.key for slot in slots}, (policy_losses, *ESTIMATORS)
    key = next((slot.key for slot in pair if name in slot.names()), "")
    there = f"write {key}={name}, or " if key and asked & {slot.key for slot in pair} else ""
    own = "module:Class" if "rollout.workflow" in asked else "module:function"
    return f"there is no such one; {there}{closest(name, all_names(slots))}; or write {own}"
