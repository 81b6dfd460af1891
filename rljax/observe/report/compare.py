"""Several runs on one page: what their figures draw, a line a run, and what their tables show."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from plotly import graph_objects as go

from rljax.observe.formatting import clock, number, short
from rljax.observe.report.data import RunData, flat, typical
from rljax.observe.report.objective import METRICS as OBJECTIVE
from rljax.observe.report.plots import DASHES, Drawn, PlotSpec, lines, percent, style
from rljax.observe.report.sections import Context, many, status

Runs = Sequence[RunData]

PLACES = ("run_dir", "mode", "report", "checkpoint", "ledger_schema")
"""Keys that differ between any two runs, and say nothing of them."""

LEARNING = (
    ("Reward", "reward/mean", "Mean over the batch of each step."),
    ("Response length", "response/mean_tokens", "Mean of the sampled tokens of a trajectory."),
    ("Cut off", "response/cut_off", "Share of the trajectories that a limit ended, and no stop token."),
    ("Flat groups", "reward/flat_groups", "Share of the groups whose rewards are all equal: they teach nothing."),
)
RUNNING = (
    ("Staleness", "staleness/mean", "Mean steps between the weights that sampled a token and those that it trains."),
    ("Seconds of a step", "time/step", "From one step's end to the next one's."),
    ("Throughput", "tokens_per_second", "Sampled tokens per second of wall time."),
    ("Fraction of the bound", "bound/fraction", "How close a step came to the longer of training and generating it."),
    ("Gap between learner and engine", "parity/max_abs_logprob_gap", "Largest on the probe, nats, by version."),
    ("Memory of the device", "device/memory_mib", "MiB in use on the learner's fullest device."),
)
SHARES = ("response/cut_off", "reward/flat_groups", "bound/fraction")


def figures(runs: Runs) -> dict[str, list[PlotSpec[Runs]]]:
    """Returns the figures by the heading of their section; those of metrics that no run has are not drawn."""
    tasksets = dict.fromkeys(name for run in runs for name in run.tasksets())
    parts = dict.fromkeys(name for run in runs for name in run.reward_parts())
    held_out = [(f"Held-out score: {name}", f"val/{name}/score", "Score on held-out tasks.") for name in tasksets]
    said = "Mean of this part of the reward, before its weight."
    by_part = [(f"Reward: {name.removeprefix('reward/')}", name, said) for name in parts]
    groups = {
        "Learning": [*held_out, *LEARNING, *by_part],
        "Objective": OBJECTIVE,
        "Staleness and speed": RUNNING,
    }
    return {heading: [PlotSpec(t, _overlaid(m, said)) for t, m, said in specs] for heading, specs in groups.items()}


def _overlaid(metric: str, caption: str) -> Callable[[Runs, go.Figure], Drawn]:
    def draw(runs: Runs, figure: go.Figure) -> Drawn:
        legend = lines(figure, [(run.name, run.series(metric)) for run in runs], smoothed=True)
        if not legend:
            return None
        if metric in SHARES:
            percent(figure)
        missing = len(runs) - len(legend)
        return caption + (f" {missing} of the runs have no value of it." if missing else ""), legend

    return draw


def title(runs: Runs) -> str:
    """Returns the name of the page."""
    return f"{many(len(runs), 'run')} compared"


def header(runs: Runs, problems: Sequence[str]) -> Context:
    """Returns the title, and what is not in the page."""
    return {"title": title(runs), "written": runs[0].facts.get("written", ""), "problems": problems}


def table(runs: Runs) -> Context:
    """Returns a row of key figures for each run, with its line's colour and dash."""
    tasksets = list(dict.fromkeys(name for run in runs for name in run.tasksets()))
    rows = []
    for position, run in enumerate(runs):
        colour, dash = style(position)
        scores = [run.values(f"val/{name}/score") for name in tasksets]
        rate, wall = typical(run.rows, "tokens_per_second"), sum(run.values("time/step"))
        rows.append(
            {
                "name": run.name,
                "colour": colour,
                "pattern": DASHES[dash],
                "status": status(run)[0],
                "steps": str(run.steps),
                "scores": [_trend(values) for values in scores],
                "reward": _trend(run.values("reward/mean")),
                "staleness": number((run.audit or {}).get("max_staleness")),
                "rate": short(rate) if rate is not None else "–",
                "wall": clock(wall) if wall else "–",
                "directory": run.facts.get("directory", ""),
            }
        )
    return {"rows": rows, "tasksets": tasksets}


def _trend(values: Sequence[float]) -> str:
    if not values:
        return "–"
    first, last, best = (number(round(value, 3)) for value in (values[0], values[-1], max(values)))
    return f"{first} → {last}" + (f", best {best}" if not math.isclose(values[-1], max(values)) else "")


def differences(runs: Runs) -> Context:
    """Returns the keys whose values differ between the runs, with the value of each."""
    known = [run.config and flat(run.config) for run in runs]
    keys = dict.fromkeys(key for config in known for key in config if key.split(".")[0] not in PLACES)
    shown = {
        key: [_shown(config, key) for config in known]
        for key in keys
        if len({_shown(config, key) for config in known if config}) > 1
    }
    return {"names": [run.name for run in runs], "keys": shown, "unknown": [r.name for r in runs if not r.config]}


def _shown(config: Any, key: str) -> str:
    return json.dumps(config[key], ensure_ascii=False, default=str) if key in config else "–"
