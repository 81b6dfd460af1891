"""Demonstrations at their positions: their tokens, their order, and what becomes of bad rows."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax.config.schema import TasksetConfig
from rljax.config.validate import ConfigError
from rljax.models.tiny import save_tiny_tokenizer
from rljax.models.tokenizer import load_tokenizer
from rljax.tasks.demonstrations import Demonstrations
from rljax.tasks.task import BadRow
from rljax.tasks.tasksets import load_tasksets
from rljax.tasks.templates import render_prompt, response_text
from rljax.trajectory import Trajectory

ROWS = [("12", "21"), ("34", "43"), ("56", "65"), ("78", "87"), ("90", "09")]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("tokenizer")
    save_tiny_tokenizer(directory, "0123456789")
    return load_tokenizer(directory)


def make(
    tmp_path: Path,
    tokenizer: Any,
    rows: list[tuple[str, str]] | list[dict[str, Any]] = ROWS,
    config: dict[str, Any] | None = None,
    **changes: Any,
) -> Demonstrations:
    file = tmp_path / "shown.jsonl"
    plain = (row if isinstance(row, dict) else {"question": row[0], "answer": row[1]} for row in rows)
    file.write_text("".join(json.dumps(row) + "\n" for row in plain))
    asked = {"expert": TasksetConfig(source=str(file), **(config or {}))}
    taskset = load_tasksets(asked, 7, "fail", role="train", section="tasks", imitated=True)["expert"]
    keys = {"max_prompt_tokens": 12, "max_response_tokens": 4, "longest": 30, **changes}
    keys = {"temperature": 0.7, "on_bad_row": "fail", **keys}
    return Demonstrations(taskset, tokenizer, (tokenizer.eos_token_id,), **keys)


def said(tokenizer: Any, shown: Trajectory) -> str:
    return response_text(tokenizer, shown.token_ids[shown.loss_mask], (tokenizer.eos_token_id,))


def test_a_demonstration_is_the_prompt_and_the_response_with_its_end(tmp_path: Path, tokenizer: Any) -> None:
    demonstrations = make(tmp_path, tokenizer, ROWS[:1])
    (shown,) = demonstrations.at(range(1))
    prompt = render_prompt(tokenizer, demonstrations._taskset.task(0, 0), 12)
    assert shown.token_ids[: len(prompt)].tolist() == prompt.tolist()
    assert shown.token_ids[len(prompt) :].tolist() == [*tokenizer("21")["input_ids"], tokenizer.eos_token_id]
    assert np.flatnonzero(shown.loss_mask).tolist() == list(range(len(prompt), len(prompt) + 3))
    assert shown.turns.tolist() == [[len(prompt), len(prompt) + 3]]
    assert (shown.expert, shown.temperature, shown.finish_reason) == (True, 0.7, "stop")
    assert (set(shown.versions.tolist()), set(shown.logprobs.tolist())) == ({-1}, {0.0})
    assert shown.max_version == -1, "no version ever counts for it"


def test_a_fingerprint_is_of_the_tokens(tmp_path: Path, tokenizer: Any) -> None:
    def found(rows: list[tuple[str, str]] = ROWS, config: dict[str, Any] | None = None, **changes: Any) -> str:
        return make(tmp_path, tokenizer, rows, config, **changes).fingerprint

    same = {found(), found(max_response_tokens=9), found(config={"template": "{prompt}"})}
    other = [found(ROWS[1:]), found(config={"shuffle": False}), found(temperature=1.0)]
    shaped = [found(config={"template": "7{prompt}"}), found(config={"system_prompt": "1"})]
    cut = found(max_response_tokens=2)  # no room for the end of the turn
    assert len(same) == 1
    assert len({*same, *other, *shaped, cut}) == 7


def test_each_epoch_has_all_of_them_once_in_an_order_of_its_own(tmp_path: Path, tokenizer: Any) -> None:
    demonstrations = make(tmp_path, tokenizer)
    epochs = [[said(tokenizer, t) for t in demonstrations.at(range(5 * e, 5 * e + 5))] for e in range(4)]
    assert all(sorted(epoch) == sorted(answer for _, answer in ROWS) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    again = make(tmp_path, tokenizer).at(range(3, 8))
    assert [said(tokenizer, t) for t in again] == epochs[0][3:] + epochs[1][:3], "a position has no past"


def test_what_fills_the_budget_has_no_end_and_what_exceeds_it_is_bad(tmp_path: Path, tokenizer: Any) -> None:
    (shown,) = make(tmp_path, tokenizer, [("1", "1234")]).at(range(1))
    assert tokenizer.eos_token_id not in shown.token_ids[shown.loss_mask].tolist()
    assert shown.loss_mask.sum() == 4
    with pytest.raises(
        BadRow, match=r"task expert/0/0: a recorded response of 5 tokens; model\.max_response_tokens is 4; it asks '1'"
    ):
        make(tmp_path, tokenizer, [("1", "12345")]).check(1)
    with pytest.raises(BadRow, match="a recorded response of 0 tokens"):
        make(tmp_path, tokenizer, [("1", "")]).at(range(1))
    with pytest.raises(BadRow, match=r"a prompt of .* tokens; model\.max_prompt_tokens is 3"):
        make(tmp_path, tokenizer, max_prompt_tokens=3).at(range(1))


def test_a_bad_row_is_found_at_the_start_and_the_next_takes_its_place(
    tmp_path: Path, tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [*ROWS[:4], ("90", "99999")]
    skipping = make(tmp_path, tokenizer, rows, on_bad_row="skip")
    with caplog.at_level(logging.WARNING):
        skipping.check(100)
    assert "tasks.expert: 1 of 5 rows are bad and skipped; first: task expert/0/" in caplog.text
    order = [skipping._taskset.task(0, i).answer for i in range(5)]
    place = order.index("99999")
    expected = list(order)
    expected[place] = order[(place + 1) % 5]
    assert [said(tokenizer, t) for t in skipping.at(range(5))] == expected
    with pytest.raises(
        ConfigError, match=r"no usable row among 1; the first: task expert/0/0: a recorded response of 5"
    ):
        make(tmp_path, tokenizer, [("1", "12345")], on_bad_row="skip").check(1)
    with pytest.raises(ConfigError, match="no usable row"):
        make(tmp_path, tokenizer, [("1", "12345")], on_bad_row="skip").at(range(1))


def chat(*texts: str, system: str | None = None) -> list[dict[str, str]]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return first + [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def test_every_reply_of_a_dialogue_is_imitated_and_nothing_else(tmp_path: Path, tokenizer: Any) -> None:
    rows = [{"messages": chat("12", "21", "34", "43", system="5"), "id": 1}]
    (shown,) = make(tmp_path, tokenizer, rows, {"prompt_key": "messages"}).at(range(1))
    replies = [tokenizer.decode(shown.token_ids[start:end]) for start, end in shown.turns]
    end = tokenizer.decode([tokenizer.eos_token_id])
    assert replies == [f"21{end}", f"43{end}"]
    assert np.flatnonzero(shown.loss_mask).tolist() == [i for start, end in shown.turns for i in range(start, end)]
    whole = tokenizer.apply_chat_template(rows[0]["messages"], tokenize=False)
    assert tokenizer.decode(shown.token_ids) == whole.rstrip("\n")
    asked = tokenizer.apply_chat_template(rows[0]["messages"][:2], tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(shown.token_ids[: shown.prompt_length]) == asked


def test_prompt_and_completion_may_be_messages_too(tmp_path: Path, tokenizer: Any) -> None:
    """TRL's forms of the same demonstration. What the prompt has of replies is shown and not imitated."""
    keys = {"prompt_key": "prompt", "answer_key": "completion"}
    said_by_itself = [{"prompt": "12", "completion": "21"}]
    as_messages = [{"prompt": chat("12"), "completion": chat("", "21")[1:]}]
    after_others = [{"prompt": chat("3", "4", "12"), "completion": chat("", "21")[1:]}]
    texts, messages = (make(tmp_path, tokenizer, rows, keys).at(range(1))[0] for rows in (said_by_itself, as_messages))
    assert texts.token_ids.tolist() == messages.token_ids.tolist()
    (later,) = make(tmp_path, tokenizer, after_others, keys, max_prompt_tokens=20).at(range(1))
    assert (said(tokenizer, later), len(later.turns)) == ("21", 1)


@pytest.mark.parametrize(
    ("messages", "line"),
    [
        (chat("1", "2")[1:], "message 1: role 'assistant', where 'user' is expected"),
        ([*chat("1", "2"), *chat("3", "4")[1:]], "message 3: role 'assistant', where 'user' is expected"),
        ([*chat("1", "2", "3"), *chat("4", "5")], "message 4: role 'user', where 'assistant' is expected"),
    ],
)
def test_dialogues_without_turns_are_bad_rows(
    messages: list[dict[str, str]], line: str, tmp_path: Path, tokenizer: Any
) -> None:
    with pytest.raises(BadRow, match=rf"shown\.jsonl:1: column 'messages', {line}"):
        make(tmp_path, tokenizer, [{"messages": messages}], {"prompt_key": "messages"})


def test_a_dialogue_is_held_to_the_limits(tmp_path: Path, tokenizer: Any) -> None:
    rows, keys = [{"messages": chat("1", "2", "3", "4")}], {"prompt_key": "messages"}
    with pytest.raises(BadRow, match=r"a dialogue of .* tokens, and 10 are the most of one"):
        make(tmp_path, tokenizer, rows, keys, longest=10).check(1)
    long = [{"messages": chat("1", "2" * 9, "3", "4")}]
    with pytest.raises(BadRow, match=r"a recorded response of 9 tokens; .* it asks '3'"):
        make(tmp_path, tokenizer, long, keys).check(1)
