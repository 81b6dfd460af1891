"""The budget of a step in the report: drawn as bars, and as a table that says what each part holds up."""

from __future__ import annotations

from typing import Any

from plotly import graph_objects as go

from rljax.observe.budget import (
    AGAIN,
    BOOKS,
    COMPUTING,
    ENGINES,
    EXPLORERS,
    KINDS,
    LEARNER,
    LOADING,
    PACKING,
    PUBLISHING,
    PYTHON,
    TRANSFER,
    VALIDATING,
    WAITING,
    Budget,
    Without,
    removals,
)
from rljax.observe.formatting import seconds
from rljax.observe.report.data import RunData
from rljax.observe.report.plots import COLOURS, Drawn, Key, PlotSpec

KIND_COLOURS = {
    COMPUTING: "s1",
    AGAIN: "s2",
    PACKING: "s6",
    TRANSFER: "s7",
    PUBLISHING: "s3",
    LOADING: "s5",
    BOOKS: "muted",
    PYTHON: "s8",
    VALIDATING: "rule",
    WAITING: "s4",
}
TITLES = {LEARNER: "The learner", ENGINES: "An engine", EXPLORERS: "An explorer"}


def bars(data: RunData, figure: go.Figure) -> Drawn:
    """Draws a bar for each process, of what its time goes into."""
    found = data.budget[::-1]  # plotly draws from the bottom up
    if not found:
        return None
    legend: list[Key] = []
    for kind in KINDS:
        spent = [budget.of(kind) for budget in found]
        if any(spent):
            names, colour = [budget.process for budget in found], KIND_COLOURS[kind]
            figure.add_bar(y=names, x=spent, orientation="h", name=kind, marker={"color": COLOURS[colour]}, width=0.62)
            legend.append(Key(kind, colour))
    figure.layout.barmode = "stack"
    figure.layout.hovermode = "y unified"
    figure.layout.xaxis.update(ticksuffix=" s", hoverformat=".3g")
    figure.layout.yaxis.update(showgrid=False)
    return "Seconds of a step by what each process does in it, on average over the steps that are like others.", legend


PLOT: PlotSpec[RunData] = PlotSpec("Budget of a step", bars)


def section(data: RunData) -> dict[str, Any]:
    """Returns the parts of each process's time with what a step would take without them."""
    found = data.budget
    without = {(row.process, row.part): row for row in removals(found)}
    return {"tables": [_table(budget, without) for budget in found], "verdict": _verdict(found)}


def _table(budget: Budget, without: dict[tuple[str, Any], Without]) -> dict[str, Any]:
    longest = max((part.seconds for part in budget.parts), default=1.0)
    several = f", the mean of {budget.count}" if budget.count > 1 else ""
    rows = []
    for part in budget.parts:
        row = without.get((budget.process, part))
        rows.append(
            {
                "name": part.name,
                "colour": KIND_COLOURS[part.kind],
                "seconds": part.seconds,
                "of_longest": part.seconds / longest,
                "share": f"{part.seconds / budget.step:.1%}",
                "least": "–" if row is None else seconds(row.least),
                "bound": "–" if row is None else f"{row.bound:.2f}×",
            }
        )
    return {"title": TITLES[budget.process] + several, "rows": rows, "step": budget.step}


def _verdict(found: tuple[Budget, ...]) -> str:
    rows = removals(found)
    if not rows:
        return ""
    now, by = rows[0], {budget.process: budget for budget in found}
    step, training, generation = by[LEARNER].step, by[LEARNER].work, by[ENGINES].work
    return (
        f"A step takes {seconds(step)}, the mean of those that are like others. The learner has work for "
        f"{seconds(training)} of it and an engine for {seconds(generation)}: side by side they could do with "
        f"{seconds(now.least)}, {now.bound:.2f} times as fast as in turns, and this run is at {now.least / step:.0%} "
        "of that. Here all counts that is not waiting, also Python and requests that wait for a core; “Of the bound” "
        "and “What one more engine would buy” above count training and sampling alone. The last columns say what "
        f"{seconds(now.least)} and {now.bound:.2f}× would be without a part: one that leaves the least step as it is "
        "does not hold the run up."
    )
