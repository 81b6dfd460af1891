"""Figures of a run in its report: what it learns, and how fast."""

from __future__ import annotations

import numpy as np
from plotly import graph_objects as go

from rljax.observe.formatting import short
from rljax.observe.report.budget import PLOT
from rljax.observe.report.data import RunData, time_split, typical
from rljax.observe.report.plots import (
    COLOURS,
    LINES,
    Drawn,
    Key,
    PlotSpec,
    binned,
    curve,
    integers,
    lines,
    percent,
    simple,
)

SPLIT_COLOURS = {"train": "s1", "wait": "s4", "publish": "s3", "checkpoint": "s5", "report": "s6", "other": "s8"}


def _reward(data: RunData, figure: go.Figure) -> Drawn:
    steps, values = data.series("reward/mean")
    if not values:
        return None
    curve(figure, steps, values, "s1", smoothed=True)
    integers(figure.layout.xaxis, "step", steps, 8)
    return f"Mean over the batch of each step: {values[0]:.3g} at first, {values[-1]:.3g} at last.", []


def _validation(data: RunData, figure: go.Figure) -> Drawn:
    scores = [(name, data.series(f"val/{name}/score")) for name in data.tasksets()[:LINES]]
    legend = lines(figure, scores)
    if not legend:
        return None
    said = ", ".join(f"{values[0]:.3g} → {values[-1]:.3g}" for _, (_, values) in scores if values)
    return f"Score on held-out tasks, by taskset: {said}.", legend


def _reward_parts(data: RunData, figure: go.Figure) -> Drawn:
    names = data.reward_parts()[:LINES]
    legend = lines(figure, [(name.removeprefix("reward/"), data.series(name)) for name in names])
    return ("Mean of each part of the reward, before its weight.", legend) if legend else None


def _by_taskset(data: RunData, figure: go.Figure) -> Drawn:
    names = [name.split("/")[1] for name in data.metric_names("train/") if name.endswith("/reward")][:LINES]
    if len(names) < 2:
        return None
    rewards = [(name, data.series(f"train/{name}/reward")) for name in names]
    said = ", ".join(f"{name} {values[0]:.3g} → {values[-1]:.3g}" for name, (_, values) in rewards)
    return f"Mean reward of the trained groups of each taskset: {said}.", lines(figure, rewards)


def _length(data: RunData, figure: go.Figure) -> Drawn:
    known = [("mean", data.series("response/mean_tokens")), ("longest", data.series("response/max_tokens"))]
    legend = lines(figure, known, smoothed=True)
    figure.layout.yaxis.update(rangemode="tozero")
    return ("Sampled tokens of a trajectory.", legend) if legend else None


def _shares(data: RunData, figure: go.Figure) -> Drawn:
    known = [("cut off", "response/cut_off"), ("flat groups", "reward/flat_groups")]
    legend = lines(figure, [(label, data.series(metric)) for label, metric in known], smoothed=True)
    percent(figure)
    said = "Trajectories that a limit ended, and no stop token; groups whose rewards are all equal: they teach nothing."
    return (said, legend) if legend else None


def _bound_line(figure: go.Figure, data: RunData, **at: float) -> list[Key]:
    """Draws the staleness bound, where it is known, at ``x`` or ``y``; returns its part of the legend."""
    if data.bound is None:
        return []
    draw = figure.add_hline if "y" in at else figure.add_vline
    draw(**at, line={"color": COLOURS["bad"], "width": 1.2, "dash": "dot"})
    return [Key(f"bound S = {data.bound}", "bad", "dot")]


def _staleness(data: RunData, figure: go.Figure) -> Drawn:
    mean, top = data.series("staleness/mean"), data.series("staleness/max")
    legend = lines(figure, [("mean", mean), ("max", top)])
    if not legend:
        return None
    legend += _bound_line(figure, data, y=data.bound or 0)
    figure.layout.yaxis.range = [-0.04, max(max(top[1] or mean[1]), data.bound or 0) * 1.12 + 0.08]
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
    integers(figure.layout.xaxis, "staleness, steps", [-0.75, right], 14)
    figure.layout.xaxis.range = [-0.75, right]
    figure.layout.yaxis.update(range=[0, max(shares) * 1.15], tickformat=".0%")
    return f"Share of the {short(total)} tokens of trained groups by staleness, those too that a mask left out.", legend


def _time_split(data: RunData, figure: go.Figure) -> Drawn:
    steps, parts = time_split(data)
    if not steps:
        return None
    total, legend = np.zeros(1), []
    spare = iter(("s2", "s7"))
    for name, values in parts.items():
        x, y = binned(steps, values)
        colour = SPLIT_COLOURS.get(name) or next(spare, "s7")
        if len(x) == 1:
            figure.add_bar(x=x, y=y, width=0.5, marker={"color": COLOURS[colour]}, name=name)
        else:
            line, fill = {"width": 0.8, "color": COLOURS["card"]}, COLOURS[colour]
            figure.add_scatter(x=x, y=y, mode="lines", stackgroup="step", line=line, fillcolor=fill, name=name)
        total = total + y
        legend.append(Key(f"{name} {sum(values) / max(sum(map(sum, parts.values())), 1e-9):.0%}", colour))
    integers(figure.layout.xaxis, "step", steps, 8)
    top = _robust_top(total)
    figure.layout.barmode = "stack"
    figure.layout.yaxis.update(range=[0, top], ticksuffix=" s", hoverformat=".3g")
    cut = " Slower steps, such as the first, which compiles, are cut off." if total.max() > top else ""
    said = "Seconds of each step, by what the learner did, from the bottom up; shares are of the whole run."
    return f"{said}{cut}", legend


def _robust_top(values: np.ndarray) -> float:
    """Returns the top of an axis on which the first, compiling steps do not flatten all others."""
    usual = float(np.percentile(values, 97)) * 1.25
    return max(min(float(values.max()) * 1.05, usual), 1e-9)


def _throughput(data: RunData, figure: go.Figure) -> Drawn:
    steps, values = data.series("tokens_per_second")
    if not values:
        return None
    curve(figure, steps, values, "s1", smoothed=True)
    integers(figure.layout.xaxis, "step", steps, 8)
    figure.layout.yaxis.update(rangemode="tozero", tickformat="~s")
    rate = typical(data.rows, "tokens_per_second")
    return f"Sampled tokens per second of wall time: {short(rate or 0.0)} in the median, not the first steps.", []


def _parity(data: RunData, figure: go.Figure) -> Drawn:
    found = {name: data.series(f"parity/{name}_abs_logprob_gap") for name in ("max", "mean")}
    if not found["max"][1]:
        return None
    said, most = "Difference of log-probabilities on the probe, nats, by version", max(found["max"][1])
    if not most:
        lines(figure, [("largest", found["max"])])
        return f"{said}: none, they agree to the bit.", []
    least = {name: (steps, [max(value, 1e-9) for value in values]) for name, (steps, values) in found.items()}
    legend = lines(figure, [("largest", least["max"]), ("mean", least["mean"])])
    drawn = [*least["max"][1], *least["mean"][1]]
    decades = [float(np.floor(np.log10(min(drawn)))), float(np.ceil(np.log10(max(drawn) * 1.01)))]
    figure.layout.yaxis.update(type="log", range=decades, dtick=1, exponentformat="power")
    return f"{said}; at most {most:.1e}.", legend


def _memory(data: RunData, figure: go.Figure) -> Drawn:
    device = ("device/memory_mib", "device/peak_memory_mib", "device/memory_limit_mib")
    known = list(zip(("in use", "most so far", "of the device"), map(data.series, device), strict=True))
    caption = "GiB of the learner's fullest device; engines in processes of their own are not in it."
    if not known[0][1][1]:
        known, caption = [("", data.series("host/rss_mib"))], "GiB of the learner's process; its devices report none."
    legend = lines(figure, [(label, (steps, [mib / 1024 for mib in values])) for label, (steps, values) in known])
    figure.layout.yaxis.update(rangemode="tozero", hoverformat=".3g")
    return (caption, legend if len(legend) > 1 else []) if legend else None


_BOUND = "How close a step came to the longer of training and generating it: 100% is as fast as that alone."
LEARNING: tuple[PlotSpec[RunData], ...] = (
    PlotSpec("Reward", _reward, "No step has a reward."),
    PlotSpec("Held-out score", _validation, "No validation has been recorded."),
    PlotSpec("Reward parts", _reward_parts),
    PlotSpec("Reward by taskset", _by_taskset),
    PlotSpec("Response length", _length, "No step has recorded it."),
    PlotSpec("Cut-off and flat groups", _shares, "No step has recorded them."),
)
RUNNING: tuple[PlotSpec[RunData], ...] = (
    PlotSpec("Staleness", _staleness, "No step has recorded staleness."),
    PlotSpec("Staleness of all trained groups", _staleness_histogram, "The audit has counted no trained token."),
    PlotSpec("Where the time of a step went", _time_split, "No step has recorded its time."),
    PLOT,
    PlotSpec("Fraction of the bound", simple("bound/fraction", _BOUND, share=True), "No step has recorded it."),
    PlotSpec("Throughput", _throughput, "No step has recorded it."),
    PlotSpec("Gap between learner and engine", _parity, "No published version has been probed."),
    PlotSpec("Memory", _memory, "No step has recorded it."),
)
