"""Holds the rows of a translation to one another: a key of ours has one value, whichever keys and files say it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence

from rljax.config.fields import shown
from rljax.config.importers.translation import Row


def agreeing(rows: Sequence[Row], of_each: Collection[str] = ()) -> list[Row]:
    """Returns the rows, those refused that contradict one before. What depends on a key in which the files of a pair
    differ is refused for that key.

    Args:
        rows: of one file, or of both of a pair.
        of_each: paths that each file of a pair says for itself.
    """
    differing = {row.where: other for row, other in _differing(rows, of_each)}
    said: dict[str, Row] = {}
    held: list[Row] = []
    for row in rows:
        other = differing.get(row.where)
        if row.given and other is not None:
            held.append(_refused_for(row, other))
        elif row.given and (key := _said_otherwise(row, said)):
            held.append(_contradicting(row, key, said[key]))
        else:
            held.append(row)
            said |= {key: row for key in row.here if row.given and key not in said}
    causes = [row for row in held if row.where in differing]
    return [row if row.where in differing else _derived(row, causes, held) for row in held]


def _differing(rows: Sequence[Row], of_each: Collection[str]) -> Iterator[tuple[Row, Row]]:
    """Yields the keys of a pair's second file of which the first has another value, each with that row."""
    first = {row.path: row for row in rows if row.given and rows and row.file == rows[0].file}
    for row in rows:
        other = first.get(row.path)
        if other and row.given and row.file != other.file and row.path not in of_each and _differ(row, other):
            yield row, other


def _differ(row: Row, other: Row) -> bool:
    """Returns whether two rows of a key contradict each other. Of a value that is wrong by itself nobody knows."""
    if row.near or other.near:
        return not (_wrong(row) or _wrong(other)) and _as_meant(row).here != _as_meant(other).here
    if row.value == other.value or _wrong(row) or _wrong(other):
        return False
    if row.refused or other.refused:  # for what stands beside it
        return bool(row.here or other.here)
    return bool(row.here and other.here) and row.here != other.here


def _wrong(row: Row) -> bool:
    return row.refused and row.of in ("", row.path) and not _as_meant(row).here


def _as_meant(row: Row) -> Row:
    """Returns a row that is refused for a value that is near another as that other's."""
    if not row.near:
        return row
    return dataclasses.replace(row, value=row.near, here=row.meant, refused=False, near="", meant={})


def _said_otherwise(row: Row, said: dict[str, Row]) -> str:
    """Returns the first key of a row that another says with another value; empty: there is none."""
    return next((key for key, value in row.here.items() if key in said and said[key].here[key] != value), "")


def _refused_for(row: Row, other: Row) -> Row:
    """Returns a row refused that differs from the other file's of the same key: in a key of ours that has its value,
    or in one alone; else, as for a name that stands for several keys, in its own. One that is refused itself says both.
    """
    other = _as_meant(other)
    if row.near:
        held = _refused_for(_as_meant(row), other)
        return dataclasses.replace(held, value=row.value, remark=f"{row.remark}; {held.remark}", keys=row.keys)
    keys = [key for key, value in row.here.items() if other.here.get(key, value) != value] or [*row.here, *other.here]
    meant = [key for key in keys if all(one.here[key] == one.value for one in (row, other) if key in one.here)]
    held = _contradicting(row, (meant or keys)[0], other, in_ours=bool(meant) or len(keys) == 1)
    if not list(row.here) == list(other.here) == list(held.keys):
        return held
    return dataclasses.replace(held, remark=f"{held.remark}, or write --config.{held.keys[0]}")


def _contradicting(row: Row, key: str, other: Row, in_ours: bool = True) -> Row:
    """Returns a row refused that would give a key another value than the other row does."""
    if in_ours and key in row.here and key in other.here:
        why = f"{key} would be {shown(row.here[key])}, and by {other.where} it is {shown(other.here[key])}"
    else:
        why = f"by {other.where} it is {shown(other.value)}"
    unsaid = tuple(dict.fromkeys((*row.here, *row.unsaid)))
    return dataclasses.replace(
        row, here={}, remark=f"{why}; make them agree", refused=True, keys=(key,), unsaid=unsaid, of=""
    )


def _derived(row: Row, causes: Sequence[Row], rows: Sequence[Row]) -> Row:
    """Returns a row as one that is refused for the first of these rows that it depends on: a refused one, and one that
    makes keys of ours, which the other file does not say, of what its own has there.
    """
    cause = next((cause for cause in causes if cause.path in row.read), None)
    if cause is None or row.refused:
        return dataclasses.replace(row, of=cause.where) if cause else row
    elsewhere = {key for other in rows if other.file != row.file for key in (*other.here, *other.keys)}
    alone = tuple(key for key in row.here if key not in elsewhere)
    if not alone or row.file != cause.file:
        return row
    here = {key: row.here[key] for key in row.here if key in elsewhere}
    return dataclasses.replace(
        row, here=here, remark=cause.remark, refused=True, keys=alone, unsaid=alone, of=cause.where
    )
