"""Numbers of the report: derived from metrics, audit, config and samples, without any HTML."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rljax.observe.budget import Budget, budgets
from rljax.observe.formatting import validation_scores
from rljax.observe.metrics import Row
from rljax.observe.samples import Sample
from rljax.observe.trace_read import read_spans

NOT_A_SPLIT = ("time/step", "time/engine_busy")
SPLIT_ORDER = ("train", "wait", "lease", "publish", "checkpoint", "report")
WHOLE_REWARD = ("reward/mean", "reward/std", "reward/flat_groups")
"""Metrics of the reward as a whole; the others are of its parts."""


@dataclass(frozen=True)
class RunData:
    """The data of a run that a report is made of.

    Attributes:
        name: of the run.
        rows: of metrics.jsonl.
        config: the resolved config, nested.
        audit: as of the ledger's audit; None where there is none.
        samples: sampled trajectories.
        facts: further lines of the header by name, such as commit and device.
        running: whether the run goes on; it is not known of one that is read from its directory.
        failure: what ended the run, where the audit does not say so.
        traced: directory of the run, whose trace says where the time went; None: it is not read.
    """

    name: str
    rows: Sequence[Row]
    config: Mapping[str, Any]
    audit: Mapping[str, Any] | None
    samples: Sequence[Sample]
    facts: Mapping[str, str] = field(default_factory=dict)
    running: bool = False
    failure: str | None = None
    traced: Path | None = None

    @functools.cached_property
    def budget(self) -> tuple[Budget, ...]:
        """The time of a step by what each process does in it; empty where the trace does not say."""
        return () if self.traced is None else budgets(trained(self.rows), list(read_spans(self.traced)))

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Returns steps and values of a metric where it is known; row 0 is no step and has validation scores only."""
        rows = self.rows if name.startswith("val/") else trained(self.rows)
        known = [(row["step"], float(row[name])) for row in rows if isinstance(row.get(name), int | float)]
        return [step for step, _ in known], [value for _, value in known]

    def values(self, name: str) -> list[float]:
        """Returns the values of a metric where it is known."""
        return self.series(name)[1]

    def metric_names(self, prefix: str) -> list[str]:
        """Returns the names of the metrics with this prefix, in order of appearance."""
        return list(dict.fromkeys(name for row in self.rows for name in row if name.startswith(prefix)))

    def reward_parts(self) -> list[str]:
        """Returns the metrics of the reward's parts; none where its one part is the reward itself."""
        parts = [name for name in self.metric_names("reward/") if name not in WHOLE_REWARD]
        alone = len(parts) == 1 and self.series(parts[0]) == self.series("reward/mean")
        return [] if alone else parts

    def tasksets(self) -> list[str]:
        """Returns the tasksets that were validated."""
        return list(dict.fromkeys(name for row in self.rows for name in validation_scores(row)))

    @property
    def steps(self) -> int:
        """Batches completed."""
        return max((row["step"] for row in self.rows), default=0)

    @property
    def bound(self) -> int | None:
        """The staleness bound S, where the audit has it."""
        return None if self.audit is None else self.audit.get("staleness_bound")

    @property
    def engines(self) -> int:
        """Number of engines of one explorer."""
        return int(self.config.get("sidecar", {}).get("num_engines", 1))


def trained(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows of steps: row 0 describes the initial weights."""
    return [row for row in rows if row["step"] > 0]


def steady(rows: Sequence[Row]) -> Sequence[Row]:
    """Returns the rows of training steps without the first tenth, which compiles and warms up."""
    timed = [row for row in trained(rows) if isinstance(row.get("time/step"), int | float)]
    return timed[-(-len(timed) // 10) :] if len(timed) > 1 else timed


def typical(rows: Sequence[Row], name: str) -> float | None:
    """Returns the median of a metric in the steady part of a run; None where it is not known."""
    known = [float(row[name]) for row in steady(rows) if isinstance(row.get(name), int | float)]
    return median(known) if known else None


def waits(data: RunData) -> dict[str, float]:
    """Returns the seconds that the learner waited, by reason, the longest first; what has no reason is ``other``."""
    total = sum(data.values("time/wait"))
    by_reason = {name.removeprefix("wait/"): sum(data.values(name)) for name in data.metric_names("wait/")}
    rest = total - sum(by_reason.values())
    if rest > 0.01 * total and rest > 0.05:
        by_reason["other"] = rest
    return dict(sorted(((k, v) for k, v in by_reason.items() if v > 0), key=lambda item: -item[1]))


def split_names(data: RunData) -> list[str]:
    """Returns the parts of a step's time that the metrics have, training first."""
    known = [name.removeprefix("time/") for name in data.metric_names("time/") if name not in NOT_A_SPLIT]
    return [n for n in SPLIT_ORDER if n in known] + [n for n in known if n not in SPLIT_ORDER]


def time_split(data: RunData) -> tuple[list[int], dict[str, list[float]]]:
    """Returns the steps, and the seconds of each by part; ``other`` is what no part accounts for."""
    rows = [row for row in trained(data.rows) if isinstance(row.get("time/step"), int | float)]
    names = split_names(data)
    parts = {name: [float(row.get(f"time/{name}") or 0.0) for row in rows] for name in names}
    if rows:
        spent = [sum(values) for values in zip(*parts.values(), strict=True)] if parts else [0.0] * len(rows)
        parts["other"] = [max(float(row["time/step"]) - s, 0.0) for row, s in zip(rows, spent, strict=True)]
    return [row["step"] for row in rows], parts


@dataclass(frozen=True)
class Outlook:
    """Predicted speed of a run with so many engines, all else equal; seconds per step.

    Attributes:
        engines: number of them.
        generation: G, each engine's work for one batch.
        training: T, the learner's.
        least_step: max(G, T); no step can be shorter.
        over_turns: (G + T) / max(G, T), the most that working at the same time can gain over taking turns.
        gain: how many times faster than with the engines of now, at most.
    """

    engines: int
    generation: float
    training: float
    least_step: float
    over_turns: float
    gain: float


def outlooks(data: RunData, more: int = 2) -> list[Outlook]:
    """Returns the bound of throughput with the engines of now and up to ``more`` further ones; empty where not known,
    or where steps train demonstrations alone, so that what engines generate holds up none.

    ``time/engine_busy`` is the busy time of a step on average over the engines, so that n engines did n times it.
    """
    busy, training = typical(data.rows, "time/engine_busy"), typical(data.rows, "time/train")
    alone = data.config.get("algorithm", {}).get("expert_data_ratio") == 1
    if not busy or not training or alone:
        return []
    work = busy * data.engines
    now = max(work / data.engines, training)
    found = []
    for engines in range(data.engines, data.engines + more + 1):
        generation = work / engines
        least = max(generation, training)
        found.append(Outlook(engines, generation, training, least, (generation + training) / least, now / least))
    return found


def chosen_samples(samples: Sequence[Sample], most: int = 200) -> list[Sample]:
    """Returns at most ``most`` samples, spread evenly over the run, the first and the last included."""
    if len(samples) <= most:
        return list(samples)
    return [samples[round(i * (len(samples) - 1) / (most - 1))] for i in range(most)]


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested keys to dotted paths."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
