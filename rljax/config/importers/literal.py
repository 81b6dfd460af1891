"""Writes values as Python literals, for config files that people read and change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_WIDTH, _STEP = 120, 4


def literal(value: Any, column: int = 0, indent: int = 0) -> str:
    """Returns the literal of a value, in lines of at most 120 characters with a comma behind.

    Args:
        value: of dicts, lists, tuples, texts, numbers and None.
        column: where it begins.
        indent: of the line on which it begins.
    """
    flat = repr(value)
    if column + len(flat) < _WIDTH or not isinstance(value, dict | list | tuple | str):
        return flat
    below = indent + _STEP
    if isinstance(value, dict):
        items = [f"{key!r}: {literal(item, below + len(repr(key)) + 2, below)}," for key, item in value.items()]
    elif isinstance(value, str):
        items = [repr(piece) for piece in _pieces(value, _WIDTH - below)]
    else:
        items = [f"{literal(item, below, below)}," for item in value]
    opening, closing = {dict: ("{", "}"), list: ("[", "]")}.get(type(value), ("(", ")"))
    return "\n".join([opening, *(" " * below + item for item in items), " " * indent + closing])


def _pieces(text: str, width: int) -> Iterator[str]:
    """Yields the parts of a text whose literals have that width at most; of one without spaces they end in a word."""
    piece = ""
    for word in re.findall(r"\s{0,9}\S{1,20}|\s{1,9}", text):
        if piece and len(repr(piece + word)) > width:
            yield piece
            piece = ""
        piece += word
    yield piece
