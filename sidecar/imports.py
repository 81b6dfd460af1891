"""Imports of large packages without the garbage collector."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


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
