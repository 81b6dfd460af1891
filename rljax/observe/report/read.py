"""Reading of run directories for the report: of runs that have ended, were killed or go on, and those that the bench
keeps.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljax.config.fields import user_path
from rljax.observe.metrics import FILE as METRICS
from rljax.observe.metrics import Row, read_json_lines, read_metrics
from rljax.observe.report.data import RunData
from rljax.observe.samples import read_samples

TABLE = "metrics.csv"
"""File of those metrics that `bench/runs` keeps."""


class NoRun(ValueError):
    """There is nothing to report: one line with the directory, the reason and what to do."""


def read_run(
    run_dir: Path,
    config: Mapping[str, Any] | None = None,
    audit: Mapping[str, Any] | None = None,
    facts: Mapping[str, str] | None = None,
    *,
    name: str = "",
    running: bool = False,
    failure: str | None = None,
) -> RunData:
    """Returns what a run directory holds of a run; what is missing or cannot be read is empty.

    Args:
        run_dir: where ``metrics.jsonl`` and ``samples/`` are.
        config: the resolved config, nested; None: ``config.json`` of the run.
        audit: the ledger's audit; None: ``audit.json`` of the run, if there is one.
        facts: lines of the header by name, such as ``{"commit": ..., "device": ...}``.
        name: of the run; empty: that of the directory.
        running: whether it goes on.
        failure: what ended the run, where the audit does not say so.
    """
    return RunData(
        name or run_dir.resolve().name,
        read_metrics(run_dir) or _read_table(run_dir / TABLE),
        config if config is not None else _read_json(run_dir / "config.json") or {},
        audit if audit is not None else _read_json(run_dir / "audit.json"),
        read_samples(run_dir),
        {**(facts or {}), "directory": str(run_dir), "written": time.strftime("%Y-%m-%d %H:%M:%S")},
        running,
        failure,
        None if running else run_dir,  # to read it takes as long as all else, and a run that goes on has no time for it
    )


def run_directory(named: str) -> Path | None:
    """Returns the directory of a run: the one that is named, or else the one of this name in ``runs``; None if neither
    is there.
    """
    return next((path for path in (user_path(named), Path("runs") / named) if path.is_dir()), None)


def find_runs(path: Path) -> list[Path]:
    """Returns the run directory itself, or the run directories that it holds, by name.

    Raises:
        NoRun: it is not there, or neither is nor holds one that has metrics.
    """
    if not path.is_dir():
        raise NoRun(f"{path}: no such directory; correct it")
    if _is_run(path):
        return [path]
    found = sorted(filter(_is_run, path.iterdir()))
    if not found:
        raise NoRun(f"{path}: no {METRICS} here, nor in a directory below: no step has ended, or this is no run")
    return found


def _is_run(path: Path) -> bool:
    return any((path / file).exists() for file in (METRICS, TABLE))


def check_run(run_dir: Path) -> list[str]:
    """Returns what cannot be read of a run directory, a line a file.

    Raises:
        NoRun: no row of its metrics can be read.
    """
    damaged = []
    for file in ("config.json", "audit.json"):
        if (run_dir / file).exists() and _read_json(run_dir / file) is None:
            damaged.append(f"{run_dir / file}: not JSON, and left out of the report")
    try:
        rows = read_metrics(run_dir) or _read_table(run_dir / TABLE)
    except OSError as error:
        raise NoRun(f"{run_dir}: its metrics cannot be read ({error.strerror})") from error
    if not rows:
        raise NoRun(f"{run_dir / METRICS}: no row of it can be read: no step has ended, or the file is damaged")
    metrics = run_dir / METRICS
    if metrics.exists():
        readable = sum(1 for row in read_json_lines(metrics) if isinstance(row, dict))
        torn = len(metrics.read_bytes().splitlines()) - readable
        if torn > 1:  # a kill may tear the last one
            damaged.append(f"{metrics}: {torn} lines cannot be read, and are left out of the report")
    return damaged


def _read_table(path: Path) -> list[Row]:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return [_row(columns) for columns in csv.DictReader(file)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _row(columns: Mapping[str, str]) -> Row:
    numbers = {name: float(value) for name, value in columns.items() if value}
    return numbers | {"step": int(columns["step"])}


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
