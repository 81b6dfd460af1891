"""States of other libraries' games as text: the same in every process, whatever order sets come in."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np


def canonical(value: Any) -> str:
    """Equal values give equal texts. Of an object without a representation of its own, the type is all that counts."""
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
