"""Rows of a table: a Parquet file, or a data set of the Hugging Face hub."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rljax.config.validate import ConfigError
from rljax.tasks.rows import Columns, Problem, counted, nearest
from rljax.tasks.task import BadRow
from sidecar.extras import install_command

_SCAN = 1024


class TableRows:
    """Usable rows of a table. Rows are named by their number, counted from 1.

    Args:
        name: file or data set, for messages.
        scan: yields of every row, in order, the columns that are checked.
        read: the whole row at a place.
        columns: where prompt and answer are.
        on_bad_row: ``fail`` raises at the first bad row, ``skip`` counts it in `bad_rows`.
        needed: usable rows after which the scan stops; None: all.

    Raises:
        BadRow: with ``fail``, naming file and row.
    """

    def __init__(
        self,
        name: str,
        scan: Iterator[Mapping[str, Any]],
        read: Callable[[int], Mapping[str, Any]],
        columns: Columns,
        on_bad_row: str,
        needed: int | None = None,
    ) -> None:
        self._name = name
        self._read = read
        self._columns = columns
        self._places = array("q")
        self.bad_rows = 0
        self.other_tags: set[str] = set()
        self.first_bad_row: BadRow | None = None
        for place, row in enumerate(counted(scan, name)):
            if len(self) == needed:
                return
            try:
                if others := columns.other_tags(row, self._where(place)):
                    self.other_tags |= others
                    continue
                columns.problem(row, self._where(place))
            except BadRow as error:
                if on_bad_row == "fail":
                    raise
                self.first_bad_row = self.first_bad_row or error
                self.bad_rows += 1
            else:
                self._places.append(place)

    def __len__(self) -> int:
        return len(self._places)

    def problem(self, index: int) -> Problem:
        """Reads the row at an index.

        Raises:
            BadRow: another column, which was not read before, is no UTF-8 text.
        """
        place = self._places[index]
        try:
            row = self._read(place)
        except UnicodeDecodeError as error:
            raise BadRow(f"{self._where(place)}: not UTF-8 ({error.reason}) in one of its other columns") from error
        return self._columns.problem(row, self._where(place))

    def _where(self, place: int) -> str:
        return f"{self._name}: row {place + 1}"


def parquet_rows(path: Path, columns: Columns, on_bad_row: str, key: str, needed: int | None = None) -> TableRows:
    """Opens a Parquet file; its columns stay in memory as Arrow buffers.

    Args:
        key: config path of the taskset, for messages.

    Raises:
        ConfigError: it is no Parquet file, or a column is missing.
        BadRow: see `TableRows`.
        OSError: the file cannot be read.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowInvalid as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{key}.source={str(path)!r}: not a Parquet file ({reason})") from error
    _check_columns(columns, table.column_names, key)
    scanned = [
        number  # two columns may have one name
        for number, name in enumerate(table.column_names)
        if name in columns.scanned() or _damaged(table.column(number))
    ]
    batches = table.select(scanned).to_batches(max_chunksize=_SCAN)
    scan = (row for batch in batches for row in _plain_rows(batch))
    return TableRows(str(path), scan, lambda place: table.slice(place, 1).to_pylist()[0], columns, on_bad_row, needed)


def _damaged(column: Any) -> bool:
    """Returns whether a value of an Arrow column is not what its type says, such as text that is no UTF-8."""
    import pyarrow

    try:
        column.validate(full=True)
    except pyarrow.ArrowInvalid:
        return True
    return False


def _plain_rows(batch: Any) -> list[dict[str, Any]]:
    """Returns the rows of an Arrow batch; in the place of text that is no UTF-8 stands the error, for `Columns`."""

    def plain(value: Any) -> Any:
        try:
            return value.as_py()
        except UnicodeDecodeError as error:
            return error

    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except UnicodeDecodeError:
        columns = [[plain(value) for value in column] for column in batch.columns]
        rows = [dict(zip(batch.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]
    return rows


def hub_rows(
    dataset_id: str,
    subset: str | None,
    split: str,
    columns: Columns,
    on_bad_row: str,
    key: str,
    needed: int | None = None,
) -> TableRows:
    """Loads a data set of the Hugging Face hub, or its cached copy; rows stay in memory-mapped files.

    Raises:
        ConfigError: the package `datasets` is missing; the hub cannot be reached and nothing is cached; there is no
            such data set, subset, split or column.
        BadRow: see `TableRows`.
    """
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(f"{key}.source='hub:{dataset_id}': needs {install_command('data')}") from error
    try:
        dataset = datasets.load_dataset(dataset_id, name=subset, split=split)
    except (OSError, ValueError, KeyError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"{key}.source='hub:{dataset_id}' (subset {subset or 'default'}, split {split}): {reason}; "
            "where no hub can be reached, give the path of a .jsonl or .parquet file"
        ) from error
    _check_columns(columns, dataset.column_names, key)
    checked = [name for name in dataset.column_names if name in columns.scanned()]
    scan = (
        dict(zip(batch, values, strict=True))
        for batch in dataset.select_columns(checked).iter(_SCAN)
        for values in zip(*batch.values(), strict=True)
    )
    return TableRows(
        f"hub:{dataset_id}[{split}]", scan, lambda place: dict(dataset[place]), columns, on_bad_row, needed
    )


def _check_columns(columns: Columns, names: list[str], key: str) -> None:
    for column, option in columns.needed().items():
        if column not in names:
            raise ConfigError(f"{key}.{option}={column!r}: no such column; {nearest(column, names, 'there are')}")
