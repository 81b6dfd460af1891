"""Finds all that is refused of a config at once: of single keys, and of several where each by itself is right.

A rule yields what it refuses. A key that is refused is taken away from the rules of several keys, and one that reads it
ends there: of a default in its place it would say what nobody wrote, or what goes away by itself. What else such a rule
refuses without that key is said, and so is every other rule's.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

T = TypeVar("T")


class ConfigError(ValueError):
    """The config is refused: one line with the key's path, the reason and what to write instead.

    Attributes:
        others: what else is refused of the same config.
        left: the config without its keys that are refused, for who looks for more (see `without`); else None.
        meant: the value that is near the one that is refused; else None. With it the rest of the config is judged.
    """

    others: tuple[ConfigError, ...] = ()
    left: Any = None
    meant: Any = None


class RefusedConfig(ConfigError):
    """Several keys of a config are refused: a table of lines.

    Attributes:
        title: what stands above it.
        said: of each line a key of another program's, or nothing, and a message.
        errors: what the lines say, where none has such a key; else nothing.
    """

    def __init__(self, title: str, said: Sequence[tuple[str, str]], errors: Sequence[ConfigError] = ()) -> None:
        """Lays the table out; see the attributes."""
        self.title, self.said, self.errors = title, said, errors
        width = min(max((len(key) for key, _ in said), default=0), 60)
        lines = [f"  {key:<{width}}  {line}" if key else f"  {line}" for key, line in said]
        super().__init__("\n".join([f"{title}:", *lines]))


class RefusedIn(ConfigError):
    """One cause is met in several places, such as files: one line for them all.

    Attributes:
        cause: what is refused, whatever the place.
        places: names of places, by what else is said of them.
    """

    def __init__(self, cause: str, places: Mapping[str, Sequence[str]]) -> None:
        """Says it; see the attributes. Of many names the first few are said, and how many more there are."""
        self.cause, self.places = cause, places
        super().__init__("; ".join([cause, *(f"{said}, of {_few(names)}" for said, names in places.items())]))


_FEW = 3
"""Names of places that a line has room for."""


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return f"{', '.join(names[:_FEW])}{more}"


class Refused:
    """Type of `REFUSED`."""


REFUSED: Final = Refused()
"""Stands in a config, while what is refused of it is looked for, for a value that is refused already."""


def is_refused(value: Any) -> bool:
    """Returns whether a value is `REFUSED`, or a mapping in which one is."""
    return value is REFUSED or (isinstance(value, Mapping) and any(map(is_refused, value.values())))


class Unreadable(Exception):
    """A rule reads a key that is refused."""


_put_off: ContextVar[bool] = ContextVar("put_off", default=False)


@contextlib.contextmanager
def judged_later(later: bool = True) -> Iterator[None]:
    """Has dataclasses of the schema be made without a word on their values, while the context lasts: who asks for that
    judges what becomes of them as a whole. With ``later=False`` inside of such a context they are judged again.
    """
    token = _put_off.set(later)
    try:
        yield
    finally:
        _put_off.reset(token)


def is_judged_later() -> bool:
    """Returns whether what is refused of a dataclass that is made now is said later."""
    return _put_off.get()


Refusals: TypeAlias = Iterator[ConfigError]
Rule: TypeAlias = Callable[[T], Refusals]
Single: TypeAlias = Callable[[T], Iterator[tuple[str, ConfigError | None]]]
"""Yields the path of each key that is refused by itself, and why; None where that is said already."""


def hold(subject: T, single: Iterable[Single[T]], rules: Iterable[Rule[T]]) -> None:
    """Holds a config to rules of single keys, and to those of several as far as they read none of these; not where it
    is `judged_later`.

    Raises:
        ConfigError: the first that is refused; the rest are its `ConfigError.others`. What else a rule raises is a
            mistake of that rule, and is raised as it is.
    """
    if is_judged_later():
        return
    found: list[ConfigError] = []
    paths: set[str] = set()
    meant: dict[str, Any] = {}
    left = subject
    for one in single:
        refused = list(readable(one, left))
        found += [error for _, error in refused if error is not None]
        if refused:
            paths |= {path for path, _ in refused}
            meant |= {path: error.meant for path, error in refused if error is not None and error.meant is not None}
            left = without(subject, paths, meant=meant)
    found += collected(left, *rules)
    if found:
        error = joined(found)
        error.left = left
        raise error


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


def by_key(errors: Sequence[ConfigError], more: Iterable[ConfigError]) -> list[ConfigError]:
    """Returns errors and more of them, a line for each key and value: what else is wrong of one stands behind."""
    found = list(errors)
    for error in more:
        reason = str(error).partition(": ")[2]
        at = next((at for at, said in enumerate(found) if _key(said) == _key(error)), None)
        if at is None:
            found.append(error)
        elif reason not in str(found[at]):
            found[at] = ConfigError(f"{found[at]}; {reason}")
    return found


def _key(error: ConfigError) -> str:
    return str(error).partition(": ")[0]


def joined(errors: Iterable[ConfigError]) -> ConfigError:
    """Returns the first of several errors with the others beside it, each message once."""
    first, *others = distinct(errors)
    first.others = tuple(others)
    first.__notes__ = [str(other) for other in others]  # a traceback shows them
    return first


def table(title: str, errors: Iterable[ConfigError]) -> ConfigError:
    """Returns one error for all, each message once: itself where it is alone."""
    every = distinct(errors)
    return every[0] if len(every) == 1 else RefusedConfig(title, [("", str(error)) for error in every], every)


def one_table(title: str, errors: Sequence[ConfigError]) -> ConfigError:
    """Returns what several configs are refused for, each message once: the first where it says all, else a table,
    below the title of one of theirs, or ``title``.
    """
    every = [one for error in errors for one in (error, *error.others)]
    titles = [error.title for error in every if isinstance(error, RefusedConfig)]
    said = dict.fromkeys(
        pair for one in every for pair in (one.said if isinstance(one, RefusedConfig) else [("", str(one))])
    )
    return errors[0] if len(said) == 1 else RefusedConfig([*titles, title][0], [*said])


def distinct(errors: Iterable[ConfigError]) -> list[ConfigError]:
    """Returns what errors say, each message once, and each cause that is met in several places."""
    by_cause: dict[str, list[ConfigError]] = {}
    for error in errors:
        for one in lines_of(error):
            by_cause.setdefault(cause_of(one), []).append(one)
    return [one_of(same, cause) for cause, same in by_cause.items()]


def cause_of(error: ConfigError) -> str:
    """Returns what an error says, but for the places where it is met."""
    return error.cause if isinstance(error, RefusedIn) else str(error)


def one_of(errors: Sequence[ConfigError], cause: str) -> ConfigError:
    """Returns one error for several of one cause, with the places of all; the first where it says as much."""
    first = errors[0]
    places: dict[str, dict[str, None]] = {}
    for one in errors:
        for said, names in one.places.items() if isinstance(one, RefusedIn) else ():
            places.setdefault(said, {}).update(dict.fromkeys(names))
    made = RefusedIn(cause, {said: list(names) for said, names in places.items()}) if places else ConfigError(cause)
    return first if str(first) == str(made) else made


def lines_of(error: ConfigError) -> list[ConfigError]:
    """Returns what a table says, line by line; of any other error itself."""
    if not isinstance(error, RefusedConfig):
        return [error]
    if error.errors:
        return list(error.errors)
    return [ConfigError(f"{key}  {line}" if key else line) for key, line in error.said]


def without(
    config: Any, paths: Collection[str], above: str = "", meant: Mapping[str, Any] = MappingProxyType({})
) -> Any:
    """Returns a dataclass whose keys at these paths raise `Unreadable` when they are read.

    Args:
        config: a dataclass, of values, dataclasses, and mappings of such.
        paths: dotted.
        above: what stands before its keys, with a dot behind.
        meant: values by path, of those keys that have one instead.
    """
    kept: dict[str, Any] = {}
    gone: dict[str, Any] = {}
    for spec in dataclasses.fields(config):
        path, value = f"{above}{spec.name}", getattr(config, spec.name)
        entries = value if isinstance(value, Mapping) else {}
        if path in meant:
            kept[spec.name] = meant[path]
        elif path in paths or any(is_refused(item) or f"{path}.{name}" in paths for name, item in entries.items()):
            gone[spec.name] = property(_unreadable)
        elif isinstance(value, Mapping):
            kept[spec.name] = {name: _without(item, paths, f"{path}.{name}.", meant) for name, item in value.items()}
        else:
            kept[spec.name] = _without(value, paths, f"{path}.", meant)
    kind = type(config)
    # a subclass, which rules of dataclasses take for what it is; it is equal to nothing as long as not all can be read
    kind = type(kind.__name__, (kind,), {"__eq__": _unreadable, "__hash__": None, **gone}) if gone else kind
    made = object.__new__(kind)
    for name, value in kept.items():
        object.__setattr__(made, name, value)
    return made


def changed(subject: T, **values: Any) -> T:
    """Returns a dataclass with other values, as `dataclasses.replace`, of whose keys some cannot be read; none is
    judged again.
    """
    made = copy.copy(subject)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _without(value: Any, paths: Collection[str], above: str, meant: Mapping[str, Any]) -> Any:
    below = dataclasses.is_dataclass(value) and any(path.startswith(above) for path in paths)
    return without(value, paths, above, meant) if below else value


def _unreadable(*_: object) -> NoReturn:
    raise Unreadable


def readable(rule: Callable[[T], Iterator[Any]], subject: T) -> Iterator[Any]:
    """Yields what a rule yields, up to where it reads what cannot be read."""
    try:
        yield from rule(subject)
    except Unreadable:
        return
