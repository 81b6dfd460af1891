"""Directories that datasets' save_to_disk wrote, read without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rljax.config.schema import TasksetConfig
from rljax.config.validate import ConfigError
from rljax.tasks.task import BadRow, Taskset
from rljax.tasks.tasksets import load_tasksets

datasets = pytest.importorskip("datasets")

ROWS = {
    "prompt": [[{"role": "user", "content": f"{number}?"}] for number in range(5)],
    "reward_model": [{"style": "rule", "ground_truth": str(number)} for number in range(5)],
}
KEYS: dict[str, Any] = {"prompt_key": "prompt", "answer_key": "reward_model.ground_truth", "shuffle": False}


def load(path: Path | str, role: Any = "train", on_bad_row: str = "fail", **keys: Any) -> Taskset:
    return load_tasksets({"mine": TasksetConfig(source=str(path), **KEYS, **keys)}, 0, on_bad_row, role=role)["mine"]


def answers(taskset: Taskset) -> list[str]:
    return [taskset.task(0, i).answer for i in range(len(taskset))]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Two files of rows, chosen out of order."""
    whole = datasets.Dataset.from_dict(ROWS).select([3, 0, 2])
    whole.save_to_disk(tmp_path / "saved", num_shards=2)
    return tmp_path / "saved"


@pytest.fixture
def splits(tmp_path: Path) -> Path:
    whole = datasets.Dataset.from_dict(ROWS)
    parts = {"train": whole.select(range(3)), "test": whole.select([3, 4])}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "splits")
    return tmp_path / "splits"


def test_a_saved_dataset(saved: Path) -> None:
    taskset = load(saved)
    assert answers(taskset) == ["3", "0", "2"]
    assert taskset.task(0, 0).messages == ({"role": "user", "content": "3?"},)
    with pytest.raises(ConfigError, match=r"split='test': .*saved has no splits; leave it out"):
        load(saved, split="test")
    with pytest.raises(ConfigError, match=r"subset='main': only a hub data set has subsets"):
        load(saved, subset="main")


def test_a_saved_dict_has_splits(splits: Path) -> None:
    assert answers(load(splits)) == ["0", "1", "2"]
    assert answers(load(splits, "validation", split="test")) == ["3", "4"]
    write = "; write tasks.validation.mine.split=test$"
    with pytest.raises(ConfigError, match=rf"split='validation': no such split in .*; there are: test, train{write}"):
        load(splits, "validation")
    with pytest.raises(ConfigError, match=r"split='dev': no such split in .*; there are: test, train$"):
        load(splits, "validation", split="dev")


def test_directories_and_files_make_one_taskset(saved: Path, splits: Path, tmp_path: Path) -> None:
    datasets.Dataset.from_dict(ROWS).select([1]).to_parquet(tmp_path / "one.parquet")
    assert answers(load(f"{saved},{splits / 'test'}, {tmp_path / 'one.parquet'}")) == ["3", "0", "2", "3", "4", "1"]


def test_a_bad_row_is_named_by_directory_and_row(tmp_path: Path) -> None:
    rows = {**ROWS, "prompt": [*ROWS["prompt"][:4], [{"role": "human", "content": "4?"}]]}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "saved")
    with pytest.raises(BadRow, match=r"saved: row 5: column 'prompt', message 1: role 'human'"):
        load(tmp_path / "saved")
    assert len(load(tmp_path / "saved", on_bad_row="skip")) == 4


def test_what_is_no_such_directory_is_one_line(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"a directory that datasets' save_to_disk did not write .*no state\.json"):
        load(tmp_path / "empty")
    part = next(saved.glob("*.arrow"))
    part.write_bytes(b"nothing of Arrow's, whatever its name says")
    with pytest.raises(ConfigError, match=rf"{part.name} is no file of datasets' \(") as caught:
        load(saved)
    assert "\n" not in str(caught.value)
    part.unlink()
    with pytest.raises(ConfigError, match=r"source='.*saved': cannot be read \(.*No such file"):
        load(saved)
    (saved / "state.json").write_text("{")
    with pytest.raises(ConfigError, match=r"state\.json is no JSON"):
        load(saved)


def test_a_missing_column_is_refused_once(saved: Path) -> None:
    with pytest.raises(ConfigError, match=r"answer_key='answer': no such column; there are: prompt, reward_model, rew"):
        load_tasksets({"mine": TasksetConfig(source=str(saved), prompt_key="prompt")}, 0, "fail", role="train")
