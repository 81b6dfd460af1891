"""``mode=report``: the report of run directories, whether their runs have ended, were killed or go on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rljax.config.schema import Config
from rljax.config.validate import ConfigError
from rljax.ledger.audit import audit
from rljax.ledger.database import Database, LedgerError, ledger_exists
from rljax.observe.atomic_write import write_atomic
from rljax.observe.report import COMPARISON, FILE, NoRun, check_run, comparison, find_runs, page, read_run
from rljax.observe.report.data import RunData
from rljax.pipeline.watch import backend_in


def report(config: Config) -> tuple[Path | None, list[str]]:
    """Writes one page of the run directories that a config names, and returns its path, None where there is nothing to
    write, and a line for each that is damaged or no run.

    Raises:
        ConfigError: the page cannot be written.
    """
    asked = config.report.runs or (config.run_dir or "runs/unnamed",)
    runs: list[RunData] = []
    places: list[Path] = []
    problems: list[str] = []
    for entry in asked:
        try:
            for name, place in _named(entry):
                problems += check_run(place)
                runs.append(_read(place, name, problems))
                places.append(place)
        except NoRun as missing:
            problems.append(str(missing))
    if not runs:
        return None, problems
    several = len(runs) > 1
    folder = Path(os.path.commonpath([place.absolute() for place in places])) if several else places[0]
    path = Path(config.report.path or folder / (COMPARISON if several else FILE))
    try:
        write_atomic(path, comparison(_apart(runs), problems) if several else page(runs[0]))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); write another file in report.path") from error
    return path, problems


def _named(entry: str) -> Iterator[tuple[str, Path]]:
    """Yields name and directory of each run that an entry of ``report.runs`` means."""
    name, given, directory = entry.partition("=")
    if not given or Path(entry).is_dir():
        name, directory = "", entry
    found = find_runs(Path(directory))
    for place in found:
        own = place.resolve().name
        yield (name or own) if len(found) == 1 else (f"{name}/{own}" if name else own), place


def _read(place: Path, name: str, problems: list[str]) -> RunData:
    found: dict[str, Any] | None = None
    try:
        if ledger_exists(backend := backend_in(place)):  # audit.json is older where the run was killed or goes on
            with contextlib.closing(Database(backend, None)) as database:
                found = audit(database)
    except LedgerError as error:
        problems.append(f"{place}: no audit of now: {error}")
    return read_run(place, audit=found, name=name)


def _apart(runs: list[RunData]) -> list[RunData]:
    """Returns the runs with those of one name told apart by their directories."""
    names = [run.name for run in runs]
    return [run if names.count(run.name) == 1 else replace(run, name=run.facts["directory"]) for run in runs]
