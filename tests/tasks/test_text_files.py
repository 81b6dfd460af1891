import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljax.tasks.rows import Columns
from rljax.tasks.task import BadRow
from rljax.tasks.text_files import TextRows

COLUMNS = Columns("question", "answer")
GOOD = b'{"question": "1+1?", "answer": "2", "level": 3}'


def write(directory: Path, *lines: bytes, end: bytes = b"\n") -> Path:
    path = directory / "tasks.jsonl"
    path.write_bytes(end.join(lines))
    return path


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{not json", "not JSON"),
        (b'{"question": "1+1?", "answer": "2"', "not JSON"),
        (b'["1+1?", "2"]', "a list, not an object"),
        (b"null", "a NoneType, not an object"),
        (b'{"question": "1+1?"}', "no column 'answer'; there are: question"),
        (b'{"questions": "1+1?", "answer": "2"}', "no column 'question'; nearest: questions"),
        (b'{"question": "", "answer": "2"}', "the prompt ('question') is empty"),
        (b'{"question": " \\n", "answer": "2"}', "the prompt ('question') is empty"),
        (b'{"question": null, "answer": "2"}', "column 'question' holds NoneType, not text"),
        (b'{"question": "1+1?", "answer": ["2"]}', "column 'answer' holds list, not text"),
        (b'{"question": "caf\xe9", "answer": "2"}', "not UTF-8 (byte 18 of the line"),
        (b'{"question": "a\\ud800b", "answer": "2"}', r"not Unicode text (\ud800 is half of a surrogate pair)"),
        (b'{"question": "1+1?", "answer": "2", "hints": ["\\uDC01"]}', r"not Unicode text (\udc01 is half"),
        (b"[" * 100_000, "not JSON"),
        (b'{"question": ' + b"9" * 5000 + b', "answer": "2"}', "not JSON"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, line: bytes, reason: str) -> None:
    path = write(tmp_path, GOOD, b"", line, GOOD)
    with pytest.raises(BadRow) as caught:
        TextRows(path, COLUMNS, "fail")
    assert str(caught.value).startswith(f"{path}:3: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    rows = TextRows(path, COLUMNS, "skip")
    assert (len(rows), rows.bad_rows) == (2, 1)
    assert str(rows.first_bad_row) == str(caught.value)
    assert rows.problem(1).answer == "2"


def test_a_row_keeps_its_other_columns(tmp_path: Path) -> None:
    problem = TextRows(write(tmp_path, GOOD), COLUMNS, "fail").problem(0)
    assert (problem.prompt, problem.answer, problem.metadata) == ("1+1?", "2", {"level": 3})


def test_a_whole_surrogate_pair_is_a_character(tmp_path: Path) -> None:
    rows = TextRows(write(tmp_path, b'{"question": "\\ud83d\\ude00?", "answer": "2"}'), COLUMNS, "fail")
    assert rows.problem(0).prompt == "\U0001f600?"


def test_a_number_is_a_fine_answer(tmp_path: Path) -> None:
    rows = TextRows(write(tmp_path, b'{"question": "1+1?", "answer": 2}'), COLUMNS, "fail")
    assert rows.problem(0).answer == "2"


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_byte_order_mark_line_ends_and_blank_lines(tmp_path: Path, end: bytes) -> None:
    path = write(tmp_path, b"\xef\xbb\xbf" + GOOD, b"  ", GOOD, b"", end=end)
    rows = TextRows(path, COLUMNS, "fail")
    assert [rows.problem(i).prompt for i in range(len(rows))] == ["1+1?", "1+1?"]


def test_reading_stops_when_enough_rows_are_found(tmp_path: Path) -> None:
    assert len(TextRows(write(tmp_path, GOOD, GOOD, b"broken"), COLUMNS, "fail", needed=2)) == 2


def test_a_file_that_changed_is_a_bad_row(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, GOOD)
    rows = TextRows(path, COLUMNS, "fail")
    write(tmp_path, b"#" + GOOD)
    with pytest.raises(BadRow, match=r"tasks.jsonl:2: no row is there any more: the file has changed"):
        rows.problem(1)
    write(tmp_path, GOOD, b"#" + GOOD)
    with pytest.raises(BadRow, match=r"tasks.jsonl:2: not JSON"):
        rows.problem(1)


@settings(max_examples=30)
@given(st.lists(st.one_of(st.none(), st.text(min_size=1).filter(str.strip)), min_size=1, max_size=30), st.booleans())
def test_rows_come_back_as_written(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str | None], plain: bool
) -> None:
    lines = [
        b"bad" if text is None else json.dumps({"question": text, "answer": text}, ensure_ascii=plain).encode()
        for text in texts
    ]
    rows = TextRows(write(tmp_path_factory.mktemp("rows"), *lines), COLUMNS, "skip")
    assert [rows.problem(i).prompt for i in range(len(rows))] == [text for text in texts if text is not None]
    assert rows.bad_rows == texts.count(None)


TABLE = [
    {"question": "1+1?", "answer": "2", "note": ""},
    {"question": 'two\nlines, and "quotes"', "answer": "02", "note": "é"},
    {"question": "3?", "answer": "3", "note": "x"},
]


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def compressed(path: Path) -> Path:
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return packed


@pytest.mark.parametrize("pack", [False, True])
def test_csv_cells_are_texts_as_written(tmp_path: Path, pack: bool) -> None:
    """With a byte order mark, as spreadsheets write it; a number keeps its zeros."""
    path = write_csv(tmp_path / "tasks.csv", TABLE)
    rows = TextRows(compressed(path) if pack else path, COLUMNS, "fail")
    found = [rows.problem(i) for i in (2, 0, 1)]
    assert [(one.prompt, one.answer, one.metadata["note"]) for one in found] == [
        tuple(TABLE[i].values()) for i in (2, 0, 1)
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"only one", "1 cells, where the first line names 2 columns"),
        (b"a,b,c", "3 cells, where the first line names 2 columns"),
        (b" ,2", "the prompt ('question') is empty"),
        (b"caf\xe9,2", "not UTF-8 (byte 4 of a line"),
        (b'"a" b,2', "not CSV (',' expected after '\"')"),
    ],
)
@pytest.mark.parametrize("pack", [False, True])
def test_a_bad_csv_row_is_named_by_file_and_line(tmp_path: Path, line: bytes, reason: str, pack: bool) -> None:
    path = tmp_path / "tasks.csv"
    path.write_bytes(b'question,answer\r\n"two\r\nlines",1\r\n\r\n' + line + b"\r\nlast,3\r\n")
    path = compressed(path) if pack else path
    with pytest.raises(BadRow) as caught:
        TextRows(path, COLUMNS, "fail")
    assert str(caught.value).startswith(f"{path}:5: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    rows = TextRows(path, COLUMNS, "skip")
    assert ([rows.problem(i).prompt for i in range(len(rows))], rows.bad_rows) == (["two\r\nlines", "last"], 1)


@pytest.mark.parametrize("header", [b"", b"\n", b"question,question\n"])
def test_a_csv_file_without_names_is_refused(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "tasks.csv").write_bytes(header + b"1,2\n" * bool(header))
    with pytest.raises(BadRow, match=r"tasks\.csv:1: a CSV file begins with the names of its columns, each once"):
        TextRows(tmp_path / "tasks.csv", COLUMNS, "skip")


def test_compressed_lines(tmp_path: Path) -> None:
    path = compressed(write(tmp_path, GOOD, b"", b"bad", GOOD))
    rows = TextRows(path, COLUMNS, "skip")
    assert (len(rows), rows.problem(1).answer, rows.bad_rows) == (2, "2", 1)
    with pytest.raises(BadRow, match=r"tasks\.jsonl\.gz:3: not JSON"):
        TextRows(path, COLUMNS, "fail")
    for damaged in (path.read_bytes()[:-9], b"plain text"):
        path.write_bytes(damaged)
        with pytest.raises(OSError, match=r"damaged|Not a gzipped file"):
            TextRows(path, COLUMNS, "fail")


@pytest.mark.parametrize("pack", [False, True])
def test_json_is_an_array_or_lines(tmp_path: Path, pack: bool) -> None:
    path = tmp_path / "tasks.json"
    for text, place in (
        (json.dumps([*TABLE, 5], indent=1), ": row 4"),
        ("\n".join(map(json.dumps, [*TABLE, 5])), ":4"),
    ):
        path.write_text(text)
        written = compressed(path) if pack else path
        rows = TextRows(written, COLUMNS, "skip")
        assert [rows.problem(i).prompt for i in range(len(rows))] == [row["question"] for row in TABLE]
        with pytest.raises(BadRow) as caught:
            TextRows(written, COLUMNS, "fail")
        assert str(caught.value) == f"{written}{place}: a int, not an object with columns"
