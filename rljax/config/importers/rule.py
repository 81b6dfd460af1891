"""The parts of a table of ROLL's or Trinity-RFT's keys: what each becomes, why it is not needed, or what to write.

A rule's function is given the key as it stands (`Found`) and returns our keys with their values, or a sentence that
says why nothing has to be said, or raises `Refusal`. Importer, hints (`rljax.config.foreign_keys`) and pages read it.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljax.config.registries import Registry

LEFT_OUT: Any = object()
"""Default of a key that has none, or none that matters."""
OFF: tuple[Any, ...] = (None, False, 0, "", [], {}, "disabled", "none")

_QUOTED = "text; write the number without quotes"
Values = Mapping[str, Any]


class Refusal(Exception):
    """A key that cannot be had: what to write. An override of one of ``keys``, ours, settles it, and ``here`` holds.

    Attributes:
        of: path of the key that is wrong, where another than the one that is read; empty for that one.
        meant: our keys with what is near, for which the rest is judged as long as nothing settles it.
        near: the value that is near, where that says what is ``meant``; empty: none is.
    """

    def __init__(
        self,
        write: str,
        *keys: str,
        here: Values | None = None,
        of: str = "",
        meant: Values | None = None,
        near: str = "",
    ) -> None:
        super().__init__(write)
        self.keys, self.here, self.of, self.meant, self.near = keys, here or {}, of, meant or {}, near


class Document:
    """A file of ROLL's or Trinity-RFT's: what it says, and the published default of what it leaves out.

    Attributes:
        values: nested mappings without references.
        name: of the file, without its ending.
        defaults: by path; paths with a ``*`` hold for each name there.
        other: that of the other file of a pair; None where there is one file.
        of_each: paths that each file of a pair says for itself.
        alike: whether both files of a pair say one mode: whose the GPUs of which are is not known.
        overridden: our key and its value by the path that an override of it is read in the place of.
        read: paths that were asked for.
    """

    overridden: Mapping[str, tuple[str, int]] = {}
    other: Document | None = None
    of_each: Collection[str] = ()
    alike: bool = False

    def __init__(self, values: Mapping[str, Any], name: str, defaults: Mapping[str, Any]) -> None:
        self.values, self.name, self.defaults = values, name, defaults
        self.read: set[str] = set()

    def given(self, path: str) -> Any:
        """Returns what stands at a dotted path; `LEFT_OUT` where nothing or null does."""
        self.read.add(path)
        found: Any = self.values
        for name in path.split("."):
            if not isinstance(found, Mapping) or name not in found:
                return LEFT_OUT
            found = found[name]
        return LEFT_OUT if found is None else found

    def has(self, path: str) -> bool:
        """Returns whether there is such a key, whatever its value."""
        found: Any = self.values
        for name in path.split("."):
            if not isinstance(found, Mapping) or name not in found:
                return False
            found = found[name]
        return True

    def said(self, path: str) -> Any:
        """Returns what is `given`, here or, where nothing is, in the other file of a pair."""
        found = self.given(path)
        if found is LEFT_OUT and self.other is not None and path not in self.of_each:
            return self.other.given(path)
        return found

    def get(self, path: str, otherwise: Any = None) -> Any:
        """Returns what an override says in the place of a dotted path, else what is `said` there, else its published
        default, else ``otherwise``.
        """
        if path in self.overridden:
            return self.overridden[path][1]
        found = self.said(path)
        if found is LEFT_OUT:
            found = self.defaults.get(path, LEFT_OUT)
        return otherwise if found is LEFT_OUT else found

    def number(self, path: str, otherwise: Any = None) -> Any:
        """Returns `get` where that is a whole number above 0 or nothing at all.

        Raises:
            Refusal: it is something else.
        """
        found = self.get(path, otherwise)
        if found is None or (isinstance(found, int) and not isinstance(found, bool) and found > 0):
            return found
        quoted = isinstance(found, str) and found.isdecimal() and int(found) > 0
        raise Refusal(f"{path}={found!r} is {_QUOTED if quoted else 'no whole number above 0; write one'}", of=path)


@dataclass(frozen=True, slots=True)
class Found:
    """A key of a document.

    Attributes:
        path: where it stands.
        value: what stands there.
        name: what its ``*`` stands for; empty where its rule has none.
        document: all of it.
    """

    path: str
    value: Any
    name: str
    document: Document

    def beside(self, key: str, otherwise: Any = None) -> Any:
        """Returns the value of the key in the same group."""
        return self.document.get(f"{self.path.rpartition('.')[0]}.{key}".lstrip("."), otherwise)


Make = Callable[[Found], Values | str]


@dataclass(frozen=True, slots=True)
class Answer:
    """Says what to write in the place of a key.

    Attributes:
        path: of the key; ``*`` stands for any one name.
        here: our keys that it becomes; none where it is refused or not needed.
        remark: what differs, why it is not needed, or what to write.
        whole: it speaks of a group, with all that is below.
        refused: nothing but what turns it off is taken.
        value: of the key, which it speaks of; empty: of any.
    """

    path: str
    here: tuple[str, ...]
    remark: str = ""
    whole: bool = False
    refused: bool = False
    value: str = ""

    def matches(self, path: Sequence[str]) -> str | None:
        """Returns what the ``*`` stands for if this is the rule of a path; else None."""
        if self.path.count(".") != len(path) - 1:  # asked of each key for each rule
            return None
        mine = self.path.split(".")
        if any(a not in ("*", b) for a, b in zip(mine, path, strict=True)):
            return None
        return next((b for a, b in zip(mine, path, strict=True) if a == "*"), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Answer):
    """Says what becomes of a key of a file.

    Attributes:
        make: see the module; a ``whole`` group is given to it as it is.
        default: published default, which holds where a file leaves the key out.
    """

    make: Make
    default: Any = LEFT_OUT


def counted(make: Make, *beside: str) -> Make:
    """Makes the function of a key that is a whole number above 0: of several mistakes its own is the first. It depends
    on the keys ``beside`` it where it is wrong too.
    """

    def checked(found: Found) -> Values | str:
        for path in beside:
            found.document.get(path)
        found.document.number(found.path)
        return make(found)

    return checked


def same(path: str, key: str, remark: str = "", default: Any = LEFT_OUT) -> Rule:
    """Makes the rule of a key that is ours by another name."""
    return Rule(path, (key,), remark, make=lambda found: {key: found.value}, default=default)


def to(path: str, keys: str, make: Make, remark: str = "", default: Any = LEFT_OUT, whole: bool = False) -> Rule:
    """Makes the rule of a key that becomes ours, separated by spaces, by a function."""
    return Rule(path, tuple(keys.split()), remark, whole, make=make, default=default)


def read_by(rule: Rule, slots: Sequence[Registry[Any]], named: Callable[[Document], str]) -> Rule:
    """A key of a function, such as a loss, that nothing reads where the document names one that has no such key.

    Args:
        rule: its rule where it is read.
        slots: where the function is looked up.
        named: returns its name, as ours, in a document.
    """
    key = rule.here[0].rpartition(".")[2]

    def make(found: Found) -> Values | str:
        name = named(found.document)
        entry = next((entry for slot in slots if (entry := slot.find(name))), None)
        if entry and key not in [spec.name for spec in dataclasses.fields(entry.keys)]:
            return f"{name} has none"
        return rule.make(found)

    return dataclasses.replace(rule, make=make)


def did_you_mean(value: Any, there: Iterable[Any]) -> str:
    """Returns the question whether the nearest of the names that there are was meant; empty where none is near."""
    near = nearest(value, there)
    return f"did you mean {near}? Else " if near else ""


def nearest(value: Any, there: Iterable[Any]) -> str:
    """Returns the nearest of the names that there are; empty where none is near."""
    return next(iter(difflib.get_close_matches(str(value), map(str, there), 1)), "")


def no_choice(value: Any, there: Iterable[Any], *keys: str) -> Refusal:
    """Returns the refusal of a value that is none of those that there are, which overrides of these keys settle."""
    written = " and ".join(f"--config.{key}" for key in keys)
    why = f"not one of {', '.join(map(str, there))}; {did_you_mean(value, there)}write {written}"
    return Refusal(why, *keys, near=nearest(value, there))


def choice(path: str, key: str, values: Mapping[Any, Any], remark: str = "", default: Any = LEFT_OUT) -> Rule:
    """Makes the rule of a key whose values have other names here."""

    def make(found: Found) -> Values | str:
        if isinstance(found.value, list | dict) or found.value not in values:
            raise no_choice(found.value, values, key)
        return {key: values[found.value]}

    renamed = ", ".join(f"{theirs} is {ours}" for theirs, ours in values.items() if theirs != ours)
    return Rule(path, (key,), "; ".join(filter(None, (renamed, remark))), make=make, default=default)


def needless(path: str, why: str, *, whole: bool = False, default: Any = LEFT_OUT) -> Rule:
    """Makes the rule of a key that nothing has to be said for, whatever its value."""
    return Rule(path, (), why, whole, make=lambda _: why, default=default)


def only(path: str, allowed: Sequence[Any], why: str, write: str, *keys: str, default: Any = LEFT_OUT) -> Rule:
    """Makes the rule of a key that is not needed as long as it has one of some values, and refused else."""

    def make(found: Found) -> str:
        if found.value is None or found.value in allowed:
            return why
        raise Refusal(write, *keys)

    taken = " or ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in allowed)
    return Rule(path, (), f"{taken}: {why}; else: {write}", make=make, default=default)


def refused(path: str, write: str, *keys: str, whole: bool = False) -> Rule:
    """Makes the rule of a key that is refused unless it is turned off."""

    def make(found: Found) -> str:
        if found.value in OFF or (isinstance(found.value, Mapping) and found.value.get("enable") is False):
            return "it is off, and always is here"
        raise Refusal(write, *keys)

    return Rule(path, (), write, whole, True, make=make)
