"""Reference answers that take a while to check: who waits for the rows is told how many there have been."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from rljax.tasks import rows
from rljax.tasks.rewards import numeric
from rljax.tasks.rows import Columns, Rows
from rljax.tasks.table import parquet_rows
from rljax.tasks.text_files import TextRows

TEN = [{"question": f"{i} + 0?", "answer": str(i)} for i in range(10)]


def load(path: Path, columns: Columns) -> Rows:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in TEN))
        return TextRows(path, columns, "fail")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(TEN), path)
    return parquet_rows(path, columns, "fail", "tasks.train.sums")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
@pytest.mark.parametrize(("seconds", "told"), [(3.0, [4, 8]), (0.5, [])])
def test_every_ten_seconds_a_line_says_how_many_rows_were_checked(
    name: str, seconds: float, told: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    now = 1000.0

    def check(answer: str) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(rows, "monotonic", lambda: now)
    path = tmp_path / name
    with caplog.at_level(logging.WARNING):  # what the command line shows
        assert len(load(path, Columns("question", "answer", (check,)))) == 10
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"{path}: {count} rows read and checked so far" for count in told]


def test_a_long_reference_is_left_to_the_worker_with_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numeric, "_parse", lambda text: pytest.fail(f"parsed {len(text)} characters"))
    numeric.check_reference(r"\frac{1}{2} + " * 100)
