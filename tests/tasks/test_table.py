from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from rljax.config.validate import ConfigError
from rljax.tasks.rows import Columns
from rljax.tasks.table import hub_rows, parquet_rows
from rljax.tasks.task import BadRow

COLUMNS = Columns("question", "answer")
KEY = "tasks.train.mine"


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.parquet"
    table = {"question": ["a?", "", "c?", "d?"], "answer": ["1", "2", "3", None], "level": [1, 2, 3, 4]}
    pyarrow.parquet.write_table(pyarrow.table(table), path, row_group_size=2)
    return path


def test_parquet_rows(parquet: Path) -> None:
    rows = parquet_rows(parquet, COLUMNS, "skip", KEY)
    assert [(rows.problem(i).prompt, rows.problem(i).metadata) for i in range(len(rows))] == [
        ("a?", {"level": 1}),
        ("c?", {"level": 3}),
    ]
    assert rows.bad_rows == 2


def test_a_bad_parquet_row_is_named(parquet: Path) -> None:
    with pytest.raises(BadRow, match=r"tasks\.parquet: row 2: the prompt \('question'\) is empty"):
        parquet_rows(parquet, COLUMNS, "fail", KEY)
    assert len(parquet_rows(parquet, COLUMNS, "fail", KEY, needed=1)) == 1


def test_a_missing_column_is_refused_once(parquet: Path) -> None:
    with pytest.raises(ConfigError, match=r"tasks\.train\.mine\.prompt_key='questions': .*nearest: question"):
        parquet_rows(parquet, Columns("questions", "answer"), "skip", KEY)
    with pytest.raises(ConfigError, match=r"mine\.answer_key='x': no such column; there are: answer, level, question"):
        parquet_rows(parquet, Columns("question", "x"), "skip", KEY)


def test_what_is_no_parquet_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tasks.parquet"
    path.write_text("question,answer")
    with pytest.raises(ConfigError, match=r"mine\.source='.*tasks.parquet': not a Parquet file") as caught:
        parquet_rows(path, COLUMNS, "fail", KEY)
    assert "\n" not in str(caught.value)


def binary_as_text(values: list[bytes]) -> pyarrow.Array:
    """A column that says it is text, unchecked, as a careless writer makes it."""
    plain = pyarrow.array(values, pyarrow.binary())
    return pyarrow.Array.from_buffers(pyarrow.string(), len(plain), plain.buffers())


def test_a_row_that_is_no_utf8_is_named_or_skipped(tmp_path: Path) -> None:
    path = tmp_path / "tasks.parquet"
    columns = {
        "question": binary_as_text([b"a?", b"b\xff?", b"c?", b"d?"]),
        "answer": binary_as_text([b"1", b"2", b"\xe9", b"4"]),
        "note": binary_as_text([b"x", b"y", b"z", b"\xff"]),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(BadRow) as caught:
        parquet_rows(path, COLUMNS, "fail", KEY)
    assert str(caught.value) == f"{path}: row 2: column 'question' holds bytes that are no UTF-8 text"
    rows = parquet_rows(path, COLUMNS, "skip", KEY)
    assert (len(rows), rows.bad_rows) == (1, 3)
    assert rows.problem(0).prompt == "a?"
    pyarrow.parquet.write_table(pyarrow.table(columns).slice(3), path)
    with pytest.raises(BadRow, match=r"tasks\.parquet: row 1: column 'note' holds bytes that are no UTF-8 text$"):
        parquet_rows(path, COLUMNS, "fail", KEY)


@pytest.fixture
def hub_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A directory in the layout of a hub data set, which `datasets` loads by its path as it does by an id."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for split, questions in {"train": ["a?", "b?", "c?"], "test": ["d?"]}.items():
        (tmp_path / "set" / "main").mkdir(parents=True, exist_ok=True)
        table = pyarrow.table({"question": questions, "answer": ["1"] * len(questions)})
        pyarrow.parquet.write_table(table, tmp_path / "set" / "main" / f"{split}.parquet")
    return str(tmp_path / "set")


def test_hub_rows(hub_copy: str) -> None:
    rows = hub_rows(hub_copy, None, "train", COLUMNS, "fail", KEY)
    assert [rows.problem(i).prompt for i in range(len(rows))] == ["a?", "b?", "c?"]
    assert hub_rows(hub_copy, None, "test", COLUMNS, "fail", KEY).problem(0).prompt == "d?"


def test_a_picture_of_the_hub_is_named_and_not_opened(hub_copy: str) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({name: datasets.Value("string") for name in ("question", "answer")})
    features["image"] = datasets.Image()
    rows = {"question": ["a?"], "answer": ["1"], "image": [{"bytes": b"no picture", "path": None}]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(f"{hub_copy}/main/train.parquet")
    with pytest.raises(BadRow, match=r"\[train\]: row 1: column 'image': models read texts alone here"):
        hub_rows(hub_copy, None, "train", COLUMNS, "fail", KEY)


def test_a_missing_split_is_refused(hub_copy: str) -> None:
    with pytest.raises(
        ConfigError, match=r"source='hub:.*' \(subset default, split validation\): .*validation"
    ) as caught:
        hub_rows(hub_copy, None, "validation", COLUMNS, "fail", KEY)
    assert "\n" not in str(caught.value)


def test_an_unreachable_hub_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def offline(*_args: Any, **_kwargs: Any) -> None:
        raise ConnectionError("Couldn't reach 'openai/gsm8k' on the Hub\nmore")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(ConfigError, match=r"Couldn't reach .*; where no hub can be reached, give the path") as caught:
        hub_rows("openai/gsm8k", "main", "train", COLUMNS, "fail", KEY)
    assert "\n" not in str(caught.value)
