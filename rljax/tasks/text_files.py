"""Rows of a text file, JSON Lines or CSV, read from disk on demand: memory holds their offsets, not their text."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from rljax.tasks.rows import Columns, Problem, counted
from rljax.tasks.task import BadRow

_BOM = b"\xef\xbb\xbf"
_BLANK = object()
_BEGINNING = 1 << 20
"""Bytes of a file in which its first row is looked for."""


class TextRows:
    """Usable rows of a file. Blank lines are no rows. The first record of a CSV file names its columns.

    Every row is checked once, here, so that a bad one is found before the run starts and not in its third hour. What is
    compressed, or one JSON array, is kept in memory.

    Args:
        path: the file; its name ends with one of `rljax.config.tasksets.TEXT_FILES`.
        columns: where prompt and answer are.
        on_bad_row: ``fail`` raises at the first bad row, ``skip`` counts it in `bad_rows`.
        needed: usable rows after which reading stops; None: all.

    Raises:
        BadRow: with ``fail``, naming file and line (counted from 1; of a JSON array, the row); the header of a CSV
            file is none, or the array no JSON.
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path, columns: Columns, on_bad_row: str, needed: int | None = None) -> None:
        self._path = path
        self._columns = columns
        self._kept = _decompressed(path)
        self._place = f"{path}:"
        plain = path.name.removesuffix(".gz")
        if plain.endswith(".json") and (array_of := _json_array(path, self._kept)) is not None:
            self._kept, self._place = array_of, f"{path}: row "
        self._offsets = array("q")
        self._lines = array("q")
        self.bad_rows = 0
        self.other_tags: set[str] = set()
        self.first_bad_row: BadRow | None = None
        with self._open() as file:
            lines = _Lines(file, 0, 1)
            self._parse: Callable[[_Lines, str], object] = _json_row
            if plain.endswith(".csv"):
                self._parse = partial(_csv_row, _header(lines, f"{path}:1"))
            self._scan(lines, on_bad_row, needed)

    def __len__(self) -> int:
        return len(self._offsets)

    def problem(self, index: int) -> Problem:
        """Reads one row.

        Raises:
            BadRow: the file has changed since it was loaded.
        """
        with self._open() as file:
            number = self._lines[index]
            row = self._parse(_Lines(file, self._offsets[index], number), self._where(number))
            if row is _BLANK:
                raise BadRow(f"{self._where(number)}: no row is there any more: the file has changed")
            return self._columns.problem(row, self._where(number))

    def _open(self) -> BinaryIO:
        return self._path.open("rb") if self._kept is None else io.BytesIO(self._kept)

    def _where(self, number: int) -> str:
        return f"{self._place}{number}"

    def _scan(self, lines: _Lines, on_bad_row: str, needed: int | None) -> None:
        for offset, number in counted(lines.places(), str(self._path)):
            if len(self) == needed:
                return
            where = self._where(number)
            try:
                row = self._parse(lines, where)
                if row is _BLANK:
                    continue
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
                self._offsets.append(offset)
                self._lines.append(number)


def first_row(path: Path) -> object:
    """Returns the first row of a file, of CSV its columns without values; None where its beginning does not tell."""
    plain = path.name.removesuffix(".gz")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            start = file.read(_BEGINNING)
        if plain.endswith(".csv"):
            return dict.fromkeys(_header(_Lines(io.BytesIO(start), 0, 1), str(path)), "")
        text = start.removeprefix(_BOM).decode("utf-8", "ignore").lstrip()
        of_array = plain.endswith(".json") and text.startswith("[")
        return json.JSONDecoder().raw_decode(text[1:].lstrip() if of_array else text.partition("\n")[0])[0]
    except (OSError, EOFError, zlib.error, ValueError, RecursionError):
        return None


class _Lines:
    """Lines of a file from an offset on, and where the next one is."""

    def __init__(self, file: BinaryIO, offset: int, number: int) -> None:
        file.seek(offset)
        self._file, self._next = file, file.readline()
        self._offset, self._number = offset, number

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        line = self._next
        if not line:
            raise StopIteration
        self._next = self._file.readline()
        self._offset, self._number = self._offset + len(line), self._number + 1
        return line

    def places(self) -> Iterator[tuple[int, int]]:
        """Yields offset and number of the next line until there is none; who asks reads it meanwhile."""
        while self._next:
            yield self._offset, self._number


def _decompressed(path: Path) -> bytes | None:
    """Returns the content of a compressed file; None for one that is not.

    Raises:
        OSError: it cannot be read, or is not compressed by gzip.
    """
    if path.suffix != ".gz":
        return None
    try:
        return gzip.decompress(path.read_bytes())
    except (EOFError, zlib.error) as error:
        raise gzip.BadGzipFile(f"damaged: {error}") from error


def _json_array(path: Path, kept: bytes | None) -> bytes | None:
    """Returns the elements of a JSON array, a line each; None for a file that is none."""
    with path.open("rb") if kept is None else io.BytesIO(kept) as file:
        if not file.read(1024).removeprefix(_BOM).lstrip().startswith(b"["):
            return None
        file.seek(0)
        elements = _parsed(file.read(), str(path))
    if not isinstance(elements, list):
        raise BadRow(f"{path}: a {type(elements).__name__}, not a list of rows")
    return b"".join(json.dumps(element).encode() + b"\n" for element in elements)


def _json_row(lines: _Lines, where: str) -> object:
    line = next(lines, b"")
    return _parsed(line, where) if line.strip() else _BLANK


def _parsed(text: bytes, where: str) -> object:
    try:
        row = json.loads(text.removeprefix(_BOM).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadRow(f"{where}: not UTF-8 (byte {error.start + 1} of the line: {error.reason})") from error
    except (ValueError, RecursionError) as error:
        raise BadRow(f"{where}: not JSON ({error})") from error
    if b"\\u" in text:
        _check_surrogates(row, where)
    return row


def _check_surrogates(row: object, where: str) -> None:
    """Refuses unpaired surrogates, which JSON can spell and Python can hold, but which cannot be encoded."""
    try:
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise BadRow(f"{where}: not Unicode text ({half} is half of a surrogate pair)") from error


def _header(lines: _Lines, where: str) -> Sequence[str]:
    names = _cells(lines, where)
    if names:
        names[0] = names[0].removeprefix("\ufeff")
    if not names or len(set(names)) < len(names):
        raise BadRow(f"{where}: a CSV file begins with the names of its columns, each once; here are {names}")
    return names


def _csv_row(names: Sequence[str], lines: _Lines, where: str) -> object:
    cells = _cells(lines, where)
    if cells and len(cells) != len(names):
        raise BadRow(f"{where}: {len(cells)} cells, where the first line names {len(names)} columns")
    return dict(zip(names, cells, strict=True)) if cells else _BLANK


def _cells(lines: _Lines, where: str) -> list[str]:
    """Reads one record, which may have several lines; an empty list for a blank line."""
    try:
        return next(csv.reader((line.decode("utf-8") for line in lines), strict=True), [])
    except UnicodeDecodeError as error:
        raise BadRow(f"{where}: not UTF-8 (byte {error.start + 1} of a line: {error.reason})") from error
    except csv.Error as error:
        raise BadRow(f"{where}: not CSV ({error})") from error
