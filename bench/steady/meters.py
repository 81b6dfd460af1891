"""Meters of constant size: latencies of the ledger's calls, its transactions, and what a process uses."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import psutil

from rljax.ledger.async_database import AsyncDatabase
from rljax.ledger.claims import ClaimResult
from rljax.ledger.database import Database
from rljax.ledger.leases import NoBatchYet
from rljax.ledger.transaction import Transaction

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")

LEAST = 1e-5
"""Seconds: all that is shorter counts as this."""
RATIO = 1.05
"""Of a bin's end to its beginning."""
Bins = dict[int, int]
"""Counts by bin. Bin n holds what took from ``LEAST * RATIO ** n`` seconds to ``RATIO`` times as long."""


def bin_of(seconds: float) -> int:
    """Returns the bin that holds a time."""
    return math.floor(math.log(max(seconds, LEAST) / LEAST) / math.log(RATIO) + 1e-9)


def quantile(bins: Mapping[int, int], share: float) -> float:
    """Returns the seconds (the middle of a bin) that this share of all does not exceed; NaN where there is none."""
    total, seen = sum(bins.values()), 0
    for number in sorted(bins):
        seen += bins[number]
        if seen >= share * total:
            return LEAST * RATIO ** (number + 0.5)
    return math.nan


class Latencies:
    """Latencies by the name of what was called, in bins: their size does not grow with the calls."""

    def __init__(self) -> None:
        self.bins: dict[str, Bins] = {}

    def add(self, name: str, seconds: float) -> None:
        """Counts one."""
        of_name, number = self.bins.setdefault(name, {}), bin_of(seconds)
        of_name[number] = of_name.get(number, 0) + 1


class CountedDatabase(Database):
    """A ledger that counts its transactions.

    Attributes:
        made: transactions by ``read`` and ``write``.
    """

    made: dict[str, int]

    def write(self, body: Callable[[Transaction], T]) -> T:
        """Implements `Database.write`."""
        self._count("write")
        return super().write(body)

    def read(self, body: Callable[[Transaction], T]) -> T:
        """Implements `Database.read`."""
        self._count("read")
        return super().read(body)

    def _count(self, kind: str) -> None:
        if "made" not in self.__dict__:  # the first ones are made while it is opened
            self.made = {"read": 0, "write": 0}
        self.made[kind] += 1


class MeteredLedger(AsyncDatabase):
    """A ledger whose calls are timed: each by itself, and, under ``NAME, queued``, as its caller sees it."""

    def __init__(self, db: Database, latencies: Latencies) -> None:
        super().__init__(db)
        self._latencies = latencies
        self._timed: dict[Callable[..., Any], Callable[..., Any]] = {}

    async def call(self, function: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Implements `AsyncDatabase.call`."""
        asked = time.perf_counter()
        name = ""

        def timed(db: Database) -> T:
            nonlocal name
            began = time.perf_counter()
            result = function(db, *args, **kwargs)
            name = name_of(function, result)
            self._latencies.add(name, time.perf_counter() - began)
            return result

        result = await super().call(timed)
        self._latencies.add(f"{name}, queued", time.perf_counter() - asked)
        return result

    async def call_together(
        self, function: Callable[[Database, Sequence[A]], Sequence[T | Exception]], argument: A
    ) -> T:
        """Implements `AsyncDatabase.call_together`."""

        def timed(db: Database, arguments: Sequence[A]) -> Sequence[T | Exception]:
            began = time.perf_counter()
            results = function(db, arguments)
            self._latencies.add(name_of(function, results), time.perf_counter() - began)
            return results

        asked = time.perf_counter()
        result: T = await super().call_together(self._timed.setdefault(function, timed), argument)
        self._latencies.add(f"{name_of(function, result)}, queued", time.perf_counter() - asked)
        return result


def name_of(function: Callable[..., object], result: object) -> str:
    """Returns the name of a call: one that comes back with nothing has another than one that does."""
    name = getattr(function, "__name__", "call").strip("_")
    nothing = isinstance(result, NoBatchYet) or (isinstance(result, ClaimResult) and not result.claims)
    return f"{name}, nothing yet" if nothing else name


class Diary:
    """Writes what a process has used and measured so far, a line of JSON whenever it is asked to."""

    def __init__(self, path: Path, db: CountedDatabase, latencies: Latencies) -> None:
        self._path = path
        self._db = db
        self._latencies = latencies
        self._process = psutil.Process()

    def write(self, **values: float) -> None:
        """Appends a line."""
        line = {"at": time.time(), **usage([self._process]), **self._db.made, **values, "bins": self._latencies.bins}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def usage(processes: Iterable[psutil.Process]) -> dict[str, float]:
    """Returns the CPU seconds of these processes, user and system, and the MiB that are theirs alone (USS)."""
    cpu = private = 0.0
    for process in processes:
        try:
            times, memory = process.cpu_times(), process.memory_full_info()
        except psutil.NoSuchProcess:
            continue
        cpu, private = cpu + times.user + times.system, private + memory.uss / 2**20
    return {"cpu": cpu, "private_mib": private}


def read_diary(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a diary; a bin's number is text in JSON, and a number again here."""
    lines = []
    for text in path.read_text().splitlines() if path.exists() else ():
        line = json.loads(text)
        line["bins"] = {name: {int(n): count for n, count in bins.items()} for name, bins in line["bins"].items()}
        lines.append(line)
    return lines


def between(first: Mapping[str, Bins], last: Mapping[str, Bins]) -> dict[str, Bins]:
    """Returns what was counted after ``first`` and up to ``last``."""
    return {
        name: {n: left for n, count in bins.items() if (left := count - first.get(name, {}).get(n, 0))}
        for name, bins in last.items()
    }


def merged(parts: Iterable[Mapping[str, Bins]]) -> dict[str, Bins]:
    """Returns the counts of several processes, added up."""
    total: dict[str, Bins] = {}
    for part in parts:
        for name, bins in part.items():
            of_name = total.setdefault(name, {})
            for n, count in bins.items():
                of_name[n] = of_name.get(n, 0) + count
    return total
