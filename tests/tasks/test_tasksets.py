import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljax.config.schema import TasksetConfig
from rljax.config.validate import ConfigError
from rljax.tasks.seeds import environment_seed
from rljax.tasks.task import BadRow, Task, Taskset
from rljax.tasks.tasksets import Role, load_tasksets
from rljax.trajectory import TaskId


def load(config: TasksetConfig, *, role: Role = "train", seed: int = 0, on_bad_row: str = "fail") -> Taskset:
    return load_tasksets({"mine": config}, seed, on_bad_row, role=role)["mine"]


def reverse(**options: Any) -> TasksetConfig:
    return TasksetConfig(source="reverse_digits", args={"digits": 2}, rewards=("digits",), **options)


def prompts(taskset: Taskset, epoch: int) -> list[str]:
    return [taskset.task(epoch, i).messages[-1]["content"] for i in range(len(taskset))]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps({"question": f"q{i}", "answer": f"a{i}"}) + "\n" for i in range(10)))
    return path


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(0, 50))
def test_epochs_hold_the_same_tasks_in_different_orders(seed: int, epoch: int) -> None:
    taskset = load(reverse(), seed=seed)
    first, second = prompts(taskset, epoch), prompts(taskset, epoch + 1)
    assert first != second
    assert sorted(first) == sorted(second)
    assert len(set(first)) == len(taskset) == 90


def test_a_task_is_a_pure_function_of_seed_epoch_and_index() -> None:
    one, other = load(reverse(), seed=5), load(reverse(), seed=5)
    places = [(0, 3), (7, 89), (0, 3), (2, 0)]
    assert [one.task(*p) for p in places] == [other.task(*p) for p in places]
    assert prompts(one, 0) != prompts(load(reverse(), seed=6), 0)


def test_validation_keeps_its_order_and_has_seeds_of_its_own() -> None:
    train, held_out = load(reverse()), load(reverse(), role="validation")
    assert prompts(held_out, 0) == prompts(held_out, 1)
    assert not set(prompts(train, 0)) & set(prompts(held_out, 0))
    seeds = [{t.task(0, i).seed for i in range(len(t))} for t in (train, held_out)]
    assert not seeds[0] & seeds[1]


def test_split_overrules_the_role() -> None:
    assert set(prompts(load(reverse(split="validation")), 0)) == set(prompts(load(reverse(), role="validation"), 0))


def test_the_environments_seed_is_that_of_the_task_id() -> None:
    task = load(reverse(), seed=9).task(4, 2)
    assert task.id == TaskId("mine", 4, 2)
    assert task.seed == environment_seed(9, task.id)


def test_a_fingerprint_tells_other_problems_and_another_order_apart(file: Path, tmp_path: Path) -> None:
    config = TasksetConfig(source=str(file))
    moved = tmp_path / "elsewhere.jsonl"
    moved.write_text(file.read_text())
    same = [config, dataclasses.replace(config, source=str(moved)), dataclasses.replace(config, template="Q: {prompt}")]
    assert len({load(c).fingerprint for c in same}) == 1
    rows = file.read_text().splitlines()
    moved.write_text("\n".join(reversed(rows)) + "\n")
    other = [
        dataclasses.replace(config, source=str(moved)),
        dataclasses.replace(config, shuffle=False),
        dataclasses.replace(config, offset=1, limit=9),
        dataclasses.replace(config, limit=9),
        reverse(),
        dataclasses.replace(reverse(), args={"digits": 3}),
    ]
    prints = [load(c).fingerprint for c in [config, *other]] + [load(config, seed=1).fingerprint]
    assert len(set(prints)) == len(prints)


def test_a_file_without_shuffling(file: Path) -> None:
    taskset = load(TasksetConfig(source=str(file), shuffle=False, offset=2, limit=3, weight=2.5))
    assert (len(taskset), taskset.weight, taskset.bad_rows) == (3, 2.5, 0)
    assert prompts(taskset, 0) == prompts(taskset, 1) == ["q2", "q3", "q4"]
    assert taskset.task(0, 1).seed != taskset.task(1, 1).seed
    for index in (-1, 3):
        with pytest.raises(IndexError):
            taskset.task(0, index)


def test_template_system_prompt_and_rewards(file: Path) -> None:
    config = TasksetConfig(
        source=str(file),
        template="Solve {prompt} in {braces}.",
        system_prompt="Be brief.",
        rewards=("exact", "format"),
        reward_weights=(1.0, 0.1),
    )
    task: Task = load(dataclasses.replace(config, shuffle=False)).task(0, 0)
    assert task.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Solve q0 in {braces}."},
    )
    assert [(term.name, term.part, term.weight) for term in task.rewards] == [
        ("exact", "exact", 1.0),
        ("format", "format", 0.1),
    ]


def test_bad_rows_are_counted_or_fatal(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with file.open("a") as lines:
        lines.write("not json\n")
    with pytest.raises(BadRow, match=r"tasks\.jsonl:11: not JSON"):
        load(TasksetConfig(source=str(file)))
    taskset = load(TasksetConfig(source=str(file)), on_bad_row="skip")
    assert (len(taskset), taskset.bad_rows) == (10, 1)
    assert "tasks.train.mine: 1 bad rows skipped" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"source": "nowhere.jsonl"},
            "tasks.train.mine.source='nowhere.jsonl': cannot be read (No such file or directory",
        ),
        ({"source": "reverse_digit"}, "tasks.train.mine.source='reverse_digit': not a file (.jsonl .json"),
        ({"source": "reverse_digit"}, "nearest: reverse_digits"),
        ({"source": "tasks.xlsx"}, "tasks.train.mine.source='tasks.xlsx': not a file"),
        ({"source": "FILE", "offset": 10}, "no usable row (offset 10, 10 rows)"),
        ({"source": "FILE", "split": "test"}, "tasks.train.mine.split='test': a file has no splits"),
        ({"source": "FILE", "subset": "main"}, "tasks.train.mine.subset='main': only a hub data set has subsets"),
        ({"source": "FILE", "args": {"digits": 3}}, "tasks.train.mine.args: only generators"),
        (
            {"source": "reverse_digits", "split": "test"},
            "tasks.train.mine.split='test': a generator has the sides train and",
        ),
        ({"source": "reverse_digits", "args": {"digit": 3}}, "tasks.train.mine.args.digit: no such argument"),
        ({"source": "FILE", "rewards": ("exakt",)}, "tasks.train.mine.rewards='exakt': no such reward; nearest: exact"),
        (
            {"source": "FILE", "rewards": ("reasoning_gym",)},
            "tasks.train.mine.rewards: 'reasoning_gym' scores sources of",
        ),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(file: Path, options: dict[str, Any], message: str) -> None:
    if options["source"] == "FILE":
        options = {**options, "source": str(file)}
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load(TasksetConfig(**options))
    assert "\n" not in str(caught.value)


def test_a_directory_and_a_file_without_permission_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").mkdir()
    with pytest.raises(ConfigError, match="a directory that datasets' save_to_disk did not write"):
        load(TasksetConfig(source=str(tmp_path / "tasks.jsonl")))


def test_gsm8k_style_file_of_only_bad_rows(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("[]\n[]\n")
    with pytest.raises(
        ConfigError, match=r"no usable row \(offset 0, 0 rows, 2 bad rows skipped; first: .*bad\.jsonl:1"
    ):
        load(TasksetConfig(source=str(path)), on_bad_row="skip")


def test_reasoning_gym_by_name() -> None:
    pytest.importorskip("reasoning_gym")
    config = TasksetConfig(source="reasoning_gym:chain_sum", args={"size": 5}, rewards=("reasoning_gym",))
    taskset = load(config)
    assert len(taskset) == 5
    assert "arithmetic" in taskset.task(0, 0).messages[0]["content"]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_pipe_or_device_is_refused_and_not_waited_for(tmp_path: Path, suffix: str) -> None:
    pipe, device = tmp_path / f"pipe{suffix}", tmp_path / f"device{suffix}"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    for path in (pipe, device):
        with pytest.raises(ConfigError) as caught:
            load(TasksetConfig(source=str(path)))
        assert str(caught.value) == (
            f"tasks.train.mine.source={str(path)!r}: a pipe or device, not a file; write what it gives into a file"
        )


@pytest.mark.parametrize("source", ["hub:", "hub:/"])
def test_a_hub_source_without_a_name_is_refused(source: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(TasksetConfig(source=source))
    assert str(caught.value) == f"tasks.train.mine.source={source!r}: names no data set; write hub:OWNER/NAME"


@pytest.mark.parametrize("answer", ["", "!!!", "\u5341\u516b", "so it is\n#### "])
def test_a_reference_that_the_reward_cannot_read_is_a_bad_row(tmp_path: Path, answer: str) -> None:
    path = tmp_path / "tasks.jsonl"
    answers = ["18", answer, "2 and 3 make\n#### 5", r"\frac{1}{2}"]
    path.write_text("".join(json.dumps({"question": "q", "answer": a}) + "\n" for a in answers))
    config = TasksetConfig(source=str(path), rewards=("format", "numeric"))
    with pytest.raises(BadRow, match=rf"^{path}:2: the reference answer '.*' is neither number nor formula; use "):
        load(config)
    taskset = load(config, on_bad_row="skip")
    assert (len(taskset), taskset.bad_rows) == (3, 1)
    load(dataclasses.replace(config, rewards=("exact",)))
