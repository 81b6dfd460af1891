"""Writing of ``report.html``: reads a run directory, renders each section by its template,
and joins them into one page.
"""

from __future__ import annotations

import functools
import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljax.observe.atomic_write import write_atomic
from rljax.observe.metrics import read_metrics
from rljax.observe.report.data import RunData
from rljax.observe.samples import read_samples
from rljax.observe.warn_once import WarnOnce

if TYPE_CHECKING:
    from jinja2 import Environment

log = logging.getLogger(__name__)

FILE = "report.html"


def write_report(
    run_dir: Path,
    config: Mapping[str, Any] | None = None,
    audit: Mapping[str, Any] | None = None,
    facts: Mapping[str, str] | None = None,
) -> Path | None:
    """Writes the report of a run from the data that there is, and returns its path.

    Data that is missing or spoilt gives a sentence in the page. A page that cannot be written gives a warning and None.

    Args:
        run_dir: where ``metrics.jsonl`` and ``samples/`` are.
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
    """Renders the whole page as HTML."""
    # Imported here: only those who write a report need the libraries that draw it.
    from rljax.observe.report import plots, sections
    from rljax.observe.report.objective import OBJECTIVE

    figures: dict[str, Any] = {}
    parts: list[tuple[str, str, Callable[[RunData], dict[str, Any]]]] = [
        ("header", "header", sections.header),
        ("summary", "summary", sections.summary),
        ("curves", "plots", lambda d: plots.section("Curves", plots.PLOTS, d, figures)),
        ("objective", "plots", lambda d: plots.section("Objective", OBJECTIVE, d, figures)),
        ("speed", "speed", sections.speed),
        ("audit", "audit", sections.audit),
        ("trajectories", "trajectories", sections.trajectories),
        ("config", "config", sections.config),
    ]
    rendered = {name: _section(name, template, context, data) for name, template, context in parts}
    plotly = plots.packed_library() if figures else ""
    return (
        _templates().get_template("page.html").render(name=data.name, sections=rendered, figures=figures, plotly=plotly)
    )


def _section(name: str, template: str, context: Callable[[RunData], dict[str, Any]], data: RunData) -> Any:
    from markupsafe import Markup

    try:
        text = _templates().get_template(f"{template}.html").render(context(data))
    except Exception as error:
        WarnOnce(log, f"the report has no section “{name}”")(error)
        said = f"{type(error).__name__}: {error}"
        text = _templates().get_template("spoilt.html").render(name=name, error=said)
    return Markup(text)


@functools.cache
def _templates() -> Environment:
    """Returns the templates beside this file, which escape whatever comes from a run."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from rljax.observe.formatting import seconds
    from rljax.observe.report.sections import many

    loader = FileSystemLoader(Path(__file__).parent / "templates")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    made.filters |= {"seconds": seconds, "many": many}
    return made


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
