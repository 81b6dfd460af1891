"""Drawing of the report's figures: plotly's, which can be zoomed, with colours that are the page's CSS
variables and follow its theme.
"""

from __future__ import annotations

import base64
import functools
import gzip
import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from plotly import graph_objects as go
from plotly.offline import get_plotlyjs

from rljax.observe.report.data import RunData
from rljax.observe.warn_once import WarnOnce

log = logging.getLogger(__name__)

D = TypeVar("D")

POINTS = 240
"""Points of a curve; longer runs are averaged down to them."""

# plotly takes no CSS variable for a colour: these, which no figure has by chance, become the variables of their names.
COLOURS = {f"s{i}": f"#f0f0{i:02x}" for i in range(1, 9)} | {
    name: f"#f0f0a{i}" for i, name in enumerate(("muted", "rule", "bad", "ink", "card"), start=1)
}
LINES = 7
"""Colours of lines: s1 to s7, those of Okabe and Ito, which the colour-blind tell apart."""
DASHES = {
    "solid": "",
    "dash": "9 9",
    "dot": "3 3",
    "dashdot": "9 3 3 3",
    "longdash": "15 6",
    "longdashdot": "15 6 3 6",
}
"""Dashes of lines by plotly's name, as the legend draws them: who sees no colour tells lines apart by them."""
AREA = "area"
"""In the place of a dash: a surface."""

_CLEAR = "rgba(0,0,0,0)"
_AXIS = {"zeroline": False, "gridcolor": COLOURS["rule"], "linecolor": COLOURS["rule"], "tickcolor": COLOURS["rule"]}
LAYOUT: dict[str, Any] = {
    "template": {},
    "margin": {"l": 10, "r": 10, "t": 24, "b": 10},
    "paper_bgcolor": _CLEAR,
    "plot_bgcolor": _CLEAR,
    "font": {"family": "inherit", "size": 11, "color": COLOURS["muted"]},
    "showlegend": False,
    "hovermode": "x unified",
    "hoverlabel": {"bgcolor": COLOURS["card"], "bordercolor": COLOURS["rule"], "font": {"color": COLOURS["ink"]}},
    "modebar": {"bgcolor": _CLEAR, "color": COLOURS["muted"], "activecolor": COLOURS["ink"]},
    "xaxis": {**_AXIS, "showgrid": False, "showline": True, "ticks": "outside", "nticks": 8, "automargin": True},
    "yaxis": {**_AXIS, "nticks": 6, "automargin": True},
}


class Key(NamedTuple):
    """A line of a legend: label, CSS variable of the colour, and dash."""

    label: str
    colour: str
    dash: str = AREA

    @property
    def pattern(self) -> str:
        """Lengths of strokes and gaps, as SVG takes them."""
        return DASHES[self.dash]


Drawn = tuple[str, list[Key]] | None
"""The caption of a figure and its legend; None where its data is missing."""
Line = tuple[str, tuple[Sequence[int], Sequence[float]]]
"""The label of a line, and its steps and values."""


@dataclass(frozen=True)
class PlotSpec(Generic[D]):
    """Specification of a figure, and the sentence that replaces it where its data is
    missing; without one, nothing does.
    """

    title: str
    draw: Callable[[D, go.Figure], Drawn]
    missing: str = ""


@dataclass(frozen=True)
class Card:
    """A figure's title, its caption or the sentence that replaces it, the id of its element, and its legend."""

    title: str
    said: str
    place: str = ""
    legend: tuple[Key, ...] = ()


def section(heading: str, specs: Sequence[PlotSpec[D]], data: D, figures: dict[str, Any]) -> dict[str, Any]:
    """Returns a section's cards and puts its figures, as plotly.js takes them, into `figures` by element id."""
    cards = []
    for position, spec in enumerate(specs):
        place = f"{re.sub(r'[^a-z]+', '-', heading.lower())}-{position}"
        try:
            drawn = render(spec, data)
        except Exception as error:
            WarnOnce(log, f"the report has no plot “{spec.title}”")(error)
            cards.append(Card(spec.title, f"Could not be drawn: {type(error).__name__}: {error}"))
            continue
        if drawn is not None:
            figures[place], caption, legend = drawn
            cards.append(Card(spec.title, caption, place, tuple(legend)))
        elif spec.missing:
            cards.append(Card(spec.title, spec.missing))
    return {"heading": heading, "cards": cards}


def render(spec: PlotSpec[D], data: D) -> tuple[dict[str, Any], str, list[Key]] | None:
    """Returns a figure as plotly.js takes it, its caption and its legend; None where its data is missing."""
    figure = go.Figure(layout=LAYOUT)
    drawn = spec.draw(data, figure)
    if drawn is None:
        return None
    text = figure.to_json()
    for name, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    return json.loads(text), *drawn


@functools.cache
def packed_library() -> str:
    """Returns plotly.js as base64 of gzip, 2 MB where plain text has 4.8: every report carries it."""
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()


def binned(steps: Sequence[int], values: Sequence[float], points: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Returns means over at most ``points`` equal stretches; each stands at its last step."""
    x, y = np.asarray(steps, float), np.asarray(values, float)
    if len(x) <= points:
        return x, y
    edges = np.linspace(0, len(x), points + 1).round().astype(int)
    return x[edges[1:] - 1], np.add.reduceat(y, edges[:-1]) / np.diff(edges)


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Returns the centred moving mean; shorter at the ends."""
    kernel = np.ones(min(window, len(values)))
    return np.convolve(values, kernel, "same") / np.convolve(np.ones(len(values)), kernel, "same")


def integers(axis: Any, title: str, values: Sequence[float], most: int) -> None:
    """Sets up a horizontal axis of whole numbers; few have a tick each."""
    axis.update(title={"text": title, "standoff": 4}, dtick=1 if max(values) - min(values) < most else None)


def style(position: int) -> tuple[str, str]:
    """Returns colour and dash of a figure's line number ``position``: both differ from the one before."""
    return f"s{position % LINES + 1}", list(DASHES)[position % len(DASHES)]


def curve(
    figure: go.Figure,
    steps: Sequence[int],
    values: Sequence[float],
    colour: str,
    *,
    smoothed: bool = False,
    name: str = "",
    dash: str = "solid",
) -> None:
    """Draws a metric by step; ``smoothed``: under its moving mean, where there are points enough. Few points have
    markers.
    """
    x, y = binned(steps, values)
    line = {"color": COLOURS[colour], "width": 2, "dash": dash}
    if smoothed and len(y) >= 20:
        faint = {"color": COLOURS[colour], "width": 1}
        figure.add_scatter(x=x, y=y, mode="lines", line=faint, opacity=0.3, hoverinfo="skip")
        y = smooth(y, max(len(y) // 20, 3))
    mode = "lines" if len(x) > 30 else "lines+markers" if len(x) > 1 else "markers"
    figure.add_scatter(x=x, y=y, mode=mode, line=line, marker={"color": COLOURS[colour], "size": 5}, name=name)


def lines(figure: go.Figure, named: Iterable[Line], smoothed: bool = False) -> list[Key]:
    """Draws a line each by step, in colours and dashes of their own; returns the legend. Those without a value keep
    their colour and have neither line nor legend.
    """
    legend: list[Key] = []
    drawn: list[int] = []
    for position, (label, (steps, values)) in enumerate(named):
        if not values:
            continue
        colour, dash = style(position)
        curve(figure, steps, values, colour, dash=dash, smoothed=smoothed, name=label)
        legend.append(Key(label, colour, dash))
        drawn += steps
    if drawn:
        integers(figure.layout.xaxis, "step", drawn, 8)
    return legend


def simple(metric: str, caption: str, colour: str = "s1", share: bool = False) -> Callable[[RunData, go.Figure], Drawn]:
    """Returns the function that draws one metric as it is; ``share``: in percent."""

    def draw(data: RunData, figure: go.Figure) -> Drawn:
        steps, values = data.series(metric)
        if not values:
            return None
        curve(figure, steps, values, colour, smoothed=True)
        integers(figure.layout.xaxis, "step", steps, 8)
        if share:
            percent(figure)
        return caption, []

    return draw


def percent(figure: go.Figure) -> None:
    """Sets up a vertical axis of shares, from 0 to 1."""
    figure.layout.yaxis.update(range=[-0.03, 1.05], tickformat=".0%")
