"""Canonical text of other libraries' game states: the same in every process, whatever order sets come in."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np


def canonical(value: Any) -> str:
    """Returns equal texts for equal values. Of an object without a representation of its own, only the type counts."""
    if isinstance(value, np.ndarray | np.generic):
        return canonical(value.tolist())
    if isinstance(value, Mapping):
        return "{" + ", ".join(sorted(f"{canonical(key)}: {canonical(one)}" for key, one in value.items())) + "}"
    if isinstance(value, Set):
        return "{" + ", ".join(sorted(map(canonical, value))) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(canonical, value)) + "]"
    if type(value).__repr__ is object.__repr__:
        return type(value).__name__
    return repr(value)
