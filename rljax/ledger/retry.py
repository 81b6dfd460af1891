"""Retries an action with backoff, on errors that pass by themselves."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

LOCK_TIMEOUT = 60.0
"""Seconds that a transaction is tried again, while others hold the lock or the server comes back, before it fails."""

T = TypeVar("T")


def retry(
    action: Callable[[], T],
    passes: Callable[[Exception], bool],
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Runs ``action`` until it succeeds, with jittered backoff of at most a second, for `LOCK_TIMEOUT` seconds.

    Raises:
        Exception: what ``action`` raised last, or raised and does not pass.
    """
    deadline = now() + LOCK_TIMEOUT
    delay = 0.01
    while True:
        try:
            return action()
        except Exception as error:
            if not passes(error) or now() > deadline:
                raise
        sleep(delay * random.uniform(0.5, 1.0))
        delay = min(2 * delay, 1.0)
