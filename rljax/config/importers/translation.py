"""Holds a translated file of ROLL's or Trinity-RFT's: a row for each key, and one table of all that is refused."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

from rljax.config.fields import ConfigError, shown
from rljax.config.learner import MeshConfig
from rljax.config.refusals import RefusedConfig
from rljax.config.secrets import blanked

_KEY = re.compile(r"[\w.]+")
"""Beginning of a message: the key that it is about."""
_IMPLIES = "--config.learner.devices=cpu"
"""Override that says other keys with itself."""


@dataclass(frozen=True, slots=True)
class Row:
    """Says what became of a key.

    Attributes:
        path: of the key, in the file.
        value: what stands there.
        given: whether the file says it; else it is the published default.
        here: our keys and their values; of a refused key those that hold where an override settles it.
        remark: what differs, why it is not needed, or what to write.
        refused: whether it cannot be had.
        keys: of a refused key ours that settle it.
        unsaid: of a refused key ours that have no value as long as nothing settles it.
    """

    path: str
    value: Any
    given: bool
    here: Mapping[str, Any]
    remark: str
    refused: bool = False
    keys: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()


@dataclass(frozen=True)
class Translation:
    """A file of ROLL's or Trinity-RFT's, or several, in our keys.

    Attributes:
        whose: ROLL or Trinity-RFT.
        files: their names.
        rows: a row for each key of each file, and for each default that says something.
    """

    whose: str
    files: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def values(self) -> dict[str, Any]:
        """Our keys and their values; what a file says stands before what is published."""
        return values_of(self.rows)

    def refusals(self, overridden: Collection[str] = ()) -> list[Row]:
        """Returns the rows that are refused and that no override of our keys settles, but for those that another is
        the reason of: published defaults that are refused as what the file says is, and keys that need the other's.
        """
        rows = self.unsettled(overridden)
        given = {said for row in self.rows if row.given and row.refused for said in (*row.keys, row.remark)}
        paths = {row.path for row in rows}
        own = [row for row in rows if row.given or given.isdisjoint((*row.keys, row.remark))]
        return [row for row in own if row.remark.partition("=")[0] not in paths - {row.path}]

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
        overridden = implied(overrides)
        rows, keys = self.refusals(overridden), [_KEY.match(str(error)) for error in errors]
        about = [key[0] if key else "" for key in keys]
        if not rows and len(errors) == 1:
            theirs = "" if about[0] in overrides else _IMPLIES if about[0] in overridden else self._theirs(about[0])
            return ConfigError(f"{errors[0]} ({self.whose}: {theirs})") if theirs else errors[0]
        said = [(f"{row.path} = {shown(blanked(row.value, row.path))}", row.remark) for row in rows]
        for key, error in zip(about, errors, strict=True):
            theirs = f"--config.{key}" if key in overrides else _IMPLIES if key in overridden else self._theirs(key)
            said.append((theirs or "(several keys)", str(error)))
        return RefusedConfig(f"{', '.join(self.files)}: {self.whose}'s keys that are refused", said)

    def _theirs(self, key: str) -> str:
        """Returns the keys of the file that one of ours is of, those that it says before those that it leaves out."""
        rows = [row for row in self.rows if key in row.here]
        said = [row.path for row in rows if row.given] or [f"{row.path}, left out" for row in rows]
        return ", ".join(dict.fromkeys(said))


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
    "launcher": "local",
}
"""Keys that ``learner.devices=cpu`` says with itself: a file's devices, sizes and engines are those of accelerators."""


def implied(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the overrides of a file with those that one of them says with itself."""
    return (dict(ON_CPU) if overrides.get("learner.devices") == "cpu" else {}) | dict(overrides)


def values_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Returns our keys and their values of rows; what a file says stands before what is published."""
    return {
        key: value for given in (False, True) for row in rows if row.given == given for key, value in row.here.items()
    }


def _settled(keys: Collection[str], overridden: Collection[str]) -> bool:
    return any(fnmatchcase(given, key.replace("NAME", "*")) for key in keys for given in overridden)
