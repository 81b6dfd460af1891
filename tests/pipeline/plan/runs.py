"""Configs and runs of which the times are known."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rljax.config.load import publishable
from rljax.config.schema import (
    Config,
    LearnerConfig,
    ModelConfig,
    PlanConfig,
    SidecarConfig,
    TasksConfig,
    TasksetConfig,
)
from rljax.observe.trace import Trace, part_path
from rljax.pipeline.plan.figures import Figures, given_figures


def config_with(plan: PlanConfig | None = None, **keys: Any) -> Config:
    values: dict[str, Any] = {
        "rollout_batch_size": 8,
        "group_size": 4,
        "async_generation_ratio": 0.0,
        "model": ModelConfig(path="tiny", max_prompt_tokens=20, max_response_tokens=80),
        "sidecar": SidecarConfig(max_concurrency=8),
        "learner": LearnerConfig(max_tokens_per_row=101),
        "tasks": TasksConfig(train={"sums": TasksetConfig(source="add_numbers", rewards=("digits",))}),
        "plan": plan or GIVEN,
    }
    return Config(**values | keys)


GIVEN = PlanConfig(learner_tokens_per_second=200.0, engine_tokens_per_second="160", load_seconds=0.5, steps=4)
"""8 replies of 80 tokens at 160 a second: 4 s. They and 8 prompts of 20 are trained at 200 a second: 4 s."""


def of(config: Config) -> Figures:
    figures = given_figures(config)
    assert figures is not None
    return figures


def write_run(root: Path, config: Config, steps: int = 16, *, trace: bool = True) -> None:
    """A run of steps of 10 s: 4 to train 800 tokens, 1 to publish, 2 to wait, 3 for else; 640 of the tokens sampled in
    5 s on one engine, which stands still for 1 s; behind each reply a second with no engine.
    """
    root.mkdir()
    (root / "config.json").write_text(json.dumps(publishable(config)))
    rows, begin = [], 1e9
    for step in range(1, steps + 1):
        row = {"step": step, "timestamp": begin + 10.0 * step, "time/step": 10.0, "time/train": 4.0}
        row |= {
            "time/publish": 1.0,
            "publish/seconds": 3.0,
            "time/wait": 2.0,
            "time/engine_busy": 5.0,
            "tokens/all": 800.0,
        }
        row |= {"tokens/sampled": 640.0, "staleness/mean": 0.5, "staleness/max": 1.0, "response/mean_tokens": 80.0}
        rows.append(row | {"compile/programs": float(step == steps)})
    rows[-2] |= {"time/step": 100.0}  # an engine compiles
    (root / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if not trace:
        return
    written = Trace(part_path(root, "learner"), 10_000, flush_seconds=1e6)
    for step in range(steps):
        since = begin + 10.0 * step
        written.span("explorer · versions", f"load version {step}", since, since + 1.0)
        written.span("learner", "wait for the version before", since + 8.0, since + 8.25)
        written.span("learner", "score the probe", since + 8.25, since + 8.5)  # before `publish/seconds` begins
        written.span("learner", "wait for the version before a checkpoint", since + 9.0, since + 9.5)  # not to publish
        for group, (asked, count) in enumerate(((since, 4), (since + 2.5, 4))):
            end = since + 6.0 + group
            for member in range(count):  # more than a tenth apart, or they would be made one
                track, name = "explorer engine 0 · requests", f"sums/{step}/{group}/{member}"
                written.in_flight(track, name, asked, end, tokens=80)
                written.in_flight("explorer · attempts", name, asked, end + 1.0, reward=1.0, tokens=80)
    written.close()


@contextlib.contextmanager
def traced(root: Path, steps: int = 16) -> Iterator[Trace]:
    """A run of `write_run` whose trace the test writes."""
    write_run(root, config_with(), steps, trace=False)
    written = Trace(part_path(root, "learner"), 10_000, flush_seconds=1e6)
    yield written
    written.close()
