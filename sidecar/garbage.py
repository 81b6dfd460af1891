"""The garbage collector of a process: at rest while packages are imported, and seldom at work after that."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

FULL = 100
"""Collections of the middle generation before one of all objects. By Python's 10 a run goes through all that JAX has
traced, a million containers, every few steps, and all threads stand still meanwhile.
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


def collect_seldom() -> None:
    """Has the collector of this process go through all objects after `FULL` collections of the younger ones: these stay
    as frequent as they are, and with them the arrays go that JAX lets go of at a collection.
    """
    youngest, middle, oldest = gc.get_threshold()
    gc.set_threshold(youngest, middle, max(oldest, FULL))
