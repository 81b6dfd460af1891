"""Figures of the report: plotly's, which can be zoomed, with colours that are the page's CSS
variables and follow its theme.
"""

from __future__ import annotations

import base64
import gzip
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from plotly import graph_objects as go
from plotly.offline import get_plotlyjs

from rljax.observe.formatting import short
from rljax.observe.report.data import RunData, time_split, typical
from rljax.observe.warn_once import WarnOnce

log = logging.getLogger(__name__)

POINTS = 240
"""Points of a curve; longer runs are averaged down to them."""

# plotly takes no CSS variable for a colour: these, which no figure has by chance, become the variables of their names.
COLOURS = {f"s{i}": f"#f0f0{i:02x}" for i in range(1, 9)} | {
    name: f"#f0f0a{i}" for i, name in enumerate(("muted", "rule", "bad", "ink", "card"), start=1)
}
SPLIT_COLOURS = {"train": "s1", "wait": "s3", "publish": "s4", "checkpoint": "s2", "other": "s8"}

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

Drawn = tuple[str, list[tuple[str, str]]] | None
"""The caption of a figure and its legend, (label, CSS variable) pairs; None where its data is missing."""


@dataclass(frozen=True)
class PlotSpec:
    """Specification of a figure, and the sentence that replaces it where its data is
    missing; without one, nothing does.
    """

    title: str
    draw: Callable[[RunData, go.Figure], Drawn]
    missing: str = ""


@dataclass(frozen=True)
class Card:
    """A figure's title, its caption or the sentence that replaces it, the id of its element, and its legend."""

    title: str
    said: str
    place: str = ""
    legend: tuple[tuple[str, str], ...] = ()


def section(heading: str, specs: Sequence[PlotSpec], data: RunData, figures: dict[str, Any]) -> dict[str, Any]:
    """Returns a section's cards and puts its figures, as plotly.js takes them, into `figures` by element id."""
    cards = []
    for position, spec in enumerate(specs):
        place = f"{heading.lower()}-{position}"
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


def render(spec: PlotSpec, data: RunData) -> tuple[dict[str, Any], str, list[tuple[str, str]]] | None:
    """Returns a figure as plotly.js takes it, its caption and its legend; None where its data is missing."""
    figure = go.Figure(layout=LAYOUT)
    drawn = spec.draw(data, figure)
    if drawn is None:
        return None
    text = figure.to_json()
    for name, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    return json.loads(text), *drawn


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


def _integers(axis: Any, title: str, values: Sequence[float], most: int) -> None:
    """Sets up a horizontal axis of whole numbers; few have a tick each."""
    axis.update(title={"text": title, "standoff": 4}, dtick=1 if max(values) - min(values) < most else None)


def curve(
    figure: go.Figure,
    steps: Sequence[int],
    values: Sequence[float],
    colour: str,
    *,
    smoothed: bool = False,
    name: str = "",
) -> None:
    """Draws a metric by step; ``smoothed``: under its moving mean, where there are points enough."""
    x, y = binned(steps, values)
    line = {"color": COLOURS[colour], "width": 1.8}
    if smoothed and len(y) >= 20:
        figure.add_scatter(x=x, y=y, mode="lines", line=line | {"width": 1}, opacity=0.3, hoverinfo="skip")
        y = smooth(y, max(len(y) // 20, 3))
    mode = "lines" if len(x) > 1 else "markers"
    figure.add_scatter(x=x, y=y, mode=mode, line=line, marker={"color": COLOURS[colour]}, name=name)
    _integers(figure.layout.xaxis, "step", x.tolist(), 8)


def _bound_line(figure: go.Figure, data: RunData, **at: float) -> list[tuple[str, str]]:
    """Draws the staleness bound, where it is known, at ``x`` or ``y``; returns its part of the legend."""
    if data.bound is None:
        return []
    draw = figure.add_hline if "y" in at else figure.add_vline
    draw(**at, line={"color": COLOURS["bad"], "width": 1.2, "dash": "dash"})
    return [(f"bound S = {data.bound}", "bad")]


def _reward(data: RunData, figure: go.Figure) -> Drawn:
    steps, values = data.series("reward/mean")
    if not values:
        return None
    curve(figure, steps, values, "s1", smoothed=True)
    return f"Mean over the batch of each step: {values[0]:.3g} at first, {values[-1]:.3g} at last.", []


def _validation(data: RunData, figure: go.Figure) -> Drawn:
    legend, said = [], []
    for i, name in enumerate(data.tasksets()[:6], start=1):
        steps, values = data.series(f"val/{name}/score")
        if not values:
            continue
        mode = "lines+markers" if len(values) < 60 else "lines"
        figure.add_scatter(x=steps, y=values, mode=mode, line={"color": COLOURS[f"s{i}"], "width": 1.8}, name=name)
        _integers(figure.layout.xaxis, "step", steps, 8)
        legend.append((name, f"s{i}"))
        said.append(f"{values[0]:.3g} → {values[-1]:.3g}")
    return (f"Score on held-out tasks, by taskset: {', '.join(said)}.", legend) if legend else None


def _by_taskset(data: RunData, figure: go.Figure) -> Drawn:
    names = [name.split("/")[1] for name in data.metric_names("train/") if name.endswith("/reward")]
    if len(names) < 2:
        return None
    legend, said = [], []
    for i, name in enumerate(names[:6], start=1):
        steps, values = data.series(f"train/{name}/reward")
        curve(figure, steps, values, f"s{i}", name=name)
        legend.append((name, f"s{i}"))
        said.append(f"{name} {values[0]:.3g} → {values[-1]:.3g}")
    return f"Mean reward of the trained groups of each taskset: {', '.join(said)}.", legend


def _staleness(data: RunData, figure: go.Figure) -> Drawn:
    steps, mean = data.series("staleness/mean")
    if not mean:
        return None
    curve(figure, steps, mean, "s1", name="mean")
    legend = [("mean", "s1")]
    top_steps, top = data.series("staleness/max")
    if top:
        x, y = binned(top_steps, top)
        line = {"color": COLOURS["s3"], "width": 1.2, "shape": "hvh"}
        figure.add_scatter(x=x, y=y, mode="lines", line=line, name="max")
        legend.append(("max", "s3"))
    legend += _bound_line(figure, data, y=data.bound or 0)
    figure.layout.yaxis.range = [0, max(max(top or mean), data.bound or 0) * 1.12 + 0.08]
    return "Steps between the weights that sampled a token and those that it trains.", legend


def _staleness_histogram(data: RunData, figure: go.Figure) -> Drawn:
    counts = {int(age): tokens for age, tokens in ((data.audit or {}).get("staleness_histogram") or {}).items()}
    if not counts:
        return None
    total = sum(counts.values())
    ages = sorted(counts)
    shares = [counts[age] / total for age in ages]
    labels = [f"{share:.0%}" if share >= 0.01 else "<1%" for share in shares] if len(ages) <= 12 else None
    marker = {"color": COLOURS["s1"]}
    figure.add_bar(x=ages, y=shares, width=0.72, marker=marker, text=labels, textposition="outside", cliponaxis=False)
    legend = _bound_line(figure, data, x=(data.bound or 0) + 0.5)
    right = max([*ages, data.bound or 0, 3]) + 0.75
    _integers(figure.layout.xaxis, "staleness, steps", [-0.75, right], 14)
    figure.layout.xaxis.range = [-0.75, right]
    figure.layout.yaxis.update(range=[0, max(shares) * 1.15], tickformat=".0%")
    return f"Share of the {short(total)} tokens of trained groups by staleness, those too that a mask left out.", legend


def _time_split(data: RunData, figure: go.Figure) -> Drawn:
    steps, parts = time_split(data)
    if not steps:
        return None
    total, legend = np.zeros(1), []
    spare = iter(("s5", "s6", "s7"))
    for name, values in parts.items():
        x, y = binned(steps, values)
        colour = SPLIT_COLOURS.get(name) or next(spare, "s7")
        if len(x) == 1:
            figure.add_bar(x=x, y=y, width=0.5, marker={"color": COLOURS[colour]}, name=name)
        else:
            line, fill = {"width": 0, "color": COLOURS[colour]}, COLOURS[colour]
            figure.add_scatter(x=x, y=y, mode="lines", stackgroup="step", line=line, fillcolor=fill, name=name)
        total = total + y
        legend.append((f"{name} {sum(values) / max(sum(map(sum, parts.values())), 1e-9):.0%}", colour))
    _integers(figure.layout.xaxis, "step", steps, 8)
    top = _robust_top(total)
    figure.layout.barmode = "stack"
    figure.layout.yaxis.update(range=[0, top], ticksuffix=" s", hoverformat=".3g")
    cut = " Slower steps, such as the first, which compiles, are cut off." if total.max() > top else ""
    return f"Seconds of each step, by what the learner did; shares are of the whole run.{cut}", legend


def _robust_top(values: np.ndarray) -> float:
    """Returns the top of an axis on which the first, compiling steps do not flatten all others."""
    usual = float(np.percentile(values, 97)) * 1.25
    return max(min(float(values.max()) * 1.05, usual), 1e-9)


def _bound(data: RunData, figure: go.Figure) -> Drawn:
    steps, values = data.series("bound/fraction")
    if not values:
        return None
    curve(figure, steps, values, "s2", smoothed=True)
    figure.layout.yaxis.update(range=[0, 1.05], tickformat=".0%")
    return (
        "How close a step came to the longer of training and generating it: 100% is as fast as this split can be.",
        [],
    )


def _throughput(data: RunData, figure: go.Figure) -> Drawn:
    steps, values = data.series("tokens_per_second")
    if not values:
        return None
    curve(figure, steps, values, "s4", smoothed=True)
    figure.layout.yaxis.update(rangemode="tozero", tickformat="~s")
    rate = typical(data.rows, "tokens_per_second")
    return f"Trained tokens per second of wall time: {short(rate or 0.0)} in the median, not the first steps.", []


def _parity(data: RunData, figure: go.Figure) -> Drawn:
    steps, values = data.series("parity/max_abs_logprob_gap")
    if not values:
        return None
    legend = [("largest", "s5")]
    curve(figure, steps, [max(value, 1e-9) for value in values], "s5", name="largest")
    mean_steps, means = data.series("parity/mean_abs_logprob_gap")
    if means:
        curve(figure, mean_steps, [max(value, 1e-9) for value in means], "s2", name="mean")
        legend.append(("mean", "s2"))
    low, high = min(max(value, 1e-9) for value in (*values, *means)), max(*values, 1e-9)
    decades = [float(np.floor(np.log10(low))), float(np.ceil(np.log10(high * 1.01)))]
    figure.layout.yaxis.update(type="log", range=decades, dtick=1, exponentformat="power")
    return f"Difference of log-probabilities on the probe, nats, by version; at most {max(values):.1e}.", legend


def simple(metric: str, caption: str, colour: str) -> Callable[[RunData, go.Figure], Drawn]:
    """Returns the function that draws one metric as it is."""

    def draw(data: RunData, figure: go.Figure) -> Drawn:
        steps, values = data.series(metric)
        if not values:
            return None
        curve(figure, steps, values, colour, smoothed=True)
        return caption, []

    return draw


PLOTS = (
    PlotSpec("Reward", _reward, "No step has a reward."),
    PlotSpec("Held-out score", _validation, "No validation has been recorded."),
    PlotSpec("Staleness", _staleness, "No step has recorded staleness."),
    PlotSpec("Staleness of all trained groups", _staleness_histogram, "The audit has counted no trained token."),
    PlotSpec("Where the time of a step went", _time_split, "No step has recorded its time."),
    PlotSpec("Fraction of the bound", _bound, "No step has recorded it."),
    PlotSpec("Throughput", _throughput, "No step has recorded it."),
    PlotSpec("Gap between learner and engine", _parity, "No published version has been probed."),
    PlotSpec("Reward by taskset", _by_taskset),
)
