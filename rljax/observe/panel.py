"""Rendering of a run's state: a rich panel for live views, a line for pipes and logs."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Group as Rows
from rich.console import RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column, Table
from rich.text import Text

from rljax.observe.formatting import clock, divergences, number, short, validation_scores

BARS = "▁▂▃▄▅▆▇█"
SPARK_POINTS = 32
ACCENT, GOOD, QUIET, WARN = "cyan", "green", "bright_black", "yellow"
RECENT_STEPS, LEAST_STEPS = 20, 3
"""Steps whose medians are the pace of a run, and how many of them there must be before it is shown."""


def _bar(name: str, *columns: ProgressColumn) -> Bar:
    drawn = BarColumn(bar_width=32, style="grey23", complete_style=ACCENT, finished_style=GOOD)
    bar = Bar(TextColumn(f"{name:<8}", style=QUIET), drawn, *columns)
    bar.add_task(name, total=None)
    return bar


def _run_bar() -> Bar:
    steps = (MofNCompleteColumn(table_column=Column(no_wrap=True)), TextColumn("steps "))  # they shrink last
    return _bar("run", *steps, TextColumn("{task.fields[times]}", table_column=Column()))


def _batch_bar() -> Bar:
    return _bar("batch", TextColumn("{task.completed:g} of {task.total:g} groups ready"))


@dataclass
class State:
    """State of a run at one moment; owned and locked by `Progress`.

    Attributes:
        title: name of the run.
        total_steps: steps of the run; None where this process counts none (an explorer).
        step: batches completed.
        metrics: newest value of every metric by name.
        fields: values of `Progress.update` by name; ``ready`` and ``needed`` fill the batch bar, the rest is listed.
        trend: mean reward of the last steps; of a run with teachers how far the first of them is.
        recent: metrics of the last steps, without the first of a process, which compiles: what `pace` is made of.
        began: monotonic seconds at which this life of the run began.
        waiting: what is waited for, None if nothing is.
        waiting_since: monotonic seconds.
        warning: what somebody should look at, None if nothing is.
        run: the bar of its steps.
        batch: the bar of the next batch's groups.
    """

    title: str
    total_steps: int | None = None
    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    fields: dict[str, float | str] = field(default_factory=dict)
    trend: deque[float] = field(default_factory=lambda: deque(maxlen=20_000))
    recent: deque[Mapping[str, float]] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    began: float = field(default_factory=time.monotonic)
    waiting: str | None = None
    waiting_since: float = 0.0
    warning: str | None = None
    run: Bar = field(default_factory=_run_bar)
    batch: Bar = field(default_factory=_batch_bar)

    def add(self, step: int, metrics: Mapping[str, object]) -> None:
        """Takes the metrics of a completed step; what is no finite number is not shown."""
        finite = {k: float(v) for k, v in metrics.items() if isinstance(v, int | float) and math.isfinite(v)}
        self.metrics |= finite
        followed = [*divergences(finite).values(), *(finite[name] for name in ["reward/mean"] if name in finite)]
        self.trend.extend(followed[:1])
        if self.step:
            self.recent.append(finite)
        self.step = step

    def pace(self, name: str) -> float | None:
        """Returns the median of a metric over the last steps, which neither a validation nor a step that compiles
        moves far; None while fewer than `LEAST_STEPS` are known.
        """
        known = [row[name] for row in self.recent if name in row]
        return statistics.median(known) if len(known) >= LEAST_STEPS else None

    def seconds_left(self) -> float | None:
        """Returns how long the rest of the run takes at its `pace`; None while that is not known."""
        pace = self.pace("time/step")
        return None if pace is None or self.total_steps is None else pace * max(self.total_steps - self.step, 0)


def draw(state: State, unicode: bool = True) -> RenderableType:
    """Renders the state as a panel."""
    rows: list[RenderableType] = []
    ready, needed = (state.fields.get(name) for name in ("ready", "needed"))
    for bar, done, total in ((state.run, state.step, state.total_steps), (state.batch, ready, needed)):
        if isinstance(done, int | float) and isinstance(total, int | float) and total > 0:
            bar.update(bar.task_ids[0], completed=done, total=total, times=_times(state))
            rows.append(bar.get_renderable())
    numbers = _numbers(state)
    if numbers:
        rows.append(_columns(numbers))
    if len(state.trend) > 1 and unicode:
        low, high = min(state.trend), max(state.trend)
        line = Text("trend    ", style=QUIET)
        line.append(sparkline(list(state.trend)), style=ACCENT).append(f"  {low:.3g} to {high:.3g}", style=QUIET)
        rows.append(line)
    if state.warning is not None:
        rows.append(Text(state.warning, style=WARN))
    if state.waiting is not None:
        seconds = time.monotonic() - state.waiting_since
        rows.append(Text(f"waiting for {state.waiting} · {seconds:.0f} s", style=WARN))
    elif not rows:
        rows.append(Text("starting …" if unicode else "starting", style=QUIET))
    title = f"[bold]rljax[/] [{QUIET}]·[/] {escape(state.title)}"
    return Panel(Rows(*rows), title=title, title_align="left", border_style=QUIET, padding=(0, 1))


def line(state: State) -> str:
    """Renders the newest step as one line."""
    m = state.metrics
    of = f"/{state.total_steps}" if state.total_steps else ""
    parts = [f"step {state.step}{of}"]
    parts += [f"{what} {number(value)}" for what, value in _trained(m)] or ["reward –"]
    for name, score in validation_scores(m).items():
        parts.append(f"held out {name} {number(score)}")
    if "staleness/mean" in m:
        parts.append(f"staleness {number(m['staleness/mean'])} (max {number(m.get('staleness/max'))})")
    if "tokens_per_second" in m:
        parts.append(f"{short(m['tokens_per_second'])} tok/s")
    if "time/step" in m:
        parts.append(f"{m['time/step']:.2f} s ({m.get('time/wait', 0.0):.2f} waiting)")
    if "bound/fraction" in m:
        parts.append(f"bound {m['bound/fraction']:.0%}")
    return " · ".join(parts)


def sparkline(values: list[float], points: int = SPARK_POINTS) -> str:
    """Draws means of ``points`` equal stretches of the values, as bars between the least and the greatest of them."""
    count = min(points, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, spread = min(means), (max(means) - min(means)) or 1.0
    return "".join(BARS[round((mean - low) / spread * (len(BARS) - 1))] for mean in means)


def _trained(m: Mapping[str, float]) -> list[tuple[str, float]]:
    """Returns what a run is to raise or to lower: its reward, unless teachers alone say what is good; how far it is
    from each of these, in nats; else its loss.
    """
    teachers = divergences(m)
    unscored = bool(teachers) and m.get("reward/mean") == 0 == m.get("reward/std")
    found = [("reward", m["reward/mean"])] if "reward/mean" in m and not unscored else []
    found += [("reverse KL" if len(teachers) == 1 else f"reverse KL {name}", gap) for name, gap in teachers.items()]
    return found or ([("loss", m["loss"])] if "loss" in m else [])


def _times(state: State) -> str:
    left = state.seconds_left()
    return f"{clock(time.monotonic() - state.began)} elapsed, {'–' if left is None else clock(left)} left"


def _numbers(state: State) -> list[tuple[str, str]]:
    m, fields = state.metrics, state.fields
    found = [(what, number(value)) for what, value in _trained(m)]
    found += [(f"held out {name}", number(score)) for name, score in list(validation_scores(m).items())[:4]]
    if "staleness/mean" in m:
        bound = f" ≤ {number(fields['bound'])}" if "bound" in fields else ""
        found.append(("staleness", f"{number(m['staleness/mean'])}, max {number(m.get('staleness/max'))}{bound}"))
    if "tokens_per_second" in m:
        rate = state.pace("tokens_per_second")
        found.append(("tokens/s", "–" if rate is None else short(rate)))
    if "time/step" in m:
        pace = state.pace("time/step")
        found.append(("s/step", "–" if pace is None else f"{pace:.2f}"))
    if "bound/fraction" in m:
        found.append(("of the bound", f"{m['bound/fraction']:.0%}"))
    for name, value in fields.items():
        if name not in ("ready", "needed", "bound"):
            shown = (
                f"{value:.0%}" if name in ("occupancy", "engine_busy") and isinstance(value, float) else number(value)
            )
            found.append((name.replace("_", " "), shown))
    return found


def _columns(numbers: list[tuple[str, str]], across: int = 3) -> Table:
    table = Table.grid(padding=(0, 3, 0, 0))
    cells = [Text.assemble((f"{label} ", QUIET), (value, "bold")) for label, value in numbers]
    for start in range(0, len(cells), across):
        table.add_row(*cells[start : start + across])
    return table
