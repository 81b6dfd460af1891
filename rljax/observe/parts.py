"""Parts of a step's work, noted where the work is done and recorded by whoever asked for it.

`recorded` says who takes the parts that the code below it notes, in this thread and for this call alone; where nobody
has asked, a note costs a look-up. So a room that packs or writes needs no observer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

Record = Callable[[str, float, float], None]
"""Takes the name of a part, its start and its end, in Unix seconds."""

PACK, ADVANTAGES, SCORE, PLACE, UPDATE = "pack", "advantages", "score the batch", "place", "update"
GATHER, CHECKSUM, WRITE, PROBE = "gather weights", "checksum", "write a version", "score the probe"
BEFORE, BEFORE_SAVE = "wait for the version before", "wait for the version before a checkpoint"
ASK = "ask the teacher"  # and its name
LEDGER, COMPILE, HOSTS, REPORT, CHECKPOINT = "ledger", "compile", "wait for hosts", "report", "checkpoint"
"""Names of the learner's parts."""

_record: ContextVar[Record | None] = ContextVar("parts", default=None)


@contextlib.contextmanager
def recorded(record: Record | None) -> Iterator[None]:
    """Has ``record`` take what is noted inside, in this thread."""
    token = _record.set(record)
    try:
        yield
    finally:
        _record.reset(token)


@contextlib.contextmanager
def summed() -> Iterator[dict[str, float]]:
    """Yields the seconds of what is noted inside, by name, as they add up; who takes the parts takes these too."""
    spent: dict[str, float] = {}
    outer = _record.get()

    def add(name: str, begin: float, end: float) -> None:
        spent[name] = spent.get(name, 0.0) + end - begin
        if outer is not None:
            outer(name, begin, end)

    with recorded(add):
        yield spent


def note(name: str, begin: float) -> None:
    """Notes a part that began at ``begin`` (Unix seconds) and ends now."""
    if (record := _record.get()) is not None:
        record(name, begin, time.time())


@contextlib.contextmanager
def part(name: str) -> Iterator[None]:
    """Notes what is done inside as a part, also where it fails."""
    begin = time.time()
    try:
        yield
    finally:
        note(name, begin)
