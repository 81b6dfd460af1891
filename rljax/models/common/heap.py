"""Memory that the C library keeps after it was freed."""

from __future__ import annotations

import contextlib
import ctypes


def return_freed() -> None:
    """Gives the system back what was freed, where the C library is glibc; elsewhere does nothing.

    XLA's compiler makes hundreds of MiB of small objects for a program and frees them in between each other. glibc
    keeps such pages for more of the same; the arrays of a step are too large to be put there.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
