"""Groups of keys that belong to the functions that another key names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from rljax.config.fields import ConfigError
from rljax.config.names import Entry, Registry, no_such_name


@dataclass(frozen=True)
class Choice:
    """Whose keys stand in a group: those of the function, or the functions, that the key beside it names.

    Attributes:
        by: that key. Where it names several, the group holds a group for each that has keys: by its name, of
            ``module:function`` by the latter.
        slots: where they are looked for.
    """

    by: str
    slots: tuple[Registry[Any], ...]

    def find(self, name: str, key: str = "") -> Entry | None:
        """The function of that name, of whichever slot; see `Registry.find`."""
        return next((found for slot in self.slots if (found := slot.find(name, key))), None)

    def entry(self, name: str, key: str) -> Entry:
        """What `find` finds.

        Raises:
            ConfigError: nothing.
        """
        if found := self.find(name, key):
            return found
        raise ConfigError(f"{key}={name!r}: {no_such_name(name, self.slots)}")

    def entries(self) -> list[Entry]:
        """All that may be named, slot by slot."""
        return [entry for slot in self.slots for entry in slot.entries()]

    def several(self, config: Any) -> bool:
        """Whether the key that names them, of this dataclass, names several."""
        return get_type_hints(config)[self.by] is not str

    def kept(self, named: str | tuple[str, ...], given: Any) -> Any:
        """What is left of the keys when others have been named: of several what is still named, of one nothing."""
        if isinstance(named, str):
            return {}
        return {part: keys for part, keys in given.items() if part in {name.rpartition(":")[2] for name in named}}

    def settled(self, named: str | tuple[str, ...], given: Any, path: str) -> Any:
        """The keys, typed and complete. What nobody is named for who is there is returned as it is, and refused later.

        Raises:
            ConfigError: they are not keys of what is named.
        """
        if isinstance(named, str) and dataclasses.is_dataclass(given):
            return self._of_one(named, given, path)
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
        unread = [name for name, keys in given.items() if name not in short and not _untouched(keys)]
        if unread:
            raise ConfigError(f"{path}.{unread[0]}: nothing reads it; add {unread[0]} to {self.slots[0].key}")
        built = {part: self._of_one(name, given.get(part, {}), f"{path}.{part}") for part, name in short.items()}
        return {part: keys for part, keys in built.items() if not isinstance(keys, Mapping) or keys}

    def _of_one(self, name: str, given: Any, path: str) -> Any:
        if ":" in name and isinstance(given, Mapping) and not given:
            return given  # whoever uses the function imports it: this may be another process
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
        name: what it says.
        slots: where it is looked for.
        group: path of its own keys.
        keys: these.
    """

    key: str
    name: str
    slots: tuple[Registry[Any], ...]
    group: str
    keys: Any


def named_in(config: Any, path: str) -> Iterator[Named]:
    """The functions that a dataclass names whose fields hold keys of their own, and those that these keys name."""
    for spec in dataclasses.fields(config):
        if not (choice := spec.metadata.get("choice")):
            continue
        named, given, group = getattr(config, choice.by), getattr(config, spec.name), f"{path}.{spec.name}"
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
    """A dataclass field for the keys of what the field ``by`` names; its dataclass settles it by `settle`."""
    return dataclasses.field(default_factory=dict, metadata={"help": help, "choice": Choice(by, slots)})


def settle(config: Any, path: str) -> None:
    """Makes typed keys of what a dataclass was given for its fields by `chosen_by`; of its ``__post_init__``.

    Raises:
        ConfigError: see `Choice.settled`.
    """
    for spec in dataclasses.fields(config):
        if choice := spec.metadata.get("choice"):
            named, given = getattr(config, choice.by), getattr(config, spec.name)
            # the one moment at which a frozen dataclass may be completed
            object.__setattr__(config, spec.name, choice.settled(named, given, f"{path}.{spec.name}"))
