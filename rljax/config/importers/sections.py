"""Groups of a file: those that are misspelt or not there at all, and values in the place of one."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rljax.config.importers.rule import Rule
from rljax.config.importers.translation import Row
from rljax.config.importers.unknown_keys import is_variable, leaves

_FEW = 3


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Returns one mapping of two; where both have a group, of both."""
    both = dict(below)
    for name, value in above.items():
        under = both.get(name)
        both[name] = merged(under, value) if isinstance(under, Mapping) and isinstance(value, Mapping) else value
    return both


def filled(values: Mapping[str, Any], published: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a mapping with what is published where it says nothing, or null; where both have a group, of both."""
    both = dict(published)
    for name, value in values.items():
        under = both.get(name)
        if isinstance(under, Mapping) and isinstance(value, Mapping):
            both[name] = filled(value, under)
        else:
            both[name] = under if value is None else value
    return both


class Sections:
    """A document whose groups are those that there are.

    Attributes:
        values: the document. A misspelt group stands under the name that was meant, below what stands there too. A
            group that is like none is left out, and so is a value in the place of a group; null there is an empty one.
        meant: the paths that were meant, by those of misspelt groups.
        refused: a row for each of these groups and values. A group of one key is none: that is told by its own path.
    """

    def __init__(self, values: Mapping[str, Any], rules: Sequence[Rule], told: Collection[str], read: Collection[str]):
        """Reads all groups.

        Args:
            values: the document.
            rules: of its program.
            told: paths of texts that are refused already.
            read: paths of variables.
        """
        self._rules, self._told, self._variables = rules, told, read
        self._parts = [(rule, rule.path.split(".")) for rule in rules]
        self.meant: dict[str, str] = {}
        self.refused: list[Row] = []
        self.values = self._read(values, ())

    def _read(self, values: Mapping[str, Any], above: tuple[str, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in values.items():
            path = (*above, name)
            rules, own = self._at(path), any(rule.matches(path) is not None for rule in self._rules)
            if not isinstance(value, Mapping):
                if not rules or own or self._is_said(path):
                    found[name] = value
                elif value is None:
                    found[name] = {}
                else:
                    self._refuse_value(path, value, rules)
            elif rules or self._is_said(path):
                whole = any(rule.whole and rule.matches(path) is not None for rule in rules)
                found[name] = value if whole else merged(found.get(name, {}), self._read(value, path))
            elif keys := self._unknown(path, value, values):
                found |= merged(keys, found)
        return found

    def _unknown(self, path: tuple[str, ...], group: Mapping[str, Any], beside: Collection[str]) -> dict[str, Any]:
        """Returns what a group that there is not is read as, by its name: nothing, where it is like none."""
        *above, name = path
        below = [".".join(map(str, keys)) for keys, _, _ in leaves(group, ())]
        near = self._near(path)
        if len(below) == 1 and (not near or near in beside):
            return {name: group}
        written, meant = ".".join(path), ".".join((*above, near)) if near else self._having(below)
        also = ", which is there too" if near in beside else ""
        what = f"did you mean {meant}{also}? Correct it in the file" if meant else "leave it out of the file"
        self.refused.append(Row(written, ..., True, {}, f"unknown; {what}: no override settles it", True))
        if not near:
            return {}
        self.meant[written] = meant
        read = self._read(group, (*above, near))
        return {near: self._known(read, (*above, near)) if near in beside else read}

    def _known(self, values: Mapping[str, Any], above: tuple[str, ...]) -> dict[str, Any]:
        """Returns the keys of a group that there are in it."""
        return {
            name: self._known(value, (*above, name)) if isinstance(value, Mapping) else value
            for name, value in values.items()
            if self._at((*above, name))
        }

    def _refuse_value(self, path: tuple[str, ...], value: Any, rules: Sequence[Rule]) -> None:
        names = list(dict.fromkeys(rule.path.split(".")[len(path)] for rule in rules))
        few = ", ".join(name for name in names[:_FEW] if name != "*") + ", …" * (len(names) > _FEW)
        what = f"this is a group of keys; write them{f' ({few})' if few else ''} below it, or leave it out of the file"
        unsaid = tuple(dict.fromkeys(key for rule in rules for key in rule.here))
        row = Row(".".join(path), value, True, {}, f"{what}: no override settles it", True, unsaid=unsaid)
        self.refused.append(row)

    def _at(self, path: tuple[str, ...]) -> list[Rule]:
        """Returns the rules of a path, and of those below it."""
        return [
            rule
            for rule, mine in self._parts
            if len(mine) >= len(path) and all(a in ("*", b) for a, b in zip(mine, path, strict=False))
        ]

    def _is_said(self, path: tuple[str, ...]) -> bool:
        dotted = ".".join(path)
        return dotted in self._told or is_variable(dotted, self._variables)

    def _near(self, path: tuple[str, ...]) -> str:
        """Returns the group in the same one whose name is near; empty: none is."""
        depth = len(path)
        parts = [(rule.path.split("."), rule.whole) for rule in (self._at(path[:-1]) if depth > 1 else self._rules)]
        names = {part[depth - 1] for part, whole in parts if len(part) > depth or (whole and len(part) == depth)}
        return next(iter(difflib.get_close_matches(path[-1], sorted(names), 1, 0.8)), "")

    def _having(self, keys: Sequence[str]) -> str:
        """Returns the group that has all these keys; empty: none does."""
        groups = [
            {rule.path.removesuffix(f".{key}") for rule in self._rules if rule.path.endswith(f".{key}")} for key in keys
        ]
        there = {group for group in set[str].intersection(*groups) if "*" not in group} if groups else set[str]()
        return min(there, default="")
