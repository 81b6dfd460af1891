"""Every key with its default and meaning, and what is said of one that there is not."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from rljax.config import registries
from rljax.config.foreign_keys import advice
from rljax.config.schema import Config
from rljax.config.types import element_of, hints_of, type_name


@dataclass(frozen=True)
class Key:
    """A key of the schema, described.

    Attributes:
        path: dotted; ``NAME`` stands for a name of one's own.
        default: as text.
        meaning: its help.
        takes: its type, in words.
        choices: the values that it may have, or the names of the functions; empty: any of its type.
    """

    path: str
    default: str
    meaning: str
    takes: str
    choices: tuple[str, ...] = ()


def key_help() -> list[tuple[str, str, str]]:
    """Returns every key of the schema as (dotted path, default, meaning); a function's key once for each taking it."""
    return [(key.path, key.default, key.meaning) for key in all_keys()]


def all_keys() -> list[Key]:
    """Returns every key of the schema, described; a function's key once for each taking it."""
    rows: list[Key] = []
    named: dict[str, tuple[str, ...]] = {}
    for slot in registries.SLOTS:
        named[slot.key] = (*named.get(slot.key, ()), *slot.names())

    def visit(kind: Any, prefix: str, defaults: Mapping[str, Any], whose: str = "") -> None:
        hints = hints_of(kind)
        for spec in dataclasses.fields(kind):
            element, default = element_of(hints[spec.name]), defaults[spec.name]
            if choice := spec.metadata.get("choice"):
                if whose:  # any loss may be mixed in: their keys stand there already
                    rows.append(Key(f"{prefix}{spec.name}.KEY", "VALUE", whose + spec.metadata["help"], "any value"))
                    continue
                for entry in choice.entries():
                    below = f"{prefix}{spec.name}.{entry.name}." if choice.several(kind) else f"{prefix}{spec.name}."
                    visit(entry.keys, below, defaults_of(entry.keys), f"{choice.by}={entry.name}: ")
            elif dataclasses.is_dataclass(default):
                # of the group as it is made here, which may have other defaults than elsewhere
                visit(hints[spec.name], f"{prefix}{spec.name}.", vars(default))
            elif dataclasses.is_dataclass(element):
                visit(element, f"{prefix}{spec.name}.NAME.", defaults_of(element))
            else:
                path = prefix + spec.name
                choices = named.get(path) or tuple(map(str, spec.metadata.get("choices", ())))
                rows.append(
                    Key(path, str(default), whose + spec.metadata["help"], type_name(hints[spec.name]), choices)
                )

    visit(Config, "", defaults_of(Config))
    return rows


def choices_of(dotted: str) -> tuple[str, ...]:
    """Returns the values, or the names of the functions, that the key at a path may have; empty: any of its type."""
    return next((key.choices for key in all_keys() if fnmatchcase(dotted, key.path.replace("NAME", "*"))), ())


def types_of(dotted: str) -> Iterator[Any]:
    """Yields the types of the key at a path: of a function's key those of all functions that have it."""
    yield from _types(Config, dotted.split("."))


def _types(kind: Any, names: Sequence[str]) -> Iterator[Any]:
    if not names:
        yield kind
        return
    name, *rest = names
    if typing.get_origin(kind) is Mapping:
        yield from _types(element_of(kind), rest)
    elif dataclasses.is_dataclass(kind):
        metadata = {spec.name: spec.metadata for spec in dataclasses.fields(kind)}
        if name not in metadata:
            return
        if (choice := metadata[name].get("choice")) is None:
            yield from _types(hints_of(kind)[name], rest)
            return
        for entry in choice.entries():
            if not choice.several(kind):
                yield from _types(entry.keys, rest)
            elif rest[:1] == [entry.name]:
                yield from _types(entry.keys, rest[1:])


def defaults_of(kind: Any) -> dict[str, Any]:
    """Returns the default of each field of a dataclass, without an instance, whose defaults alone it might refuse."""
    found = {}
    for spec in dataclasses.fields(kind):
        made = spec.default if spec.default_factory is dataclasses.MISSING else spec.default_factory()
        found[spec.name] = "VALUE" if made is dataclasses.MISSING else made
    return found


_MISTYPED = 0.9
"""Likeness of a name to a key of another group from which on that is meant."""
_ALIKE = 0.85
"""Likeness of each name of a path to that of a key's from which on that key is meant, whatever others are called."""
_SHOWN = 12
"""Keys that a message lists, at most."""
_LEAST = ("algorithm.critic.", "algorithm.loss.", "algorithm.advantage.", "algorithm.filter.")


def unknown_key(dotted: str, name: str, known: Mapping[str, Any], prefix: str, value: Any) -> str:
    """Returns the message for a key that there is not; see `rljax.config.types.Unknown`."""
    everywhere = [path for path, _, _ in key_help()]
    if said := advice(dotted, name, prefix, everywhere, value):
        return f"{dotted}: unknown key; {said}"
    if (alike := _alike(dotted, everywhere)) is not None:
        return f"{dotted}: unknown key; did you mean {alike}?"
    # the critic has an optimizer as the policy has: it is meant where it is named, or where nothing else has the key;
    # and which functions a config names, and so has keys of, is not known here
    least = [path for path in everywhere if path.startswith(_LEAST) and "critic" not in dotted]
    first = [path for path in everywhere if path not in least]
    lasts = {path.rpartition(".")[2] for path in first}
    meant = next(iter(difflib.get_close_matches(name, lasts.union(known), 1, _MISTYPED)), name)
    meant = name if meant in known else meant
    elsewhere, of_few = ([min(found, key=len)] if (found := _ending(group, meant)) else [] for group in (first, least))
    rest = dotted.removeprefix(prefix + name)
    beside = [prefix + n for n in difflib.get_close_matches(name, list(known), 3)]
    beside.sort(key=lambda one: not any(types_of(one + rest)))  # what has the key that stands behind it comes first
    near = elsewhere or (beside if prefix else []) or of_few or beside
    near = near or [path for group in (first, least) for path in difflib.get_close_matches(dotted, group, 1, 0.7)]
    if near and any(types_of(whole := near[0] + rest)):
        near = [whole]  # a group was meant, and the key in it is there
    more = f", and {len(known) - _SHOWN} more; --help lists them" if len(known) > _SHOWN else ""
    there = ", ".join(sorted(known)[:_SHOWN]) + more
    hint = f"did you mean {near[0]}?" if near else f"{prefix[:-1] or 'the config'} has: {there}"
    return f"{dotted}: unknown key; {hint}"


def _alike(dotted: str, paths: Sequence[str]) -> str | None:
    """Returns the key or group each of whose names is nearly that of a path; None where there is none."""
    names = dotted.split(".")

    def likeness(path: str) -> float:
        pairs = zip(names, path.split("."), strict=True)
        return min(difflib.SequenceMatcher(None, name, other).ratio() for name, other in pairs)

    deep = dict.fromkeys(".".join(path.split(".")[: len(names)]) for path in paths if path.count(".") >= len(names) - 1)
    best = max(deep, key=likeness, default=dotted)
    return best if best != dotted and likeness(best) >= _ALIKE else None


def _ending(paths: Sequence[str], name: str) -> list[str]:
    return [path for path in paths if path.rpartition(".")[2] == name]
