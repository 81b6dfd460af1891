"""``report.html``: one page that shows a run, self-contained and offline."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljax.observe.atomic_write import write_atomic
from rljax.observe.metrics import read_metrics
from rljax.observe.report_assets import CSS, JS
from rljax.observe.report_data import RunData
from rljax.observe.samples import read_samples
from rljax.observe.warn_once import WarnOnce

if TYPE_CHECKING:
    from rljax.observe.report_plots import PlotSpec

log = logging.getLogger(__name__)

FILE = "report.html"


def write_report(
    run_dir: Path,
    config: Mapping[str, Any] | None = None,
    audit: Mapping[str, Any] | None = None,
    facts: Mapping[str, str] | None = None,
) -> Path | None:
    """Writes the report of a run, whatever of it there is, and returns its path.

    Data that is missing or spoilt gives a sentence in the page. A page that cannot be written gives a warning and None.

    Args:
        run_dir: where ``metrics.jsonl`` and ``samples/`` lie.
        config: the resolved config, nested; None: ``config.json`` of the run.
        audit: the ledger's audit; None: ``audit.json`` of the run, if there is one.
        facts: lines of the header by name, such as ``{"commit": ..., "device": ...}``.
    """
    run_dir = Path(run_dir)
    found_audit = audit if audit is not None else _read_json(run_dir / "audit.json")
    found_config = config if config is not None else _read_json(run_dir / "config.json") or {}
    facts = dict(facts or {}) | {"directory": str(run_dir), "written": time.strftime("%Y-%m-%d %H:%M")}
    name = run_dir.resolve().name
    data = RunData(name, read_metrics(run_dir), found_config, found_audit, read_samples(run_dir), facts)
    path = run_dir / FILE
    try:
        write_atomic(path, page(data))
    except OSError as error:
        WarnOnce(log, f"{path} was not written")(error)
        return None
    return path


def page(data: RunData) -> str:
    """The whole page."""
    # Imported here: matplotlib takes a second, and only those who write a report need it.
    from rljax.observe import report_sections as sections
    from rljax.observe.report_objective import OBJECTIVE
    from rljax.observe.report_plots import PLOTS

    parts: list[tuple[str, Callable[[RunData], str]]] = [
        ("summary", sections.tiles),
        ("curves", lambda d: sections.plots("Curves", _plots(d, PLOTS, "p"))),
        ("objective", lambda d: sections.plots("Objective", _plots(d, OBJECTIVE, "o"))),
        ("speed", sections.speed),
        ("audit", sections.audit),
        ("trajectories", sections.trajectories),
        ("config", sections.config),
    ]
    body = "\n".join(_guarded(name, draw, data) for name, draw in parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(data.name)} · rljax</title><style>{CSS}</style></head>\n"
        f"<body>{_guarded('header', sections.header, data)}<main>{body}</main>"
        "<footer>metrics.jsonl, audit.json, samples/ and trace.json (open it at ui.perfetto.dev) hold what is drawn "
        f"here.</footer><script>{JS}</script></body></html>\n"
    )


def _plots(data: RunData, specs: Sequence[PlotSpec], prefix: str) -> list[tuple[str, Any]]:
    from rljax.observe.report_plots import render

    found: list[tuple[str, Any]] = []
    for position, spec in enumerate(specs):
        try:
            found.append((spec.title, render(spec, data, f"{prefix}{position}") or spec.missing))
        except Exception as error:
            WarnOnce(log, f"the report has no plot “{spec.title}”")(error)
            found.append((spec.title, f"Could not be drawn: {type(error).__name__}: {error}"))
    return found


def _guarded(name: str, draw: Callable[[RunData], str], data: RunData) -> str:
    try:
        return draw(data)
    except Exception as error:
        WarnOnce(log, f"the report has no section “{name}”")(error)
        said = escape(f"The section “{name}” could not be written: {type(error).__name__}: {error}")
        return f'<div class="card"><p class="missing">{said}</p></div>'


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
