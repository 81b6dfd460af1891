"""Rows told apart by a column, and rows without an answer."""

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from rljax.config.tasksets import TasksetConfig
from rljax.config.validate import ConfigError
from rljax.tasks.task import BadRow
from rljax.tasks.tasksets import load_tasksets

ROWS: list[dict[str, Any]] = [
    {"question": "1 + 1", "answer": "2", "tag": "math"},
    {"question": "sort", "answer": None, "tag": "code", "tests": ["assert f(1)"]},
    {"question": "2 + 2", "answer": "4", "tag": "algebra"},
    {"question": "be short", "answer": "x", "tag": "style"},
    {"question": "3 + 3", "answer": "6", "tag": "math"},
]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        columns = sorted({name for row in rows for name in row})
        whole = [{name: row.get(name) for name in columns} for row in rows]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(whole), path)
    return str(path)


def load(**tasksets: TasksetConfig) -> Any:
    return load_tasksets(tasksets, 0, "fail", role="train")


def questions(taskset: Any) -> list[str]:
    return [taskset.task(0, index).messages[-1]["content"] for index in range(len(taskset))]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_tasksets_take_the_rows_of_their_tags_from_one_file(
    suffix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write(tmp_path / f"rows{suffix}", ROWS)
    math = TasksetConfig(source=source, tags=("math", "algebra"), rewards=("numeric",), shuffle=False)
    code = TasksetConfig(source=source, tags=("code",), rewards=("code",), template="Write: {prompt}")
    with caplog.at_level(logging.WARNING):
        loaded = load(math=math, code=code)
    assert questions(loaded["math"]) == ["1 + 1", "2 + 2", "3 + 3"]
    assert questions(loaded["code"]) == ["Write: sort"]
    assert loaded["code"].task(0, 0).metadata["tests"] == ["assert f(1)"]
    assert loaded["code"].task(0, 0).answer == ""
    assert caplog.messages == [f"tasks.train: no taskset takes the rows of {source} tagged style"]


def test_several_files_are_read_as_one(tmp_path: Path) -> None:
    names = ("a.jsonl", "b.parquet", "c.jsonl")
    files = [write(tmp_path / name, ROWS[start:]) for name, start in zip(names, (0, 2, 4), strict=True)]
    math = TasksetConfig(source=",".join(files), tags=("math", "algebra"), rewards=("numeric",), shuffle=False)
    one_by_one = [q for f in files for q in questions(load(x=dataclasses.replace(math, source=f))["x"])]
    joined = load(math=math)["math"]
    assert questions(joined) == one_by_one
    assert joined.other_tags == {"code", "style"}
    with pytest.raises(ConfigError, match=r"d\.jsonl'.*cannot be read"):
        load(math=dataclasses.replace(math, source=f"{files[0]},{tmp_path}/d.jsonl"))


def test_a_row_may_have_several_tags(tmp_path: Path) -> None:
    rows = [{**ROWS[0], "tag": ["math", "easy"]}, {**ROWS[2], "tag": ["algebra"]}, {**ROWS[4], "tag": []}]
    source = write(tmp_path / "rows.jsonl", rows)
    assert questions(load(easy=TasksetConfig(source=source, tags=("easy", "short")))["easy"]) == ["1 + 1"]


def test_without_tags_every_row_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [row for row in ROWS if row["answer"]]
    source = write(tmp_path / "rows.jsonl", rows)
    whole = TasksetConfig(source=source, shuffle=False)
    assert len(load(all=whole, math=TasksetConfig(source=source, tags=("math",)))["all"]) == 4
    assert not caplog.messages


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"tags": ("maths",)}, ConfigError, "none tagged maths, there are algebra, code, math, style"),
        ({"tags": ("math",), "tag_key": "tags"}, ConfigError, "mine.tag_key='tags': no such column; nearest: tag, of"),
        ({"source": "add_numbers", "tags": ("math",)}, ConfigError, "only the rows of a file or of a hub data set"),
        ({"tags": ("code",), "rewards": ("exact",)}, BadRow, "rows.jsonl:2: column 'answer' holds NoneType, not text"),
    ],
)
def test_tags_that_cannot_be(changed: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    source = write(tmp_path / "rows.jsonl", ROWS)
    with pytest.raises(error) as caught:
        load(mine=TasksetConfig(**{"source": source, **changed}))
    assert message in str(caught.value)


def test_a_column_of_tags_that_a_table_does_not_have(tmp_path: Path) -> None:
    source = write(tmp_path / "rows.parquet", ROWS)
    with pytest.raises(ConfigError, match=r"tasks\.train\.mine\.tag_key='tags': no such column; nearest: tag"):
        load(mine=TasksetConfig(source=source, tags=("math",), tag_key="tags"))


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_an_answer_may_be_missing_where_no_reward_reads_it(suffix: str, tmp_path: Path) -> None:
    source = write(tmp_path / f"rows{suffix}", [{"question": "be short", "tests": ["assert f(1)"]}])
    loaded = load(mine=TasksetConfig(source=source, rewards=("code", "format", "format:.")))
    assert loaded["mine"].task(0, 0).answer == ""
    with pytest.raises((BadRow, ConfigError), match=r"no (such )?column"):
        load(mine=TasksetConfig(source=source, rewards=("code", "exact")))


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize(
    ("reward", "rows", "reason"),
    [
        (
            "code",
            [{"tests": ["assert f(1)"]}, {"tests": ["assert f("]}, {"tests": None}],
            "a test is no Python",
        ),
        (
            "ifeval",
            [
                {"answer": json.dumps({"func_name": "validate_no_commas", "N": None})},
                {"answer": json.dumps({"func_name": "validate_no_dots"})},
                {"answer": "no JSON"},
            ],
            "func_name: no such function: 'validate_no_dots'",
        ),
    ],
)
def test_a_row_that_its_reward_could_not_judge_is_bad(
    suffix: str, reward: str, rows: list[dict[str, Any]], reason: str, tmp_path: Path
) -> None:
    source = write(tmp_path / f"rows{suffix}", [{"question": "x", "unread": 1, **row} for row in rows])
    config = TasksetConfig(source=source, rewards=(reward,), shuffle=False)
    with pytest.raises(BadRow, match=rf"rows{suffix}:( row )?2: tasks.train.mine.rewards={reward}: {reason}"):
        load(mine=config)
    (mine,) = load_tasksets({"mine": config}, 0, "skip", role="train").values()
    assert (len(mine), mine.bad_rows) == (1, 2)
    assert mine.task(0, 0).metadata["unread"] == 1


TURNS = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 1"}]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("as_text", [True, False])
def test_rows_may_be_whole_dialogues(suffix: str, as_text: bool, tmp_path: Path) -> None:
    rows = [{"messages": json.dumps(TURNS) if as_text else TURNS, "answer": "2", "prompt": "not read"}]
    source = write(tmp_path / f"rows{suffix}", rows)
    task = load(mine=TasksetConfig(source=source, messages_key="messages"))["mine"].task(0, 0)
    assert [dict(message) for message in task.messages] == TURNS
    assert (task.answer, task.metadata["prompt"]) == ("2", "not read")


@pytest.mark.parametrize(
    ("messages", "line"),
    [
        ("1 + 1", "holds a text that is no JSON"),
        ([], "holds no messages; write a list of role and content"),
        ([{"role": "user"}], "column 'messages', message 1: the content of user is NoneType, not a text"),
        ([*TURNS, {"role": "assistant", "content": "2"}], "ends with the reply, which is what is sampled"),
    ],
)
def test_what_is_no_dialogue_is_a_bad_row(messages: Any, line: str, tmp_path: Path) -> None:
    source = write(tmp_path / "rows.jsonl", [{"messages": messages, "answer": "2"}])
    with pytest.raises(BadRow, match=line):
        load(mine=TasksetConfig(source=source, messages_key="messages"))
    with pytest.raises(ConfigError, match="leave template, system_prompt and examples out"):
        load(mine=TasksetConfig(source=source, messages_key="messages", template="Q: {prompt}"))
    with pytest.raises(ConfigError, match="messages_key='message': no such column; nearest: messages, of /"):
        load(mine=TasksetConfig(source=source, messages_key="message"))
