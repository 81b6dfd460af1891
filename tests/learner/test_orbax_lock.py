"""One save or load of Orbax's begins at a time, and none waits for ever."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rljax.learner import orbax_lock
from rljax.learner.orbax_lock import alone_in_orbax
from tests.waiting import HANGS


def test_a_save_that_never_ends_is_waited_for_so_long_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """P12: on a disk that hangs."""
    monkeypatch.setattr(orbax_lock, "SECONDS", 0.01)
    begun, freed = threading.Event(), threading.Event()

    def stuck() -> None:
        with alone_in_orbax():
            begun.set()
            freed.wait(HANGS)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(stuck)
        assert begun.wait(HANGS)
        try:
            with pytest.raises(TimeoutError, match=r"waited 0\.01 s for another save"), alone_in_orbax():
                pass
        finally:
            freed.set()
        first.result(HANGS)
    with alone_in_orbax():  # whatever became of the one before
        pass
