"""The garbage collector of a process: at rest while packages are imported, and seldom at work after that."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

MADE = 20_000
"""Containers made and not freed, after which the collector looks at the youngest. By Python's 700 it goes through all
that JAX has traced, a million containers, every few steps, and all threads stand still meanwhile.
"""


@contextlib.contextmanager
def uncollected_imports() -> Iterator[None]:
    """Pauses the garbage collector of a process that begins with imports, and has it pass over what is there after.

    Modules stay until the process ends; the collector, which goes through all of them again and again while they grow,
    takes a quarter of the time of their import.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def collected_seldom() -> Iterator[None]:
    """Has the collector of this process look once `MADE` containers are new, unless it looks less often already."""
    before = gc.get_threshold()
    if 0 < before[0] < MADE:
        gc.set_threshold(MADE, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
