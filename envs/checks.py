"""Checks of the environments' arguments, each failing in one line that names the argument."""

from __future__ import annotations

from typing import Any


def whole(name: str, value: Any, at_least: int) -> int:
    """Returns ``value``, if it is a whole number that is large enough."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, not {value}")
    return value


def number(name: str, value: Any) -> float:
    """Returns ``value`` as a float, if it is a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, not {value!r}")
    return float(value)


def flag(name: str, value: Any) -> bool:
    """Returns ``value``, if it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return value


def text(name: str, value: Any) -> str:
    """Returns ``value``, if it is a text that is not blank."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a text, not {value!r}")
    if not value.strip():
        raise ValueError(f"{name} must not be empty")
    return value


def texts(name: str, value: Any) -> tuple[str, ...]:
    """Returns ``value`` as a tuple, if it is a list or tuple of texts that differ in more than case."""
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise TypeError(f"{name} must be a list of texts, not {value!r}")
    if not value or len({one.strip().lower() for one in value} | {""}) != len(value) + 1:
        raise ValueError(f"{name} must hold at least one text, all different and none empty, not {value!r}")
    return tuple(value)


def options(name: str, value: Any) -> dict[str, Any]:
    """Returns ``value`` as a dictionary with texts as keys; empty for None."""
    if value is None:
        return {}
    if not hasattr(value, "items") or not all(isinstance(key, str) for key, _ in value.items()):
        raise TypeError(f"{name} must be a mapping with texts as keys, not {value!r}")
    return dict(value.items())
