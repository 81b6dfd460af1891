"""docs/data.md against the readers: its blocks are configs whose rows are read, its formats those that there are."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from rljax.config import schema
from rljax.config.tasksets import FILES
from rljax.tasks.tasksets import load_tasksets

PAGE = (Path(__file__).parents[1] / "docs" / "data.md").read_text()
ASKED = [{"role": "user", "content": "1 + 1"}]


def test_its_table_has_every_format() -> None:
    cells = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    told = set(re.findall(r"`FILE(\.[\w.]+)`", " ".join(cells)))
    assert told == set(FILES)


def test_rows_of_its_blocks_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gsm8k").mkdir()
    verl = {"data_source": "x", "prompt": ASKED, "reward_model": {"style": "rule", "ground_truth": "2"}}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([verl]), tmp_path / "gsm8k" / "train.parquet")
    rows = datasets.Dataset.from_dict({"prompt": ["1 + 1"], "solution": ["2"]})
    datasets.DatasetDict(train=rows).save_to_disk(tmp_path / "prompts")
    chat = {"messages": [*ASKED, {"role": "assistant", "content": "2"}]}
    (tmp_path / "chats.jsonl.gz").write_bytes(gzip.compress(json.dumps(chat).encode()))

    names: dict[str, Any] = vars(schema).copy()
    found = []
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(block, names)
        for name, taskset in load_tasksets(names["tasks"].train, 0, "fail", role="train").items():
            task = taskset.task(0, 0)
            found.append((name, task.messages[-1]["content"], task.answer))
    assert found == [("math", "1 + 1", "2"), ("mine", "1 + 1", "2")]
    expert = schema.TasksetConfig(source=names["tasks"].expert.source, prompt_key=names["tasks"].expert.prompt_key)
    (task,) = (one.task(0, 0) for one in load_tasksets({"e": expert}, 0, "fail", role="train", imitated=True).values())
    assert list(task.messages) == chat["messages"]
