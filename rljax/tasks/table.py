"""Rows of a table: a Parquet file, or a data set of the Hugging Face hub or of `datasets` on this disk."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljax.config.validate import ConfigError
from rljax.tasks.cells import nearest
from rljax.tasks.rows import Columns, Problem, counted
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
    return _arrow_rows(str(path), table, columns, on_bad_row, key, needed)


def saved_rows(
    path: Path, split: str | None, role: str, columns: Columns, on_bad_row: str, key: str, needed: int | None = None
) -> TableRows:
    """Opens a directory that ``save_to_disk`` of `datasets` wrote, of a Dataset, or of a DatasetDict, which has a
    split; its rows stay in memory-mapped files.

    Args:
        split: its name; None: ``role``, where there are splits.
        key: config path of the taskset, for messages.

    Raises:
        ConfigError: it is no such directory, or a split or column is missing.
        BadRow: see `TableRows`.
        OSError: a file cannot be read.
    """
    source = f"{key}.source={str(path)!r}"
    if (path / "dataset_dict.json").is_file():
        splits = _described(path / "dataset_dict.json", source).get("splits", [])
        wanted = split or role
        if wanted not in splits:
            other = [name for name in splits if name != "train"] if split is None and role == "validation" else []
            write = f"; write {key}.split={other[0]}" if len(other) == 1 else ""
            raise ConfigError(
                f"{key}.split={wanted!r}: no such split in {path}; {nearest(wanted, splits, 'there are')}{write}"
            )
        path = path / wanted
    elif split is not None:
        raise ConfigError(f"{key}.split={split!r}: {path} has no splits; leave it out, or use offset and limit")
    state = path / "state.json"
    if not state.is_file():
        raise ConfigError(
            f"{source}: a directory that datasets' save_to_disk did not write (it has no state.json); name its files, "
            "FILE.parquet or FILE.jsonl"
        )
    files = [path / part["filename"] for part in _described(state, source).get("_data_files", [])]
    return _arrow_rows(str(path), _memory_mapped(files, source), columns, on_bad_row, key, needed)


def _described(file: Path, source: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{source}: {file.name} is no JSON ({error})") from error
    return found


def _memory_mapped(files: Sequence[Path], source: str) -> Any:
    """Returns the Arrow table that these files hold, one after the other."""
    import pyarrow

    tables = []
    for file in files:
        try:
            tables.append(pyarrow.ipc.open_stream(pyarrow.memory_map(str(file))).read_all())
        except pyarrow.ArrowInvalid as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"{source}: {file.name} is no file of datasets' ({reason})") from error
    if not tables:
        raise ConfigError(f"{source}: state.json names no file with rows")
    return pyarrow.concat_tables(tables)


def _arrow_rows(name: str, table: Any, columns: Columns, on_bad_row: str, key: str, needed: int | None) -> TableRows:
    _check_columns(columns, table.schema, name, key)
    scanned = [
        number  # two columns may have one name
        for number, column in enumerate(table.column_names)
        if columns.reads(column) or _damaged(table.column(number))
    ]
    batches = table.select(scanned).to_batches(max_chunksize=_SCAN)
    scan = (row for batch in batches for row in _plain_rows(batch))
    return TableRows(name, scan, lambda place: table.slice(place, 1).to_pylist()[0], columns, on_bad_row, needed)


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
    name = f"hub:{dataset_id}[{split}]"
    _check_columns(columns, dataset.features.arrow_schema, name, key)
    checked = [name for name in dataset.column_names if columns.reads(name)]
    undecoded = dataset.select_columns(checked).with_format("arrow")  # a picture is refused, and need not be opened
    scan = (row for table in undecoded.iter(_SCAN) for row in _plain_rows(table))
    return TableRows(name, scan, lambda place: dict(dataset[place]), columns, on_bad_row, needed)


def check_parquet(path: Path, columns: Columns, key: str) -> None:
    """Refuses the columns that a Parquet file does not have, as far as its schema can be read; see `Columns.check`."""
    try:
        import pyarrow.parquet

        schema = pyarrow.parquet.read_schema(path)
    except (ImportError, OSError, ValueError):
        return  # opening it as a whole says that
    _check_columns(columns, schema, str(path), key)


def _check_columns(columns: Columns, schema: Any, name: str, key: str) -> None:
    import pyarrow

    types = dict(_paths(schema))
    columns.check(types, name, key, texts=types.get(columns.prompt) in (pyarrow.string(), pyarrow.large_string()))


def _paths(fields: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yields the names of Arrow fields, and of those within structs as dotted paths, with their types."""
    import pyarrow

    for field in fields:
        yield field.name, field.type
        if pyarrow.types.is_struct(field.type):
            yield from ((f"{field.name}.{inner}", kind) for inner, kind in _paths(field.type))
