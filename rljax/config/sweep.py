"""Sweeps: several values of a key that takes one number are as many runs."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljax.config.fields import ConfigError, shown
from rljax.config.keys import types_of
from rljax.config.load import load
from rljax.config.schema import Config
from rljax.config.text import from_text
from rljax.config.types import options_of

SUFFIX = "-sweep"
"""Of the directory that holds those of the runs."""


@dataclass(frozen=True)
class Point:
    """One run of a sweep: ``seed=0``, and its config."""

    name: str
    config: Config


def is_sweep(overrides: Mapping[str, str]) -> bool:
    """Returns whether a key that takes one number, true or false has several values: ``--config.seed=0,1,2``."""
    return any("," in value and _number_of(key) for key, value in overrides.items())


def points(path: str, overrides: Mapping[str, str]) -> list[Point]:
    """Returns a run for each combination of the values, the last key's changing fastest; each is called by its values
    and has its directory, ``RUN_DIR-sweep/seed=0``, and in PostgreSQL its schema.

    Args:
        path: the ``--config``.
        overrides: texts by dotted key.

    Raises:
        ConfigError: a value or a config is wrong, a value is there twice, or the mode does not train.
    """
    swept = {key: _values(key, text) for key, text in overrides.items() if "," in text and _number_of(key)}
    found = []
    for values in itertools.product(*swept.values()):
        chosen = dict(zip(swept, values, strict=True))
        config, _ = load(path, {**overrides, **{key: str(value) for key, value in chosen.items()}})
        if config.mode != "both":
            raise ConfigError(
                f"mode={config.mode}: a sweep trains, with mode=both; name one value of {', '.join(chosen)}"
            )
        name = ",".join(f"{key}={value}" for key, value in chosen.items())
        found.append(Point(name, _apart(config, name)))
    return found


def _apart(config: Config, name: str) -> Config:
    run_dir = Path(config.run_dir or "runs/unnamed")
    changes: dict[str, Any] = {"run_dir": str(run_dir.with_name(run_dir.name + SUFFIX) / name)}
    if config.ledger is not None:
        if config.ledger.startswith("sqlite"):
            raise ConfigError("ledger=sqlite:///…: the runs of a sweep have ledgers of their own; leave ledger out")
        changes["ledger_schema"] = re.sub(r"[^\w.\-]", "-", f"{config.resolved_ledger_schema}-{name}")
    return dataclasses.replace(config, **changes)


def _values(key: str, text: str) -> list[Any]:
    """Returns the values, as the type of the key has them."""
    hint = _number_of(key)
    found = [from_text(hint, part.strip(), key) for part in text.split(",")]
    if len(set(found)) < len(found):
        raise ConfigError(f"{key}={shown(text)}: a value is there twice; write each once")
    return found


def _number_of(key: str) -> Any:
    """Returns the type of a key that takes one number, true or false; None of any other."""
    hints = list(types_of(key))
    numbers = {int, float, bool, type(None)}
    return hints[0] if hints and all(set(options_of(hint)) <= numbers for hint in hints) else None
