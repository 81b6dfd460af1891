"""The report's plots: matplotlib figures as SVG text whose colours are CSS variables, so that they follow the theme."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from rljax.observe.formatting import short
from rljax.observe.report_data import RunData, time_split, typical

POINTS = 240
"""Points of a curve; longer runs are averaged down to them."""
NICE = [1, 2, 2.5, 5, 10]
"""Distances between ticks, up to a power of ten."""

# Colours that no figure has by chance; each becomes the CSS variable of the same name.
COLOURS = {f"s{i}": f"#f0f0{i:02x}" for i in range(1, 9)} | {"muted": "#f0f0a1", "rule": "#f0f0a2", "bad": "#f0f0a3"}
SPLIT_COLOURS = {"train": "s1", "wait": "s3", "publish": "s4", "checkpoint": "s2", "other": "s8"}

STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "rljax",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": COLOURS["rule"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": COLOURS["rule"],
    "grid.linewidth": 0.6,
    "xtick.color": COLOURS["rule"],
    "xtick.labelcolor": COLOURS["muted"],
    "ytick.color": COLOURS["rule"],
    "ytick.labelcolor": COLOURS["muted"],
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "axes.xmargin": 0.01,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "lines.solid_joinstyle": "round",
}


@dataclass(frozen=True)
class Plot:
    """A picture and what its colours mean: (label, CSS variable) pairs."""

    title: str
    caption: str
    svg: str
    legend: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class PlotSpec:
    """How to draw a plot, and the sentence that stands in for it where its data is missing; without one, nothing."""

    title: str
    draw: Callable[[RunData, Axes], tuple[str, list[tuple[str, str]]] | None]
    missing: str = ""


def binned(steps: Sequence[int], values: Sequence[float], points: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Means over at most ``points`` equal stretches; each stands at its last step."""
    x, y = np.asarray(steps, float), np.asarray(values, float)
    if len(x) <= points:
        return x, y
    edges = np.linspace(0, len(x), points + 1).round().astype(int)
    return x[edges[1:] - 1], np.add.reduceat(y, edges[:-1]) / np.diff(edges)


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving mean; shorter at the ends."""
    kernel = np.ones(min(window, len(values)))
    return np.convolve(values, kernel, "same") / np.convolve(np.ones(len(values)), kernel, "same")


def render(spec: PlotSpec, data: RunData, prefix: str) -> Plot | None:
    """Draws a plot; None where its data is missing. ``prefix`` keeps the ids of several plots of a page apart."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 2.35))
        figure.subplots_adjust(left=0.085, right=0.985, top=0.95, bottom=0.185)
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        found = spec.draw(data, axes)
        if found is None:
            return None
        figure.patch.set_alpha(0)
        axes.patch.set_alpha(0)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    caption, legend = found
    return Plot(spec.title, caption, themed(out.getvalue(), prefix, spec.title), tuple(legend))


def themed(svg: str, prefix: str, title: str) -> str:
    """Cuts an SVG file down to its element: scalable, coloured by CSS variables, with ids of its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}-", svg)
    svg = re.sub(r'href="#', f'href="#{prefix}-', svg)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    for name, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg


def _steps_axis(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True, steps=NICE))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=NICE))
    axes.set_xlabel("step", loc="right", fontsize=8, labelpad=0)


def curve(axes: Axes, steps: Sequence[int], values: Sequence[float], colour: str, smoothed: bool = False) -> None:
    """A metric by step; ``smoothed``: under its moving mean, where there are points enough."""
    x, y = binned(steps, values)
    if smoothed and len(y) >= 20:
        axes.plot(x, y, color=COLOURS[colour], alpha=0.3, linewidth=1)
        y = smooth(y, max(len(y) // 20, 3))
    axes.plot(x, y, color=COLOURS[colour], marker="o" if len(x) < 2 else "", markersize=3.5)
    _steps_axis(axes)


Drawn = tuple[str, list[tuple[str, str]]] | None


def _reward(data: RunData, axes: Axes) -> Drawn:
    steps, values = data.series("reward/mean")
    if not values:
        return None
    curve(axes, steps, values, "s1", smoothed=True)
    return f"Mean over the batch of each step: {values[0]:.3g} at first, {values[-1]:.3g} at last.", []


def _validation(data: RunData, axes: Axes) -> Drawn:
    legend, said = [], []
    for i, name in enumerate(data.tasksets()[:6], start=1):
        steps, values = data.series(f"val/{name}/score")
        if not values:
            continue
        axes.plot(steps, values, color=COLOURS[f"s{i}"], marker="o", markersize=3.5 if len(values) < 60 else 0)
        legend.append((name, f"s{i}"))
        said.append(f"{values[0]:.3g} → {values[-1]:.3g}")
    if not legend:
        return None
    _steps_axis(axes)
    return f"Score on held-out tasks, by taskset: {', '.join(said)}.", legend


def _staleness(data: RunData, axes: Axes) -> Drawn:
    steps, mean = data.series("staleness/mean")
    if not mean:
        return None
    curve(axes, steps, mean, "s1")
    legend = [("mean", "s1")]
    top_steps, top = data.series("staleness/max")
    if top:
        x, y = (np.asarray(top_steps), np.asarray(top)) if len(top) <= POINTS else binned(top_steps, top)
        axes.plot(x, y, color=COLOURS["s3"], drawstyle="steps-mid", linewidth=1.2)
        legend.append(("max", "s3"))
    if data.bound is not None:
        axes.axhline(data.bound, color=COLOURS["bad"], linewidth=1.2, linestyle=(0, (4, 3)))
        legend.append((f"bound S = {data.bound}", "bad"))
    axes.set_ylim(bottom=0, top=max(max(top or mean), data.bound or 0) * 1.12 + 0.08)
    return "Steps between the weights that sampled a token and those that it trains.", legend


def _staleness_histogram(data: RunData, axes: Axes) -> Drawn:
    counts = {int(age): tokens for age, tokens in ((data.audit or {}).get("staleness_histogram") or {}).items()}
    if not counts:
        return None
    total = sum(counts.values())
    ages = sorted(counts)
    shares = [counts[age] / total for age in ages]
    axes.bar(ages, shares, width=0.72, color=COLOURS["s1"])
    if len(ages) <= 12:
        for age, share in zip(ages, shares, strict=True):
            text = f"{share:.0%}" if share >= 0.01 else "<1%"
            axes.text(age, share, text, ha="center", va="bottom", color=COLOURS["muted"], fontsize=8)
    legend = []
    if data.bound is not None:
        axes.axvline(data.bound + 0.5, color=COLOURS["bad"], linewidth=1.2, linestyle=(0, (4, 3)))
        legend.append((f"bound S = {data.bound}", "bad"))
    axes.set_xlim(-0.75, max([*ages, data.bound or 0, 3]) + 0.75)
    axes.set_ylim(0, max(shares) * 1.15)
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("staleness, steps", loc="right", fontsize=8, labelpad=0)
    return f"Share of the {short(total)} tokens of trained groups by staleness, those too that a mask left out.", legend


def _time_split(data: RunData, axes: Axes) -> Drawn:
    steps, parts = time_split(data)
    if not steps:
        return None
    bottom, legend = np.zeros(0), []
    spare = iter(("s5", "s6", "s7"))
    for name, values in parts.items():
        x, y = binned(steps, values)
        bottom = bottom if len(bottom) else np.zeros(len(y))
        colour = SPLIT_COLOURS.get(name) or next(spare, "s7")
        if len(x) == 1:
            axes.bar(x, y, bottom=bottom, width=0.5, color=COLOURS[colour])
        else:
            axes.fill_between(x, bottom, bottom + y, color=COLOURS[colour], linewidth=0, alpha=0.85)
        bottom = bottom + y
        legend.append((f"{name} {sum(values) / max(sum(map(sum, parts.values())), 1e-9):.0%}", colour))
    _steps_axis(axes)
    top = _robust_top(bottom)
    axes.set_ylim(0, top)
    cut = " Slower steps, such as the first, which compiles, are cut off." if bottom.max() > top else ""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} s"))
    return f"Seconds of each step, by what the learner did; shares are of the whole run.{cut}", legend


def _robust_top(values: np.ndarray) -> float:
    """Top of an axis on which the first, compiling steps do not flatten all others."""
    usual = float(np.percentile(values, 97)) * 1.25
    return max(min(float(values.max()) * 1.05, usual), 1e-9)


def _bound(data: RunData, axes: Axes) -> Drawn:
    steps, values = data.series("bound/fraction")
    if not values:
        return None
    curve(axes, steps, values, "s2", smoothed=True)
    axes.set_ylim(0, 1.05)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return (
        "How close a step came to the longer of training and generating it: 100% is as fast as this split can be.",
        [],
    )


def _throughput(data: RunData, axes: Axes) -> Drawn:
    steps, values = data.series("tokens_per_second")
    if not values:
        return None
    curve(axes, steps, values, "s4", smoothed=True)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    rate = typical(data.rows, "tokens_per_second")
    return f"Trained tokens per second of wall time: {short(rate or 0.0)} in the median, not the first steps.", []


def _parity(data: RunData, axes: Axes) -> Drawn:
    steps, values = data.series("parity/max_abs_logprob_gap")
    if not values:
        return None
    legend = [("largest", "s5")]
    curve(axes, steps, [max(value, 1e-9) for value in values], "s5")
    mean_steps, means = data.series("parity/mean_abs_logprob_gap")
    if means:
        curve(axes, mean_steps, [max(value, 1e-9) for value in means], "s2")
        legend.append(("mean", "s2"))
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.yaxis.set_minor_formatter(NullFormatter())
    low, high = min(max(value, 1e-9) for value in (*values, *means)), max(*values, 1e-9)
    axes.set_ylim(10 ** np.floor(np.log10(low)), 10 ** np.ceil(np.log10(high * 1.01)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}".replace("e-0", "e-")))
    return f"Difference of log-probabilities on the probe, nats, by version; at most {max(values):.1e}.", legend


def simple(metric: str, caption: str, colour: str) -> Callable[[RunData, Axes], Drawn]:
    """Draws one metric as it is."""

    def draw(data: RunData, axes: Axes) -> Drawn:
        steps, values = data.series(metric)
        if not values:
            return None
        curve(axes, steps, values, colour, smoothed=True)
        return caption, []

    return draw


PLOTS = (
    PlotSpec("Reward", _reward, "No step has been trained yet."),
    PlotSpec("Held-out score", _validation, "No validation has been recorded."),
    PlotSpec("Staleness", _staleness, "No step has recorded staleness."),
    PlotSpec("Staleness of all trained groups", _staleness_histogram, "The audit has counted no trained token."),
    PlotSpec("Where the time of a step went", _time_split, "No step has recorded its time."),
    PlotSpec("Fraction of the bound", _bound, "No step has recorded it."),
    PlotSpec("Throughput", _throughput, "No step has recorded it."),
    PlotSpec("Gap between learner and engine", _parity, "No published version has been probed."),
)
