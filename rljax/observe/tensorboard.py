"""Writes TensorBoard events, without TensorBoard."""

from __future__ import annotations

import contextlib
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rljax.observe.tracking import BINS, Entry


@contextlib.contextmanager
def _absent(package: str) -> Iterator[None]:
    """Hides an installed package from all threads, unless it is imported already."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if sys.modules[package] is None:  # no thread was amid its import
            del sys.modules[package]


# torch would be imported for tensors that nobody logs: seconds of CPU, and 178 MiB. It is hidden here, as the program
# starts and imports what it consists of, because nobody's code runs yet that might ask for it.
with _absent("torch"):
    from tensorboardX import SummaryWriter


class TensorBoard:
    """Implements `rljax.observe.tracking.Sink` by event files in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: Any = None

    def write(self, entry: Entry) -> None:
        """Writes scalars, histograms and texts."""
        self._writer = self._writer or self._open(None)
        for name, value in entry.scalars.items():
            self._writer.add_scalar(name, value, entry.step, walltime=entry.at)
        for name, values in entry.histograms.items():
            self._writer.add_histogram(name, values, entry.step, bins=BINS, walltime=entry.at)
        for name, text in entry.texts.items():  # it is read as Markdown
            self._writer.add_text(name, textwrap.indent(text, "    ", lambda line: True), entry.step, entry.at)

    def purge(self, step: int) -> None:
        """Hides what was written for ``step`` and later, by an earlier process too."""
        self.close()
        self._writer = self._open(step)

    def close(self) -> None:
        """Closes the event file."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def _open(self, purge_step: int | None) -> Any:
        # Of two writers that open within one second, the second would overwrite the first without a suffix.
        suffix = f".{time.time_ns()}"
        return SummaryWriter(str(self._directory), purge_step=purge_step, flush_secs=10, filename_suffix=suffix)
