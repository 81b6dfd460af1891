"""How long tests wait for what another thread or process does: until it is done, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

HANGS = 300.0
"""Seconds after which what is waited for will not come any more. Half of what pytest gives a whole test, and a hundred
times what any of it takes on a machine with nothing else to do.
"""


def until(condition: Callable[[], object]) -> None:
    """Returns as soon as it holds.

    Raises:
        AssertionError: it never does.
    """
    end = time.monotonic() + HANGS
    while not condition():
        assert time.monotonic() < end, f"waited {HANGS:g} s in vain"
        time.sleep(0.01)
