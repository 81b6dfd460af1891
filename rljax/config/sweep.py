"""Sweeps: several values of a key that takes one number, or one of several names, are as many runs."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljax.config.fields import ConfigError, shown
from rljax.config.importers.translation import Translation, told
from rljax.config.keys import choices_of, types_of
from rljax.config.load import Source, load
from rljax.config.refusals import REFUSED, Rule, one_table
from rljax.config.schema import Config
from rljax.config.text import from_text
from rljax.config.types import options_of

SUFFIX = "-sweep"
"""Of the directory that holds those of the runs."""


@dataclass(frozen=True)
class Point:
    """One run of a sweep: ``seed=0``, its config, and what a file of ROLL or Trinity-RFT became beside that."""

    name: str
    config: Config
    translation: Translation | None = None


def is_sweep(overrides: Mapping[str, Any]) -> bool:
    """Returns whether a key that takes one number, true or false, or a name has several: ``--config.seed=0,1,2``."""
    return any(_has_several(key, value) for key, value in overrides.items())


def points(
    path: str,
    overrides: Mapping[str, Any],
    refused: Sequence[ConfigError] = (),
    also: Sequence[Rule[Config]] = (),
    seen: Rule[Source] = lambda source: iter(()),
) -> list[Point]:
    """Returns a run for each combination of the values, the last key's changing fastest; each is called by its values
    and has its directory, ``RUN_DIR-sweep/seed=0``, and in PostgreSQL its schema.

    Args:
        path: the ``--config``.
        overrides: texts by dotted key.
        refused, also, seen: see `load`; ``seen`` is shown the file of the first run.

    Raises:
        ConfigError: a value or a config is wrong, a value is there twice, or the mode does not train.
    """
    swept: dict[str, list[Any]] = {}
    wrong: list[ConfigError] = []
    for key, text in overrides.items():
        if _has_several(key, text):
            try:
                swept[key] = _values(key, text)
            except ConfigError as error:
                wrong.append(error)
                swept[key] = [REFUSED]
    if wrong or refused:
        first = {**overrides, **{key: values[0] for key, values in swept.items()}}
        load(path, first, [*refused, *wrong], also, seen)
    found: list[Point] = []
    for index, values in enumerate(itertools.product(*swept.values())):
        chosen = dict(zip(swept, values, strict=True))
        given = {**overrides, **{key: str(value) for key, value in chosen.items()}}
        name, translation = ",".join(f"{key}={value}" for key, value in chosen.items()), None
        try:
            config, translation = load(path, given, (), also, *([] if index else [seen]))
            found.append(Point(name, _apart(config, name, ", ".join(chosen)), translation))
        except ConfigError as error:
            wrong.append(told(error, translation, overrides))
    if wrong:
        raise one_table(f"{path}: keys that are refused", wrong)
    return found


def _apart(config: Config, name: str, keys: str) -> Config:
    """Returns the config of a run of a sweep of these keys, where nothing of it meets the others' runs.

    Raises:
        ConfigError: it does not train, or shares a ledger with them.
    """
    if config.mode != "both":
        raise ConfigError(f"mode={config.mode}: a sweep trains, with mode=both; name one value of {keys}")
    run_dir = Path(config.run_dir or "runs/unnamed")
    changes: dict[str, Any] = {"run_dir": str(run_dir.with_name(run_dir.name + SUFFIX) / name)}
    if config.ledger is not None:
        if config.ledger.startswith("sqlite"):
            raise ConfigError("ledger=sqlite:///…: the runs of a sweep have ledgers of their own; leave ledger out")
        changes["ledger_schema"] = re.sub(r"[^\w.\-]", "-", f"{config.resolved_ledger_schema}-{name}")
    return dataclasses.replace(config, **changes)


def _has_several(key: str, text: Any) -> bool:
    return isinstance(text, str) and "," in text and _one_of(key) is not None


def _values(key: str, text: str) -> list[Any]:
    """Returns the values, as the type of the key has them."""
    hint = _one_of(key)
    found = [from_text(hint, part.strip(), key) for part in text.split(",")]
    if len(set(found)) < len(found):
        raise ConfigError(f"{key}={shown(text)}: a value is there twice; write each once")
    return found


def _one_of(key: str) -> Any:
    """Returns the type of a key that takes one number, true or false, or one of several names; None of any other."""
    hints = list(types_of(key))
    kinds = {option for hint in hints for option in options_of(hint)} - {type(None)}
    single = kinds <= {int, float, bool} or (kinds == {str} and choices_of(key))  # any other text may have commas
    return hints[0] if hints and single else None
