"""Finds all that is refused of a config at once: of single keys, and of several where each by itself is right.

A rule yields what it refuses. A key that is refused is taken away from the rules of several keys, and one that reads it
ends there: of a default in its place it would say what nobody wrote, or what goes away by itself. What else such a rule
refuses without that key is said, and so is every other rule's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

T = TypeVar("T")


class ConfigError(ValueError):
    """The config is refused: one line with the key's path, the reason and what to write instead.

    Attributes:
        others: what else is refused of the same config.
    """

    others: tuple[ConfigError, ...] = ()


class RefusedConfig(ConfigError):
    """Several keys of a config are refused: a table of lines."""

    def __init__(self, title: str, said: Sequence[tuple[str, str]]) -> None:
        """Takes what stands above the table, and of each line a key of another program's, or nothing, and a message."""
        width = min(max((len(key) for key, _ in said), default=0), 60)
        lines = [f"  {key:<{width}}  {line}" if key else f"  {line}" for key, line in said]
        super().__init__("\n".join([f"{title}:", *lines]))


class Refused:
    """Type of `REFUSED`."""


REFUSED: Final = Refused()
"""Stands in a config, while what is refused of it is looked for, for a value that is refused already."""


class Unreadable(Exception):
    """A rule reads a key that is refused."""


Refusals: TypeAlias = Iterator[ConfigError]
Rule: TypeAlias = Callable[[T], Refusals]
Single: TypeAlias = Callable[[T], Iterator[tuple[str, ConfigError | None]]]
"""Yields the path of each key that is refused by itself, and why; None where that is said already."""


def hold(subject: T, single: Iterable[Single[T]], rules: Iterable[Rule[T]]) -> None:
    """Holds a config to rules of single keys, and to those of several as far as they read none of these.

    Raises:
        ConfigError: the first that is refused; the rest are its `ConfigError.others`. What else a rule raises is a
            mistake of that rule, and is raised as it is.
    """
    found: list[ConfigError] = []
    paths: set[str] = set()
    left = subject
    for one in single:
        refused = list(readable(one, left))
        found += [error for _, error in refused if error is not None]
        if refused:
            paths |= {path for path, _ in refused}
            left = without(subject, paths)
    found += collected(left, *rules)
    if found:
        raise joined(found)


def collected(subject: T, *rules: Rule[T]) -> Refusals:
    """Yields what rules refuse, each for itself: one that reads what cannot be read ends alone."""
    for rule in rules:
        try:
            yield from readable(rule, subject)
        except ConfigError as error:
            yield from (error, *error.others)


def refused_by(check: Callable[..., Any], *arguments: Any) -> Refusals:
    """Yields what a check refuses that raises."""
    try:
        check(*arguments)
    except ConfigError as error:
        yield from (error, *error.others)


def joined(errors: Iterable[ConfigError]) -> ConfigError:
    """Returns the first of several errors with the others beside it, each message once."""
    first, *others = _distinct(errors)
    first.others = tuple(others)
    first.__notes__ = [str(other) for other in others]  # a traceback shows them
    return first


def table(title: str, errors: Iterable[ConfigError]) -> ConfigError:
    """Returns one error for all, each message once: itself where it is alone."""
    distinct = _distinct(errors)
    return distinct[0] if len(distinct) == 1 else RefusedConfig(title, [("", str(error)) for error in distinct])


def _distinct(errors: Iterable[ConfigError]) -> list[ConfigError]:
    distinct: dict[str, ConfigError] = {}
    for error in errors:
        distinct.setdefault(str(error), error)
    return list(distinct.values())


def without(config: Any, paths: Collection[str], above: str = "") -> Any:
    """Returns a dataclass whose keys at these paths raise `Unreadable` when they are read.

    Args:
        config: a dataclass, of values, dataclasses, and mappings of such.
        paths: dotted.
        above: what stands before its keys, with a dot behind.
    """
    kept: dict[str, Any] = {}
    gone: dict[str, Any] = {}
    for spec in dataclasses.fields(config):
        path, value = f"{above}{spec.name}", getattr(config, spec.name)
        entries = value if isinstance(value, Mapping) else {}
        if path in paths or any(item is REFUSED or f"{path}.{name}" in paths for name, item in entries.items()):
            gone[spec.name] = property(_unreadable)
        elif isinstance(value, Mapping):
            kept[spec.name] = {name: _without(item, paths, f"{path}.{name}.") for name, item in value.items()}
        else:
            kept[spec.name] = _without(value, paths, f"{path}.")
    kind = type(config)
    # a subclass, which rules of dataclasses take for what it is; it is equal to nothing as long as not all can be read
    kind = type(kind.__name__, (kind,), {"__eq__": _unreadable, "__hash__": None, **gone}) if gone else kind
    made = object.__new__(kind)
    for name, value in kept.items():
        object.__setattr__(made, name, value)
    return made


def _without(value: Any, paths: Collection[str], above: str) -> Any:
    below = dataclasses.is_dataclass(value) and any(path.startswith(above) for path in paths)
    return without(value, paths, above) if below else value


def _unreadable(*_: object) -> NoReturn:
    raise Unreadable


def readable(rule: Callable[[T], Iterator[Any]], subject: T) -> Iterator[Any]:
    """Yields what a rule yields, up to where it reads what cannot be read."""
    try:
        yield from rule(subject)
    except Unreadable:
        return
