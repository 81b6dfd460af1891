"""Memory that the C library keeps after it was freed."""

from __future__ import annotations

import contextlib
import ctypes

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of glibc's malloc.h


def return_freed() -> None:
    """Gives the system back what was freed, where the C library is glibc; elsewhere does nothing.

    XLA's compiler makes hundreds of MiB of small objects for a program and frees them in between each other. glibc
    keeps such pages for more of the same; the arrays of a step are too large to be put there.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def map_large() -> None:
    """Has the system take back at once, where the C library is glibc, what is freed of arrays of a MiB or more.

    glibc keeps freed blocks of up to 32 MiB, once it has met such, between what is held. Weights that replace each
    other leave holes there: 2 GiB beside 5 GiB of arrays, of a learner and an engine of 135M parameters.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 20)
