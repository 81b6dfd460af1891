import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljax.tasks.jsonl import JsonlRows
from rljax.tasks.rows import Columns
from rljax.tasks.task import BadRow

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
        JsonlRows(path, COLUMNS, "fail")
    assert str(caught.value).startswith(f"{path}:3: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    rows = JsonlRows(path, COLUMNS, "skip")
    assert (len(rows), rows.bad_rows) == (2, 1)
    assert str(rows.first_bad_row) == str(caught.value)
    assert rows.problem(1).answer == "2"


def test_a_row_keeps_its_other_columns(tmp_path: Path) -> None:
    problem = JsonlRows(write(tmp_path, GOOD), COLUMNS, "fail").problem(0)
    assert (problem.prompt, problem.answer, problem.metadata) == ("1+1?", "2", {"level": 3})


def test_a_whole_surrogate_pair_is_a_character(tmp_path: Path) -> None:
    rows = JsonlRows(write(tmp_path, b'{"question": "\\ud83d\\ude00?", "answer": "2"}'), COLUMNS, "fail")
    assert rows.problem(0).prompt == "\U0001f600?"


def test_a_number_is_a_fine_answer(tmp_path: Path) -> None:
    rows = JsonlRows(write(tmp_path, b'{"question": "1+1?", "answer": 2}'), COLUMNS, "fail")
    assert rows.problem(0).answer == "2"


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_byte_order_mark_line_ends_and_blank_lines(tmp_path: Path, end: bytes) -> None:
    path = write(tmp_path, b"\xef\xbb\xbf" + GOOD, b"  ", GOOD, b"", end=end)
    rows = JsonlRows(path, COLUMNS, "fail")
    assert [rows.problem(i).prompt for i in range(len(rows))] == ["1+1?", "1+1?"]


def test_reading_stops_when_enough_rows_are_found(tmp_path: Path) -> None:
    assert len(JsonlRows(write(tmp_path, GOOD, GOOD, b"broken"), COLUMNS, "fail", needed=2)) == 2


def test_a_file_that_changed_is_a_bad_row(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, GOOD)
    rows = JsonlRows(path, COLUMNS, "fail")
    write(tmp_path, b"#" + GOOD)
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
    rows = JsonlRows(write(tmp_path_factory.mktemp("rows"), *lines), COLUMNS, "skip")
    assert [rows.problem(i).prompt for i in range(len(rows))] == [text for text in texts if text is not None]
    assert rows.bad_rows == texts.count(None)
