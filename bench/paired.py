"""Paired measurement of two programs: each in a process of its own, by turns, compared pair by pair.

A program that runs does not share its process, its threads or its allocator with the other one, which stands still
meanwhile. Turns alternate (A B A B), so that whatever else the machine does falls on both; the figure that counts is
the median over the pairs of one turn's time over its neighbour's.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import psutil
from rich import box
from rich.console import Console
from rich.table import Table

from bench.machine import commit as commit
from bench.machine import processor as processor

CORES = 2
"""Cores that each program may use; the targets are for two."""
REST_SECONDS = 0.3
"""Pause between turns, in which the idle threads of the last one stop spinning."""
ANSWER_SECONDS = 1800.0
"""Longest that one answer may take."""

Answer = Callable[[dict[str, Any]], Any]


class Side:
    """Runs one of the two programs in its own process, started by a module-level function that
    returns its request handler.
    """

    def __init__(self, name: str, start: Callable[[], Answer]) -> None:
        """Starts the process; ``start`` is called in it, on `CORES` cores, before anything heavy is imported there."""
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_live, args=(theirs, start), name=name, daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, **request: Any) -> Any:
        """Sends a request and returns the answer.

        Raises:
            RuntimeError: the program raised or died, or said nothing for `ANSWER_SECONDS`.
        """
        try:
            self._pipe.send(request)
            if not self._pipe.poll(ANSWER_SECONDS):
                raise RuntimeError(f"{self.name}: no answer to {request} within {ANSWER_SECONDS:.0f} s")
            value, error = self._pipe.recv()
        except (EOFError, ConnectionError):
            raise RuntimeError(f"{self.name}: died over {request}; is there enough memory?") from None
        if error is not None:
            raise RuntimeError(f"{self.name}: {request}: {error}")
        return value

    def close(self) -> None:
        """Ends the process."""
        self._pipe.close()
        self._process.join(10)
        self._process.kill()


@dataclass(frozen=True)
class Pairs:
    """Seconds of both sides, turn by turn."""

    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def speed(self) -> float:
        """Computes how many times faster ours is: the median over the pairs."""
        return statistics.median(b / a for a, b in zip(self.ours, self.theirs, strict=True))

    @property
    def spread(self) -> tuple[float, float]:
        """The smallest and largest ratio of a pair."""
        ratios = [b / a for a, b in zip(self.ours, self.theirs, strict=True)]
        return min(ratios), max(ratios)


def alternate(ours: Side, theirs: Side, pairs: int, uncounted: int = 0, **request: Any) -> Pairs:
    """Sends both the same request by turns; each answer is the seconds it took. The first turn of each is warm-up.

    A turn begins with so many ``uncounted`` answers. A virtual machine gives the free memory of whoever stands still
    back to its host, within seconds; the first to need it again waits for it, which a program that works does not.
    """
    times: dict[str, list[float]] = {ours.name: [], theirs.name: []}
    for turn in range(pairs + 1):
        for side in (ours, theirs):
            time.sleep(REST_SECONDS)
            for _ in range(uncounted):
                side.ask(**request)
            seconds = float(side.ask(**request))
            if turn:
                times[side.name].append(seconds)
    return Pairs(tuple(times[ours.name]), tuple(times[theirs.name]))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a table in Markdown, ready for RESULTS.md."""
    table = Table(*columns, title=title, box=box.MARKDOWN, title_justify="left")
    for row in rows:
        table.add_row(*(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row))
    Console(width=200).print(table)


def pair_row(case: str, unit: str, amount: float, pairs: Pairs, target: str) -> list[object]:
    """Returns a row of `PAIR_COLUMNS`: medians as ``amount`` per second, and the ratio."""
    low, high = pairs.spread
    ours, theirs = (amount / statistics.median(times) for times in (pairs.ours, pairs.theirs))
    return [case, unit, ours, theirs, f"{pairs.speed:.2f} ({low:.2f}–{high:.2f})", len(pairs.ours), target]


PAIR_COLUMNS = ("case", "unit", "rljax", "torch", "ratio (smallest–largest)", "pairs", "target")


def print_machine() -> None:
    """Prints the machine and the commit that are measured, with a note where the machine is too
    busy for its numbers to count.
    """
    # Not the load average: it still counts the bench before this one.
    busy = psutil.cpu_percent(interval=3.0)
    state = "quiet" if busy < 15 else f"BUSY ({busy:.0f}% used): these numbers are not to be reported as they are"
    there = (name for name in ("jax", "torch", "transformers") if importlib.util.find_spec(name))
    packages = " ".join(f"{name} {importlib.metadata.version(name)}" for name in there)
    print(f"machine: {processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, {packages}; {state}")
    print(f"commit: {commit()}", flush=True)


def _live(pipe: Connection, start: Callable[[], Answer]) -> None:
    # Thread pools are sized when their library is loaded, by the cores that this process may use.
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    os.environ.update(OMP_NUM_THREADS=str(CORES), TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
    answer = start()
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((answer(request), None))
        except Exception as error:
            pipe.send((None, f"{type(error).__name__}: {error}"))
            raise
