"""Virtual runs cost what they compute: their ledgers are in memory, and nobody looks again and again for nothing."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljax.ledger.notify import Notifier
from tests.ledger.builders import fast_directory


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory in memory where the machine has such a place: nothing here is about disks."""
    directory = fast_directory()
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for the ledger looks again twice a second, not ten times: nearly all of it would be for changes by
    other processes, and here there are none.
    """
    monkeypatch.setattr(Notifier, "wait_async", functools.partialmethod(Notifier.wait_async, at_most=0.5))
