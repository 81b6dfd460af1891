"""Holds a translated file of ROLL's or Trinity-RFT's: a row for each key, and one table of all that is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any

from rljax.config.fields import ConfigError, shown
from rljax.config.learner import MeshConfig
from rljax.config.refusals import RefusedConfig, cause_of, lines_of, one_of
from rljax.config.secrets import blanked
from rljax.config.text import from_text

_KEY = re.compile(r"[\w.]+")
"""Word of a message that may be a key; the first is the one that it is about."""
_ROWS = re.compile(r"tasks\.(train|validation)\.(?P<name>\w+)(?=\.)")
"""Beginning of a message that is about a taskset."""
_SEVERAL = "(several keys)"
"""Stands beside a message that names no key of the file."""
_NO_KEY = re.compile(r"-|[A-Z_]+=")
"""Beginning of a message that is about no key."""
_IMPLIES = "--config.learner.devices=cpu"
"""Override that says other keys with itself."""
_MESH = "learner.mesh.fsdp"
"""Key that counts the devices of a learner where an override names them."""


@dataclass(frozen=True, slots=True)
class Row:
    """Says what became of a key.

    Attributes:
        path: of the key, in the file.
        value: what stands there; ``...`` of a group that is told as one.
        given: whether the file says it; else it is the published default.
        here: our keys and their values; of a refused key those that hold where an override settles it.
        remark: what differs, why it is not needed, or what to write.
        refused: whether it cannot be had.
        keys: of a refused key ours that settle it.
        unsaid: of a refused key ours that have no value as long as nothing settles it.
        meant: of a refused key ours with what is near, for which the rest is judged so long.
        near: of a refused key the value that is near, where that says what is ``meant``; else empty.
        file: name of its file, where there are two; else empty.
        of: path of the key that is refused in its place, with its file where that is another, or an override, with
            ``--config.`` before it; empty for itself.
        read: paths of keys that it depends on.
    """

    path: str
    value: Any
    given: bool
    here: Mapping[str, Any]
    remark: str
    refused: bool = False
    keys: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()
    meant: Mapping[str, Any] = field(default_factory=dict)
    near: str = ""
    file: str = ""
    of: str = ""
    read: frozenset[str] = frozenset()

    @property
    def where(self) -> str:
        """The path, behind its file where there are two."""
        return f"{self.file}: {self.path}" if self.file else self.path


@dataclass(frozen=True)
class Translation:
    """A file of ROLL's or Trinity-RFT's, or several, in our keys.

    Attributes:
        whose: ROLL or Trinity-RFT.
        files: their names.
        rows: a row for each key of each file, and for each default that says something.
        again: translates the same files once more, where overrides are read in the place of their keys.
    """

    whose: str
    files: tuple[str, ...]
    rows: tuple[Row, ...]
    again: Callable[[Mapping[str, Any]], Translation] | None = field(default=None, compare=False, repr=False)

    def beside(self, overrides: Mapping[str, Any]) -> Translation:
        """Returns what the files become where overrides are read in the place of some of their keys: the keys that
        depend on these, such as devices on the number of engines, have what the overrides ask for.
        """
        return self.again(overrides) if self.again and overrides else self

    @property
    def values(self) -> dict[str, Any]:
        """Our keys and their values; what a file says stands before what is published."""
        return values_of(self.rows)

    def values_beside(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Returns `values`, with what is `Row.meant`, but for the arguments of rewards that an override of a taskset's
        ``rewards`` takes away.
        """
        values = {**self.values, **{key: one for row in self.unsettled(overrides) for key, one in row.meant.items()}}
        for key, given in overrides.items():
            if key.endswith(".rewards") and key in values:
                try:
                    named = from_text(tuple[str, ...], given, key) if isinstance(given, str) else given
                except ConfigError:  # told of the override itself
                    continue
                kept = {"format" if name.startswith("format:") else name.rpartition(":")[2] for name in named}
                args = f"{key.removesuffix('rewards')}reward_args."
                gone = [one for one in values if one.startswith(args) and one.split(".")[args.count(".")] not in kept]
                values = {one: value for one, value in values.items() if one not in gone}
        return values

    def refusals(self, overridden: Collection[str] = ()) -> list[Row]:
        """Returns the rows that are refused and that no override of our keys settles, one for each cause: without
        published defaults that are refused as what the file says is. Of several that have one cause its remark names
        the overrides that settle all.
        """
        by_cause: dict[str, list[Row]] = {}
        unsettled = self.unsettled(overridden)
        for row in unsettled:
            by_cause.setdefault(self._cause(row).where, []).append(row)
        shown: dict[tuple[str, str], Row] = {}
        behind: dict[tuple[str, str], list[Row]] = {}
        for rows in by_cause.values():
            cause = self._cause(rows[0]).path
            row = self._one_of(rows)
            first = shown.setdefault(said := (row.path, row.remark), row)
            if row.file not in first.file.split(", "):
                shown[said] = replace(first, file=f"{first.file}, {row.file}")
            beside = [other for other in unsettled if cause in other.read and other not in rows]
            behind.setdefault(said, []).extend([*rows, *beside])
        given = {words for row in shown.values() if row.given for words in (*row.keys, row.remark)}
        return [
            replace(row, remark=_with_overrides(row.remark, behind[said]))
            for said, row in shown.items()
            if row.given or given.isdisjoint((*row.keys, row.remark))
        ]

    def _cause(self, row: Row) -> Row:
        """Returns the row of the key that is the reason why one is refused: itself, or the last of those that each is
        the reason of the one before.
        """
        seen = [row.where]
        while row.of not in ("", row.path) and (row := self._reason(row)).where not in seen:
            seen.append(row.where)
        return row

    def _reason(self, row: Row) -> Row:
        """Returns the row that a refused one is `Row.of`: of the key as a file says it; without a value where nobody
        says anything of that, and of a key in a group that is told as one with its value there. A published default
        stands in no file: the row itself.
        """
        if row.of.startswith("--config."):
            return replace(row, path=row.of, value=..., file="", refused=False, of="")
        if all(other.path != row.of and other.where != row.of for other in self.rows):
            beside = row.value.get(row.of.removeprefix(f"{row.path}.")) if isinstance(row.value, Mapping) else None
            return replace(row, path=row.of, value=beside, refused=False, of="")
        said = [other for other in self.rows if other.given and row.of in (other.path, other.where)]
        return next((other for other in said if other.file == row.file), said[0] if said else row)

    def _one_of(self, rows: list[Row]) -> Row:
        """Returns the row that is shown of those with one cause: in its place, unless an override settles that, and
        what is left has a reason of its own.
        """
        cause = self._cause(rows[0])
        rows.sort(key=lambda row: row.where != cause.where)
        first = rows[0]
        own = cause.refused and first.where != cause.where and first.remark != cause.remark
        return first if own else replace(first, path=cause.path, value=cause.value, file=cause.file)

    def unsettled(self, overridden: Collection[str] = ()) -> list[Row]:
        """Returns all rows that are refused and that no override of our keys settles."""
        return [row for row in self.rows if row.refused and not _settled(row.keys, overridden)]

    def unsaid(self, overridden: Collection[str] = ()) -> set[str]:
        """Returns our keys that have no value while rows are refused."""
        return {key.replace("NAME", "*") for row in self.unsettled(overridden) for key in row.unsaid}

    def refused(self, errors: Sequence[ConfigError], overrides: Mapping[str, Any]) -> ConfigError:
        """Returns one error for the rows that are refused and for what is refused of the config, which is said with the
        keys of the file, or the override, that it is about.
        """
        rows = self.refusals(implied(overrides))
        about, errors = _by_cause([(self._about(str(error), overrides), error) for error in errors])
        if not rows and len(errors) == 1:
            plain = not about[0] or str(errors[0]).startswith(about[0].removeprefix("--config."))
            return errors[0] if plain else ConfigError(f"{errors[0]} ({self.whose}: {about[0]})")
        said = [(_with_value(row), row.remark) for row in rows]
        said += [(theirs or _unnamed(error), str(error)) for theirs, error in zip(about, errors, strict=True)]
        return RefusedConfig(f"{', '.join(self.files)}: {self.whose}'s keys that are refused", _one_of_each(said))

    def told(self, error: ConfigError, overrides: Mapping[str, Any]) -> ConfigError:
        """Returns what is refused of the config once it has loaded, said as `refused` says it."""
        errors = [line for one in (error, *error.others) for line in lines_of(one)]
        found = self.refused(errors, overrides)
        if found is not error:
            found.__cause__ = error
        return found

    def _about(self, message: str, overrides: Mapping[str, Any]) -> str:
        """Returns the overrides and the keys of the file that a message is about, the user's own words first: of keys
        those that the file leaves out where it says none of them.
        """
        about = message.partition("; ")[0]
        words = _KEY.findall(about)
        mine = [f"--config.{given}" for given in overrides if any(_names(word, given) for word in words)]
        ours = implied(overrides)
        if "learner.devices" not in words and not (ours.keys() - overrides.keys()).isdisjoint(words):
            mine.append(_IMPLIES)
        keys = words[:1] + [word for word in words[1:] if "." in word or f"{word}=" in about]
        rows = [row for key in keys for row in self._theirs(key, ours)]
        if not (mine or rows) and (
            of := _ROWS.match(message)
        ):  # a key that no key of the file says: what says the rows
            rows = self._theirs(f"{of[0]}.source", ours)
        theirs = [row.where for row in rows if row.given] or [f"{row.where}, left out" for row in rows]
        return ", ".join(dict.fromkeys([*mine, *theirs]))

    def _theirs(self, key: str, overridden: Mapping[str, Any]) -> list[Row]:
        """Returns the rows that one of our keys, or one of a group, is of, but for those overridden."""
        return [
            row
            for row in self.rows
            if any(_names(key, one) or one.startswith(f"{key}.") for one in row.here.keys() - overridden.keys())
        ]


def _with_value(row: Row) -> str:
    return row.where if row.value is ... else f"{row.where} = {shown(blanked(row.value, row.path))}"


def _by_cause(told: Sequence[tuple[str, ConfigError]]) -> tuple[list[str], list[ConfigError]]:
    """Returns what errors are about, and one error for each cause: of tasksets of which the file says a key at once,
    as it does of domains, they differ by their names alone.
    """
    by_cause: dict[tuple[str, str], list[ConfigError]] = {}
    for theirs, error in told:
        cause, rows = cause_of(error), _ROWS.match(str(error))
        if rows:
            cause = f"tasks.{rows[1]}.NAME{cause[rows.end() :]}"
        by_cause.setdefault((theirs, cause), []).append(error)
    errors = []
    for (_, cause), same in by_cause.items():
        names = ", ".join(rows["name"] for error in same if (rows := _ROWS.match(str(error))))
        errors.append(same[0] if len(same) == 1 else ConfigError(f"{one_of(same, cause)} (NAME: {names})"))
    return [theirs for theirs, _ in by_cause], errors


def _unnamed(error: ConfigError) -> str:
    """Returns what stands beside a message that names no key of the file: nothing where it is about an argument, or a
    variable of the environment.
    """
    return "" if _NO_KEY.match(str(error)) else _SEVERAL


def _one_of_each(said: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns lines of which those that refuse one value of several of our keys, which the same keys of a file say, are
    one.
    """
    keys: dict[tuple[str, str], list[str]] = {}
    for theirs, message in said:
        ours, is_value, rest = message.partition("=")
        alone = theirs in ("", _SEVERAL) or not (is_value and _KEY.fullmatch(ours))
        keys.setdefault((theirs, message if alone else f"={rest}"), []).append("" if alone else ours)
    return [(theirs, f"{' and '.join(dict.fromkeys(ours))}{rest}") for (theirs, rest), ours in keys.items()]


def _names(word: str, key: str) -> bool:
    """Returns whether a word of a message is a key, the end of its path, or a group that it is in."""
    return word == key or ("." in word and (key.endswith(f".{word}") or key.startswith(f"{word}.")))


ON_CPU: Mapping[str, Any] = {
    **{f"learner.mesh.{axis.name}": 1 for axis in fields(MeshConfig)},
    "learner.rows_per_microbatch": 1,
    "learner.sequence_parallel": False,
    "sidecar.devices": "cpu",
    "sidecar.engine": "embedded",
    "sidecar.dtype": "auto",
    "sidecar.num_engines": 1,
    "sidecar.tensor_parallel_size": 1,
    "sidecar.colocate": False,
    "learner.hosts.number": 1,
    "launcher": "local",
}
"""Keys that ``learner.devices=cpu`` says with itself: a file's devices, sizes and engines are those of accelerators.
There is a row for each device that a mesh beside it cuts them over.
"""


def implied(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the overrides of a file with those that one of them says with itself."""
    if overrides.get("learner.devices") != "cpu":
        return dict(overrides)
    return {**ON_CPU, "learner.rows_per_microbatch": _replicas(overrides), **overrides}


def _replicas(overrides: Mapping[str, Any]) -> int:
    """Returns over how many devices the mesh of overrides cuts rows; a size that is none is told of itself."""
    sizes = [str(overrides.get(f"learner.mesh.{axis}", 1)) for axis in ("data", "fsdp", "expert")]
    return math.prod(max(int(size), 1) for size in sizes if size.isdecimal())


def told(error: ConfigError, translation: Translation | None, overrides: Mapping[str, Any]) -> ConfigError:
    """Returns what is refused of a config that has loaded in the words of its file, where that is of others."""
    return error if translation is None else translation.told(error, overrides)


def values_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Returns our keys and their values of rows; what a file says stands before what is published."""
    return {
        key: value for given in (False, True) for row in rows if row.given == given for key, value in row.here.items()
    }


def _with_overrides(remark: str, rows: Sequence[Row]) -> str:
    """Returns the remark of a refused key; where others depend on it, with the overrides that settle it and them."""
    causes = [row for row in rows if row.of in ("", row.path)]
    if len(causes) == len(rows) or any(row.unsaid and not row.keys for row in causes):
        return remark  # nothing depends on it, or no override settles it
    chosen = [key for row in rows for key in row.keys if f"--config.{key}" in remark]
    named = len(chosen)
    for row in rows:
        if not _settled(row.keys, chosen):
            keys = [key for key in row.keys if key in row.unsaid] or row.keys
            chosen += [key for key in keys[:1] if "NAME" not in key]
    if "learner.devices" in chosen and "learner.mesh" not in remark and any(_MESH in row.unsaid for row in rows):
        chosen.append(_MESH)
    *most, last = [f"--config.{key}" for key in chosen[named:]] or [""]
    if not last:
        return remark
    return f"{remark}{', with' if named else '; or'} {' and '.join(filter(None, (', '.join(most), last)))}"


def _settled(keys: Collection[str], overridden: Collection[str]) -> bool:
    return any(fnmatchcase(given, key.replace("NAME", "*")) for key in keys for given in overridden)
