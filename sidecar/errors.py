"""Formats texts of exceptions, models and environments for our own one-line errors."""

from __future__ import annotations

import re
import traceback

LONGEST = 300


def first_line(error: BaseException) -> str:
    """Returns the first line of an error, up to 300 characters; its type where it has no text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:LONGEST]


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters that a terminal executes, but for tabs and line ends; unpaired surrogates."""


def printable(text: str) -> str:
    """Returns a text of a model, an environment or an exception with its control characters written as escapes."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def worth_a_line(count: int) -> bool:
    """Returns whether what has happened so often is said again: the first time, and at each power of ten."""
    return count == 10 ** (len(str(count)) - 1)


def describe(error: BaseException) -> str:
    """Returns one line: type, message, and the place where the error was raised."""
    text = " ".join(str(error).split())[:LONGEST]
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{place}" if text else f"{type(error).__name__}{place}"
