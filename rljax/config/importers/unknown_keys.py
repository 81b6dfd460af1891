"""Keys of a file that no rule is of: which key each may have been meant for."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from rljax.config.importers.rule import Rule


def leaves(
    values: Mapping[str, Any], rules: Sequence[Rule], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any, Rule | None]]:
    """Yields the keys of a document: path, value and rule. A group is one where its rule is of a whole group, or where
    it is empty and has a rule.
    """
    for name, value in values.items():
        path = (*above, name)
        rule = next((rule for rule in rules if rule.matches(path) is not None), None)
        if isinstance(value, Mapping) and not (rule and rule.whole):
            yield from leaves(value, rules, path)
            if not value and rule is not None:
                yield path, value, rule
        else:
            yield path, value, rule


def as_meant(values: Mapping[str, Any], rules: Sequence[Rule], variables: Collection[str]) -> Mapping[str, Any]:
    """Returns a document in which the value of a misspelt key stands at the key that was meant too, where that is left
    out: of its default nothing is to be refused.
    """
    for path, value, rule in list(leaves(values, rules)):
        dotted = ".".join(map(str, path))
        if rule is None and not is_variable(dotted, variables) and (meant := _beside(dotted, rules)):
            values = _completed(values, meant.split("."), value)
    return values


def _completed(values: Mapping[str, Any], path: Sequence[str], value: Any) -> Mapping[str, Any]:
    name, *below = path
    if not below:
        return {name: value, **values}
    under = values.get(name)
    return {**values, name: _completed(under, below, value)} if isinstance(under, Mapping) else values


def is_variable(dotted: str, variables: Collection[str]) -> bool:
    """Returns whether a key is one, or in a group, or a group of some, that ``${…}`` reads."""
    return any(dotted == read or dotted.startswith(f"{read}.") or read.startswith(f"{dotted}.") for read in variables)


def advice(dotted: str, rules: Sequence[Rule]) -> str:
    """Returns what to do about an unknown key."""
    near = _beside(dotted, rules) or _elsewhere(dotted, [rule.path for rule in rules])
    return f"did you mean {near}? Correct it in the file" if near else "leave it out of the file"


def _beside(dotted: str, rules: Sequence[Rule]) -> str:
    """Returns the key of the same group that has such a name, or the only one that begins with it; empty: none."""
    group, dot, name = dotted.rpartition(".")
    groups = ((rule.path.rpartition(".")) for rule in rules)
    names = [last for above, _, last in groups if last != "*" and fnmatchcase(group, above)]
    begun = [last for last in names if len(name) > 2 and last.startswith(name)]
    near = difflib.get_close_matches(name, names, 1, 0.7) or (begun if len(begun) == 1 else [])
    return f"{group}{dot}{near[0]}" if near else ""


def _elsewhere(dotted: str, paths: Sequence[str]) -> str:
    """Returns the nearest path of those whose last name is the same or, where none is, a similar one; empty: none."""
    name = dotted.rpartition(".")[2]
    of_name: dict[str, list[str]] = {}
    for path in paths:
        of_name.setdefault(path.rpartition(".")[2], []).append(path)
    similar = difflib.get_close_matches(name, of_name, 3, 0.7)
    named = of_name.get(name) or [path for last in similar for path in of_name[last]]
    if named and "." not in dotted:  # its group is not known: the first of the table
        return named[0]
    near = difflib.get_close_matches(dotted, named, 1, 0.0) or difflib.get_close_matches(dotted, paths, 1, 0.5)
    return near[0] if near and (named or "." not in dotted) else ""
