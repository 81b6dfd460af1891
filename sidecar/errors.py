"""Errors of others, as part of a line of ours."""

from __future__ import annotations

LONGEST = 300


def first_line(error: BaseException) -> str:
    """What an error says in its first line, up to 300 characters; its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:LONGEST]
