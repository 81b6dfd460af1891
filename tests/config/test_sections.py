"""Groups of a file of ROLL's or Trinity-RFT's that are misspelt, or there are none of, and values in their place."""

from __future__ import annotations

from typing import Any

import pytest

from rljax.config.load import load_config
from tests.config.importer_files import RLVR, ROLL, TRINITY, changed, lines, nested

NO_OVERRIDE = "no override settles it"


@pytest.mark.parametrize(
    ("text", "path", "value", "keys"),
    [
        (TRINITY, "buffer", 3, "write them (batch_size, train_batch_size, total_epochs, …) below it"),
        (TRINITY, "buffer.explorer_input", ["a"], "write them (taskset, tasksets, "),
        (TRINITY, "buffer.explorer_input.taskset.format", "x", "write them (prompt_key, response_key, "),
        (TRINITY, "cluster", True, "write them (node_num, gpu_per_node, ray_address) below it"),
        (ROLL, "actor_train.training_args", 4, "write them (learning_rate, "),
        (ROLL, "custom_envs", "lake", "write them below it"),
        (RLVR, "rewards", 5, "write them below it"),
    ],
    ids=lambda one: one if isinstance(one, str) and "\n" not in one else "",
)
def test_a_value_in_the_place_of_a_group_is_one_line(text: str, path: str, value: Any, keys: str, write: Any) -> None:
    [line] = lines(write(nested(text, path, value), "no_such: 1"))[:-1]
    assert line.startswith(f"{path} = ")
    assert f"this is a group of keys; {keys}" in line
    assert line.endswith(f"or leave it out of the file: {NO_OVERRIDE}")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (TRINITY, "synchronizer"),
        (TRINITY, "buffer.explorer_input.taskset.format"),
        (ROLL, "actor_infer.generating_args"),
        (ROLL, "custom_envs"),
        (RLVR, "rewards.math_rule"),
    ],
)
def test_nothing_in_the_place_of_a_group_is_an_empty_one(text: str, path: str, write: Any) -> None:
    assert load_config(write(nested(text, path, None))) == load_config(write(changed(text, {}, path)))


@pytest.mark.parametrize("group", ["buffer", "bufer"])
def test_groups_of_a_listed_taskset_are_read_as_those_of_others(group: str, write: Any) -> None:
    sets = [{"name": "e", "path": "e.jsonl", "format": 3, "rollout_arg": {"n": 1, "top_p": 1.0}}, "f"]
    text = nested(TRINITY, "buffer.explorer_input.eval_tasksets", sets).replace("buffer:", f"{group}:")
    path = "buffer.explorer_input.eval_tasksets"
    found = lines(write(text))
    assert [line.split()[0] for line in found] == [
        *(["bufer"] if group == "bufer" else []),
        f"{path}.0.format",
        f"{path}.0.rollout_arg",
        f"{path}.1",
    ]
    assert f"{path}.0.rollout_arg unknown; did you mean {path}.0.rollout_args? Correct" in found[-2]


SAID = {"bufer.batch_size": 8, "bufer.total_steps": 20, "bufer.train_batch_size": 32}


@pytest.mark.parametrize("left_out", ["", "buffer.batch_size", "buffer.total_steps"])
def test_a_misspelt_group_beside_the_right_one_is_one_line(left_out: str, write: Any) -> None:
    """What it says is what is meant: 8 × 4 = 32, and without the 8 it would be 1 × 4."""
    keys = {**SAID, "bufer.q": 1, "bufer.r.s": 2}
    assert lines(write(changed(TRINITY, keys, left_out), "no_such: 1"))[:-1] == [
        f"bufer unknown; did you mean buffer, which is there too? Correct it in the file: {NO_OVERRIDE}"
    ]


@pytest.mark.parametrize(
    ("text", "keys", "meant"),
    [
        (ROLL, {"wandb.project": "p", "wandb.tags.one": 1}, ""),
        (TRINITY, {"buffer.zzz.a": 1, "buffer.zzz.b": 2}, ""),
        (TRINITY, {"optimizer.lr": 1e-6, "optimizer.weight_decay": 0.1}, "algorithm.optimizer"),
        (ROLL, {"training_args.weight_decay": 0.1, "training_args.fp16": True}, "actor_train.training_args"),
    ],
)
def test_a_group_that_there_is_not_is_one_line(text: str, keys: dict[str, Any], meant: str, write: Any) -> None:
    advice = f"did you mean {meant}? Correct it in the file" if meant else "leave it out of the file"
    [line] = lines(write(changed(text, keys), "no_such: 1"))[:-1]
    assert line == f"{next(iter(keys)).rpartition('.')[0]} unknown; {advice}: {NO_OVERRIDE}"


def test_an_empty_group_that_there_is_not_is_told_too(write: Any) -> None:
    assert lines(write(ROLL, "wandb: {}", "max_step: 1"))[0].startswith("wandb unknown; leave it out of the file")


def test_of_a_group_that_there_is_not_one_key_is_told_by_its_path(write: Any) -> None:
    [line, _] = lines(write(nested(ROLL, "wandb.project", "p"), "no_such: 1"))
    assert line.startswith("wandb.project = 'p' unknown key; ")
