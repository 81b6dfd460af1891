"""Config groups that hold the keys of the functions that another key names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, get_type_hints

from rljax.config.fields import ConfigError
from rljax.config.refusals import REFUSED, is_judged_later, joined, readable
from rljax.config.registries import Entry, Registry, no_such_name


@dataclass(frozen=True)
class Choice:
    """Describes a group that holds the keys of a function, or of several, that the key beside it names.

    Attributes:
        by: the key beside it. Where it names several, the group holds a group for each that has keys: by its name, of
            ``module:function`` by the latter.
        slots: the registries in which the functions are looked up.
    """

    by: str
    slots: tuple[Registry[Any], ...]

    def find(self, name: str, key: str = "") -> Entry | None:
        """Finds the function of that name, in whichever slot; see `Registry.find`."""
        return next((found for slot in self.slots if (found := slot.find(name, key))), None)

    def entry(self, name: str, key: str) -> Entry:
        """Returns what `find` finds.

        Raises:
            ConfigError: there is no function of that name.
        """
        if found := self.find(name, key):
            return found
        raise ConfigError(f"{key}={name!r}: {no_such_name(name, self.slots)}")

    def entries(self) -> list[Entry]:
        """Returns all functions that may be named, slot by slot."""
        return [entry for slot in self.slots for entry in slot.entries()]

    def several(self, config: Any) -> bool:
        """Returns whether the key ``by`` of this dataclass names several functions."""
        return get_type_hints(config)[self.by] is not str

    def kept(self, named: str | tuple[str, ...], given: Any) -> Any:
        """Returns the keys that remain after other functions are named: of several those still named, of one none."""
        if not isinstance(named, tuple | list):
            return {}
        return {part: keys for part, keys in given.items() if part in {name.rpartition(":")[2] for name in named}}

    def settled(self, named: str | tuple[str, ...], given: Any, path: str) -> Any:
        """Returns the keys, typed and complete; unchanged where the function does not exist, which is refused later.

        Raises:
            ConfigError: the function does not take these keys.
        """
        if isinstance(named, str) and dataclasses.is_dataclass(given):
            return self._of_one(named, given, path)
        if named is REFUSED or given is REFUSED:
            return REFUSED
        if not isinstance(given, Mapping):
            raise ConfigError(f"{path}={given!r}: this is a group of keys; write {path}.KEY=VALUE")
        if isinstance(named, str):
            return self._of_one(named, given, path)
        short: dict[str, str] = {}
        for name in named:
            first = short.setdefault(part := name.rpartition(":")[2], name)
            if first != name:
                key = self.slots[0].key
                raise ConfigError(f"{key}: {first} and {name} share the keys {path}.{part}; rename one")
        errors = [
            ConfigError(f"{path}.{part}: nothing reads it; add {part} to {self.slots[0].key}")
            for part, keys in given.items()
            if part not in short and not _untouched(keys)
        ]
        built = {}
        for part, name in short.items():
            try:
                built[part] = self._of_one(name, given.get(part, {}), f"{path}.{part}")
            except ConfigError as error:
                errors += [error, *error.others]
        if errors:
            raise joined(errors)
        return {part: keys for part, keys in built.items() if not isinstance(keys, Mapping) or keys}

    def _of_one(self, name: str, given: Any, path: str) -> Any:
        if given is REFUSED:
            return given
        if ":" in name and isinstance(given, Mapping) and not given:
            return given  # the process that uses the function imports it, which may be another
        entry = self.find(name)
        if entry is None or (type(given) is entry.keys and not entry.by_name):
            return given
        if not isinstance(given, Mapping):
            if not _untouched(given):
                raise ConfigError(f"{path}: holds keys of {type(given).__module__}, and {self.by} names {name}")
            given = {}
        return entry.build(given, path)


@dataclass(frozen=True)
class Named:
    """A function that a config names.

    Attributes:
        key: path of the key that names it.
        name: value of that key.
        slots: the registries in which it is looked up.
        group: path of its own keys.
        keys: values of its own keys.
    """

    key: str
    name: str
    slots: tuple[Registry[Any], ...]
    group: str
    keys: Any


def named_in(config: Any, path: str) -> Iterator[Named]:
    """Yields the functions that a dataclass names whose fields hold their keys, and those that these keys name, but for
    those of which the name or the keys are refused.
    """
    for spec in dataclasses.fields(config):
        if choice := spec.metadata.get("choice"):
            yield from readable(partial(_named_by, choice, spec.name, path), config)


def _named_by(choice: Choice, field: str, path: str, config: Any) -> Iterator[Named]:
    named, given, group = getattr(config, choice.by), getattr(config, field), f"{path}.{field}"
    several = not isinstance(named, str)
    for name in named if several else (named,):
        short = name.rpartition(":")[2]
        keys, here = (given.get(short, {}), f"{group}.{short}") if several else (given, group)
        yield Named(f"{path}.{choice.by}", name, choice.slots, here, keys)
        if dataclasses.is_dataclass(keys):
            yield from named_in(keys, here)


def _untouched(keys: Any) -> bool:
    return not keys if isinstance(keys, Mapping) else keys == type(keys)()


def chosen_by(by: str, help: str, *slots: Registry[Any]) -> Any:
    """Declares a field for the keys of the functions that the field ``by`` names; `settle` types them."""
    return dataclasses.field(default_factory=dict, metadata={"help": help, "choice": Choice(by, slots)})


def settle(config: Any, path: str) -> None:
    """Types the keys in a dataclass's fields by `chosen_by`; called by its ``__post_init__``. What is refused of them
    stays as it is where it is `judged_later`.

    Raises:
        ConfigError: see `Choice.settled`.
    """
    errors: list[ConfigError] = []
    for spec in dataclasses.fields(config):
        if choice := spec.metadata.get("choice"):
            named, given = getattr(config, choice.by), getattr(config, spec.name)
            try:
                settled = choice.settled(named, given, f"{path}.{spec.name}")
            except ConfigError as error:
                errors += [error, *error.others]
            else:  # the one moment at which a frozen dataclass may be completed
                object.__setattr__(config, spec.name, settled)
    if errors and not is_judged_later():
        raise joined(errors)
