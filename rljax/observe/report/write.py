"""Writing of ``report.html``: renders each section of a run by its template, and joins them into one page."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rljax.observe.atomic_write import write_atomic
from rljax.observe.report.data import RunData
from rljax.observe.warn_once import WarnOnce

if TYPE_CHECKING:
    from jinja2 import Environment

log = logging.getLogger(__name__)

FILE = "report.html"
COMPARISON = "comparison.html"

D = TypeVar("D")
Part = tuple[str, str, Callable[[D], dict[str, Any]]]
"""A section: its name, its template, and what makes the template's values."""


def write_report(run_dir: Path, data: RunData, unless: Callable[[], bool] = lambda: False) -> Path | None:
    """Writes the report of a run into its directory, and returns its path.

    Data that is missing or spoilt gives a sentence in the page. A page that cannot be written gives a warning and None.

    Args:
        run_dir: of the run.
        data: of the run.
        unless: asked once the page is drawn, which takes a second or, where the process was stopped, any time: whether
            the directory is somebody else's by now. Then nothing is written.
    """
    path = run_dir / FILE
    try:
        text = page(data)
        if unless():
            return None
        write_atomic(path, text)
    except OSError as error:
        WarnOnce(log, f"{path} was not written")(error)
        return None
    return path


def page(data: RunData) -> str:
    """Renders the whole page of a run as HTML."""
    # Imported here: only those who write a report need the libraries that draw it.
    from rljax.observe.report import budget, figures, plots, sections
    from rljax.observe.report.objective import OBJECTIVE

    drawn: dict[str, Any] = {}
    parts: list[Part[RunData]] = [
        ("header", "header", sections.header),
        ("summary", "summary", sections.summary),
        ("learning", "plots", lambda d: plots.section("Learning", figures.LEARNING, d, drawn)),
        ("objective", "plots", lambda d: plots.section("Objective", OBJECTIVE, d, drawn)),
        ("running", "plots", lambda d: plots.section("Staleness and speed", figures.RUNNING, d, drawn)),
        ("speed", "speed", sections.speed),
        ("budget", "budget", budget.section),
        ("audit", "audit", sections.audit),
        ("trajectories", "trajectories", sections.trajectories),
        ("config", "config", sections.config),
    ]
    return _joined(data.name, parts, data, drawn)


def comparison(runs: Sequence[RunData], problems: Sequence[str] = ()) -> str:
    """Renders several runs as one page, a figure a metric and a line a run.

    Args:
        runs: of different names.
        problems: lines on what is not in the page.
    """
    from rljax.observe.report import compare, plots

    drawn: dict[str, Any] = {}
    parts: list[Part[Sequence[RunData]]] = [
        ("header", "compared", lambda each: compare.header(each, problems)),
        ("runs", "runs", compare.table),
        *(
            (heading, "plots", functools.partial(plots.section, heading, specs, figures=drawn))
            for heading, specs in compare.figures(runs).items()
        ),
        ("config", "differences", compare.differences),
    ]
    return _joined(compare.title(runs), parts, runs, drawn)


def _joined(name: str, parts: Sequence[Part[D]], data: D, figures: dict[str, Any]) -> str:
    from rljax.observe.report import plots

    header, *sections = [_section(section, template, context, data) for section, template, context in parts]
    library = plots.packed_library() if figures else ""
    made = _templates().get_template("page.html")
    return made.render(name=name, header=header, sections=sections, figures=figures, plotly=library)


def _section(name: str, template: str, context: Callable[[D], dict[str, Any]], data: D) -> Any:
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
