"""Formats texts of exceptions, models and environments for our own one-line errors and logs."""

from __future__ import annotations

import logging
import re
import traceback
from typing import Any

LONGEST = 300


def first_line(error: BaseException) -> str:
    """Returns the first line of an error, up to 300 characters, escaped; its type where it has no text."""
    return printable((str(error).strip() or type(error).__name__).splitlines()[0][:LONGEST])


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters that a terminal executes, but for tabs and line ends; unpaired surrogates."""


def printable(text: str) -> str:
    """Returns a text of a model, an environment or an exception with its control characters written as escapes."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def escape_exception(error: BaseException) -> None:
    """Escapes the texts of an exception, and of those that led to it, for whoever prints its traceback."""
    found: list[BaseException | None] = [error]
    seen = set()
    while found:
        each = found.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        each.args = tuple(printable(text) if isinstance(text, str) else text for text in each.args)
        found += [each.__cause__, each.__context__, *(each.exceptions if isinstance(each, BaseExceptionGroup) else ())]


def worth_a_line(count: int) -> bool:
    """Returns whether what has happened so often is said again: the first time, and at each power of ten."""
    return count == 10 ** (len(str(count)) - 1)


def describe(error: BaseException) -> str:
    """Returns one line: type, escaped message, and the place where the error was raised."""
    text = printable(" ".join(str(error).split())[:LONGEST])
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{place}" if text else f"{type(error).__name__}{place}"


class _EscapedRecord(logging.LogRecord):
    """Record of ours, whose text and traceback no handler can write unescaped."""

    def getMessage(self) -> str:
        if self.exc_info and not self.exc_text:
            self.exc_text = printable(logging.Formatter().formatException(self.exc_info))
        return printable(super().getMessage())


def escape_log_records() -> None:
    """Has what rljax, sidecar and envs log reach every handler with its control characters escaped; others' records
    are made as before.
    """
    make = logging.getLogRecordFactory()
    if getattr(make, "escapes", False):
        return

    def record(name: str | None, *arguments: Any, **options: Any) -> logging.LogRecord:
        made = make(name, *arguments, **options)
        ours = (name or "").partition(".")[0] in ("rljax", "sidecar", "envs")  # logging.makeLogRecord gives none
        if ours:
            made.__class__ = _EscapedRecord  # and all that the program's own factory has put into it stays
        return made

    record.escapes = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(record)
