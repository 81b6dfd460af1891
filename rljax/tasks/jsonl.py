"""Rows of a JSON Lines file, read from disk on demand: memory holds their offsets, not their text."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

from rljax.tasks.rows import Columns, Problem, counted
from rljax.tasks.task import BadRow

_BOM = b"\xef\xbb\xbf"


class JsonlRows:
    """Usable rows of a file. Blank lines are no rows.

    Every row is checked once, here, so that a bad one is found before the run starts and not in its third hour.

    Args:
        path: the file.
        columns: where prompt and answer are.
        on_bad_row: ``fail`` raises at the first bad row, ``skip`` counts it in `bad_rows`.
        needed: usable rows after which reading stops; None: all.

    Raises:
        BadRow: with ``fail``, naming file and line (counted from 1).
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path, columns: Columns, on_bad_row: str, needed: int | None = None) -> None:
        self._path = path
        self._columns = columns
        self._offsets = array("q")
        self._lines = array("q")
        self.bad_rows = 0
        self.other_tags: set[str] = set()
        self.first_bad_row: BadRow | None = None
        self._scan(on_bad_row, needed)

    def __len__(self) -> int:
        return len(self._offsets)

    def problem(self, index: int) -> Problem:
        """Reads one row.

        Raises:
            BadRow: the file has changed since it was loaded.
        """
        with self._path.open("rb") as file:
            file.seek(self._offsets[index])
            row, where = self._row(file.readline(), self._lines[index])
            return self._columns.problem(row, where)

    def _scan(self, on_bad_row: str, needed: int | None) -> None:
        offset = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(counted(file, str(self._path)), 1):
                if len(self) == needed:
                    return
                start, offset = offset, offset + len(line)
                if not line.strip():
                    continue
                try:
                    row, where = self._row(line, number)
                    if others := self._columns.other_tags(row, where):
                        self.other_tags |= others
                        continue
                    self._columns.problem(row, where)
                except BadRow as error:
                    if on_bad_row == "fail":
                        raise
                    self.first_bad_row = self.first_bad_row or error
                    self.bad_rows += 1
                else:
                    self._offsets.append(start)
                    self._lines.append(number)

    def _row(self, line: bytes, number: int) -> tuple[object, str]:
        where = f"{self._path}:{number}"
        try:
            row = json.loads(line.removeprefix(_BOM).decode("utf-8"))
        except UnicodeDecodeError as error:
            raise BadRow(f"{where}: not UTF-8 (byte {error.start + 1} of the line: {error.reason})") from error
        except (ValueError, RecursionError) as error:
            raise BadRow(f"{where}: not JSON ({error})") from error
        if b"\\u" in line:
            _check_surrogates(row, where)
        return row, where


def _check_surrogates(row: object, where: str) -> None:
    """Refuses unpaired surrogates, which JSON can spell and Python can hold, but which cannot be encoded."""
    try:
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise BadRow(f"{where}: not Unicode text ({half} is half of a surrogate pair)") from error
