"""Rows of chat messages and of nested columns, as verl and TRL write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from rljax.config.schema import TasksetConfig
from rljax.config.validate import ConfigError
from rljax.models.tiny import save_tiny_tokenizer
from rljax.models.tokenizer import load_tokenizer
from rljax.tasks.task import BadRow, Taskset
from rljax.tasks.tasksets import load_tasksets
from rljax.tasks.templates import render_prompt

TURNS = [
    {"role": "system", "content": "Add."},
    {"role": "user", "content": "1 + 1"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "2 + 2"},
]
VERL = [
    {
        "data_source": "openai/gsm8k",
        "prompt": TURNS,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(number)},
        "extra_info": {"split": "train", "index": number, "tests": [{"input": "1", "output": "1"}]},
    }
    for number in range(3)
]
VERL_KEYS: dict[str, Any] = {"prompt_key": "prompt", "answer_key": "reward_model.ground_truth"}


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def load(source: str, on_bad_row: str = "fail", **keys: Any) -> Taskset:
    config = TasksetConfig(source=source, shuffle=False, **keys)
    return load_tasksets({"mine": config}, 0, on_bad_row, role="train")["mine"]


@pytest.fixture(params=[".jsonl", ".parquet"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"rows{request.param}"


def test_verls_rows_take_two_keys(file: Path) -> None:
    taskset = load(write(file, VERL), **VERL_KEYS)
    assert [taskset.task(0, i).answer for i in range(3)] == ["0", "1", "2"]
    task = taskset.task(0, 1)
    assert [dict(message) for message in task.messages] == TURNS
    assert task.metadata["extra_info"]["index"] == 1
    assert set(task.metadata) == {"data_source", "ability", "reward_model", "extra_info"}


def test_every_key_of_a_column_takes_a_path(file: Path) -> None:
    source = write(file, [*VERL, {**VERL[0], "ability": "code"}])
    assert len(load(source, tags=("1",), tag_key="extra_info.index", **VERL_KEYS)) == 1
    args = {"code": {"tests": "extra_info.tests"}}
    assert len(load(source, rewards=("code",), reward_args=args, **VERL_KEYS)) == 4
    with pytest.raises(BadRow, match=r"1: tasks\.\S+=code: the row has no column 'extra_info\.test'"):
        load(source, rewards=("code",), reward_args={"code": {"tests": "extra_info.test"}}, **VERL_KEYS)


def test_a_path_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    keys = {**VERL_KEYS, "answer_key": "reward_model.ground_trut"}
    for name in ("rows.jsonl", "rows.parquet"):
        with pytest.raises(ConfigError, match=r"answer_key='reward_model\.ground_trut': no such column; nearest: rew"):
            load(write(tmp_path / name, VERL), **keys)
    rows = [*VERL, {**VERL[0], "reward_model": None}]
    assert load(write(tmp_path / "rows.parquet", rows), "skip", **VERL_KEYS).bad_rows == 1


def test_a_name_with_a_dot_is_a_name_first(file: Path) -> None:
    row = {"a.b": "one", "a": {"b": "two", "c.d": {"e": "three"}}, "answer": "x"}
    source = write(file, [row])
    for key, text in (("a.b", "one"), ("a.c.d.e", "three")):
        assert load(source, prompt_key=key).task(0, 0).messages[0]["content"] == text
    with pytest.raises((BadRow, ConfigError), match=r"no such column|no column"):
        load(source, prompt_key="a.b.c")


@pytest.mark.parametrize(
    ("turns", "line"),
    [
        (
            [*TURNS, {"role": "assistant", "content": "4"}],
            "ends with the reply, which is what is sampled; leave it out",
        ),
        ([{"role": "human", "content": "hi"}], "message 1: role 'human'; write system, user or assistant"),
        ([{"content": "hi"}], "message 1: no role; write system"),
        (["hi"], "message 1: a str; write role and content"),
        ([*TURNS, {"role": "user", "content": None}], "message 5: the content of user is NoneType, not a text"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            "the content of user is a list; write one text",
        ),
        (
            [{"role": "user", "content": [{"type": "image", "image": "a.png"}, {"type": "text", "text": "hi"}]}],
            "message 1: the content of user is image: models read texts alone here",
        ),
        (
            [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}],
            "message 1: a call of a tool, or its result",
        ),
        ([*TURNS, {"role": "tool", "content": "4"}], "message 5: a call of a tool, or its result"),
        ([], "holds no messages; write a list of role and content"),
    ],
)
def test_messages_that_no_model_here_reads_are_bad_rows(tmp_path: Path, turns: list[Any], line: str) -> None:
    source = write(tmp_path / "rows.jsonl", [VERL[0], {**VERL[1], "prompt": turns}])
    with pytest.raises(BadRow) as caught:
        load(source, **VERL_KEYS)
    assert str(caught.value).startswith(f"{source}:2: column 'prompt'")
    assert line in str(caught.value)
    assert len(load(source, "skip", **VERL_KEYS)) == 1


def test_fields_that_a_table_fills_with_nothing_are_no_calls(tmp_path: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": "1", "tool_calls": calls}], "answer": "1"} for calls in (None, [])]
    assert len(load(write(tmp_path / "rows.parquet", rows), prompt_key="prompt")) == 2


@pytest.mark.parametrize("pictures", [{"images": [{"bytes": None, "path": "a.png"}]}, {"image": "a.png"}])
def test_a_prompt_that_shows_a_picture_beside_it_is_a_bad_row(file: Path, pictures: dict[str, Any]) -> None:
    column = next(iter(pictures))
    rows = [{"prompt": "1 + 1", "answer": "2", **beside} for beside in ({column: None}, pictures)]
    source = write(file, rows)
    with pytest.raises(BadRow, match=rf"2: column '{column}': models read texts alone here, and would get the prompt"):
        load(source, prompt_key="prompt")
    assert len(load(source, "skip", prompt_key="prompt")) == 1


def test_a_column_that_a_taskset_asks_for_is_no_picture(tmp_path: Path) -> None:
    source = write(tmp_path / "rows.jsonl", [{"image": "What is 1 + 1?", "images": "2"}])
    assert load(source, prompt_key="image", answer_key="images").task(0, 0).answer == "2"


def test_tools_beside_a_prompt_reach_functions_of_your_own(file: Path) -> None:
    task = load(write(file, [{"prompt": "1", "answer": "1", "tools": ["add"]}]), prompt_key="prompt").task(0, 0)
    assert task.metadata["tools"] == ["add"]


def test_messages_leave_no_place_for_a_template(file: Path) -> None:
    with pytest.raises(BadRow, match="leave template, system_prompt and examples out"):
        load(write(file, VERL), system_prompt="Think.", **VERL_KEYS)


def test_an_empty_dialogue_asks_nothing(file: Path) -> None:
    with pytest.raises(BadRow, match=r"the prompt \('prompt'\) is empty"):
        load(write(file, [{**VERL[0], "prompt": [{"role": "user", "content": " "}]}]), **VERL_KEYS)


@pytest.mark.parametrize(
    ("prompt", "completion"),
    [("1 + 1", "2"), (TURNS[:2], [{"role": "assistant", "content": "2"}])],
    ids=["standard", "conversational"],
)
def test_trls_prompts_and_completions(file: Path, prompt: Any, completion: Any) -> None:
    source = write(file, [{"prompt": prompt, "completion": completion}])
    task = load(source, prompt_key="prompt", answer_key="completion").task(0, 0)
    assert task.answer == "2"
    assert [dict(one) for one in task.messages][-1] == {"role": "user", "content": "1 + 1"}
    assert task.metadata == {}


def test_an_answer_of_several_messages_is_none(tmp_path: Path) -> None:
    source = write(tmp_path / "rows.jsonl", [{"prompt": "1", "completion": TURNS}])
    with pytest.raises(BadRow, match="column 'completion' holds system, user, assistant, user; write one message"):
        load(source, prompt_key="prompt", answer_key="completion")


def test_the_chat_template_writes_the_turns(tmp_path: Path, file: Path) -> None:
    save_tiny_tokenizer(tmp_path / "model", "0123456789+ Ad.")
    tokenizer = load_tokenizer(tmp_path / "model")
    task = load(write(file, VERL), **VERL_KEYS).task(0, 0)
    rendered = tokenizer.apply_chat_template(TURNS, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(render_prompt(tokenizer, task, 100)) == rendered
    tokenizer.chat_template = "{{ raise_exception('users and assistants take turns') }}"
    with pytest.raises(
        BadRow, match=r"mine/0/0: the chat template refuses its messages \(users .*\); it asks '2 \+ 2'"
    ):
        render_prompt(tokenizer, task, 100)
