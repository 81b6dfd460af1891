"""Validates the figures of ``mode=plan``."""

from __future__ import annotations

import re

from rljax.config.fields import ConfigError, shown
from rljax.config.refusals import Refusals
from rljax.config.schema import Config

_NUMBER = r"[0-9]+(\.[0-9]+)?"
_SPEEDS = re.compile(rf"{_NUMBER}|[1-9][0-9]{{0,6}}:{_NUMBER}(,[1-9][0-9]{{0,6}}:{_NUMBER})*")


def check_speeds(path: str, text: str | None) -> None:
    """Refuses what is no speed of an engine, nor a table of them; ``path`` is the key.

    Raises:
        ConfigError: it is not.
    """
    if text is None:
        return
    form = "write tokens a second, 1400, or by the number of requests that run, rising, 1:40,16:500,64:1400"
    if not _SPEEDS.fullmatch(text):
        raise ConfigError(f"{path}={shown(text)}: {form}")
    speeds = engine_speeds(text, 1)
    running = [count for count, _ in speeds]
    if running != sorted(set(running)) or min(speed for _, speed in speeds) <= 0:
        raise ConfigError(f"{path}={shown(text)}: counts must rise and speeds be above 0; {form}")


def engine_speeds(text: str, concurrency: int) -> tuple[tuple[int, float], ...]:
    """Returns (requests that run, tokens a second) of a text that `check_speeds` took; one without a number of requests
    is that at ``concurrency``.
    """
    if ":" not in text:
        return ((concurrency, float(text)),)
    return tuple((int(count), float(speed)) for count, _, speed in (part.partition(":") for part in text.split(",")))


def check_plan(config: Config) -> Refusals:
    """Refuses figures that say nothing without others."""
    plan = config.plan
    rates = {
        "plan.learner_tokens_per_second": plan.learner_tokens_per_second,
        "plan.engine_tokens_per_second": plan.engine_tokens_per_second,
    }
    missing = [name for name, value in rates.items() if value is None]
    if plan.from_run is None and len(missing) == 1:
        yield ConfigError(f"plan: {missing[0]} is missing beside the other rate; give both, or plan.from_run=RUN")
    for name in ("response_tokens", "environment_seconds"):
        if getattr(plan, f"{name}_std") and getattr(plan, name) is None:
            yield ConfigError(f"plan.{name}_std: nothing reads it without plan.{name}")
    if plan.from_run is None and len(missing) == 2:
        given = [name for name in FIGURES if getattr(plan, name) not in (None, 0.0)]
        for name in given:
            yield ConfigError(f"plan.{name}: nothing reads it without {' and '.join(missing)}, or plan.from_run=RUN")


FIGURES = (
    "prompt_tokens",
    "response_tokens",
    "response_tokens_std",
    "turns",
    "environment_seconds",
    "environment_seconds_std",
    "publish_seconds",
    "load_seconds",
)
"""Keys of `PlanConfig` that describe a run whose rates are known."""
