"""Formatting of numbers and names for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def short(value: float) -> str:
    """Formats a count with a unit: 1234 as 1.2k, 1234567 as 1.2M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.1f}".removesuffix(".0") + unit
    return f"{value:.0f}"


def number(value: object) -> str:
    """Formats a value with three significant digits; a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:.3g}"
    return str(value)


def clock(seconds: float) -> str:
    """Formats seconds as a clock time: 75 as 1:15, 3700 as 1:01:40."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def seconds(value: float) -> str:
    """Formats a duration with a unit that fits: 3 ms, 1.25 s, 2:05 min, 1:01:40 h."""
    if value < 0.0995:
        return f"{value * 1000:.3g} ms"
    if value < 100:
        return f"{value:.3g} s"
    return f"{clock(value)} {'h' if value >= 3600 else 'min'}"


def divergences(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the reverse KL to each teacher out of the metrics ``distill/<teacher>/reverse_kl``."""
    parts = {name: name.split("/") for name in metrics if name.startswith("distill/") and name.endswith("/reverse_kl")}
    return {of[1]: metrics[name] for name, of in parts.items() if len(of) == 3}  # others are of a taskset


def validation_scores(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the scores by taskset out of the metrics ``val/<taskset>/score``."""
    found = [name for name in metrics if name.startswith("val/") and name.endswith("/score")]
    return {name.removeprefix("val/").removesuffix("/score"): metrics[name] for name in found}
