"""What is refused of a pair of Trinity's files: one cause, one line, and with it all that settles it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rljax.command_line import main
from rljax.config.load import load_config
from tests.config.importer_files import lines

REPEATS, EPOCHS = "algorithm.repeat_times", "buffer.total_epochs"


@pytest.mark.parametrize(("key", "value"), [(EPOCHS, "x"), (REPEATS, "eight"), ("buffer.batch_size", "x")])
@pytest.mark.parametrize("files", ["explorer", "trainer", "explorer, trainer"])
def test_one_mistake_of_a_pair_is_one_line(key: str, value: Any, files: str, pair: Any) -> None:
    wrong = {key: value}
    [line] = lines(pair(wrong if "explorer" in files else {}, wrong if "trainer" in files else {}))
    named = ", ".join(f"{file}.yaml" for file in files.split(", "))
    assert line.startswith(f"{named}: {key} = '{value}' {key}='{value}' is no whole number above 0; write one")


def test_a_mistake_names_each_override_that_it_takes(pair: Any) -> None:
    path = pair({REPEATS: "eight"}, {})
    taken = {"group_size": "8", "rollout_batch_size": "512", "max_steps": "116", "sidecar.max_concurrency": "128"}
    [line] = lines(path)
    before, *more, last = line.replace(" and ", ", ").split("--config.")
    assert before.endswith("write one; or ")
    assert {name.strip(", ") for name in (*more, last)} == set(taken)
    assert load_config(path, taken) == load_config(pair({}, {}), taken)


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("key", [REPEATS, EPOCHS, "name", "model.max_response_tokens", "synchronizer.sync_interval"])
def test_what_one_file_leaves_out_the_other_says(key: str, who: int, pair: Any) -> None:
    null: list[dict[str, Any]] = [{}, {}]
    null[who] = {key: None}
    assert load_config(pair(*null)) == load_config(pair({}, {}))


def test_what_both_leave_out_is_what_is_to_be_written(pair: Any) -> None:
    """512 / 64 = 8."""
    [line] = lines(pair({}, {}, REPEATS, REPEATS))
    assert "batch_size × repeat_times = 64 and train_batch_size = 512" in line
    assert "write repeat_times: 8; or --config.group_size and --config.max_steps" in line


@pytest.mark.parametrize(("explorer", "trainer"), [(1024, 512), (1024, 2048), (2048, 1024), (512, 1024)])
def test_a_length_in_which_a_pair_differs_is_told_at_once_by_its_own_value(
    explorer: int, trainer: int, pair: Any
) -> None:
    """Of 2048 tokens in all, 2048 of a response leave none to a prompt; the files differ all the same."""
    key = "model.max_response_tokens"
    found = sorted(lines(pair({key: explorer}, {key: trainer, "trainer.grad_clip": "x", REPEATS: 4})))
    assert [line.partition(" = ")[0] for line in found] == [
        f"trainer.yaml: {REPEATS}",
        f"trainer.yaml: {key}",
        "trainer.yaml: trainer.grad_clip",
    ]
    assert f"{key} = {trainer} " in found[1]
    assert f"by explorer.yaml: {key} it is {explorer}; make them agree" in found[1]


LENGTHS = {"sidecar.max_model_len": "2048", "model.max_prompt_tokens": "1024", "learner.rows_per_microbatch": "32"}


@pytest.mark.parametrize(("explorer", "trainer"), [(2048, 4096), (2048, 1536), (2048, 512), (1536, 2048), (512, 2048)])
def test_a_pair_of_two_lengths_is_one_line_and_its_overrides_settle_it(explorer: int, trainer: int, pair: Any) -> None:
    """Rows are as long as a trajectory, and 16384 / 2048 = 8 of each of 4 devices; 512 leave no room for a prompt."""
    key = "model.max_model_len"
    path = pair({key: explorer}, {key: trainer})
    [line] = lines(path)
    assert line.startswith(f"trainer.yaml: {key} = {trainer} ")
    assert f"by explorer.yaml: {key} it is {explorer}; make them agree; or " in line
    named = {name: value for name, value in LENGTHS.items() if f"--config.{name}" in line}
    assert line.count("--config.") == len(named)
    config = load_config(path, named)
    assert (config.longest, config.sidecar.max_model_len, config.learner.rows_per_microbatch) == (2048, 2048, 32)


def test_a_key_in_which_a_pair_differs_is_settled_by_the_override_that_its_line_names(pair: Any) -> None:
    path = pair({"synchronizer.sync_method": "nccl"}, {"synchronizer.sync_method": "checkpoint"})
    [line] = lines(path)
    assert line.endswith("; make them agree, or write --config.sync_method")
    assert load_config(path, {"sync_method": "checkpoint"}).sync_method == "checkpoint"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("buffer.explorer_input.taskset.default_workflow_type", "simple_workflow"),
        ("buffer.explorer_input.taskset.name", "mine"),
    ],
)
def test_what_stands_for_several_keys_differs_in_its_own_words(key: str, value: str, pair: Any) -> None:
    [line] = lines(pair({key: value}, {}))
    assert f"by explorer.yaml: {key} it is '{value}'; make them agree" in line


def test_each_file_of_a_pair_has_gpus_of_its_own(pair: Any) -> None:
    config = load_config(pair({"cluster.gpu_per_node": 4}, {"cluster.gpu_per_node": 2}))
    assert (config.learner.devices, config.sidecar.devices) == ("gpu:0-1", "gpu:4-7")


def test_a_taskset_without_a_path_is_one_line(pair: Any) -> None:
    key = "buffer.explorer_input.taskset.path"
    [line] = lines(pair({}, {}, key, key))
    assert line == (
        "explorer.yaml, trainer.yaml: buffer.explorer_input.taskset.path = None there is no path; write a hub id, "
        "FILE.jsonl or FILE.parquet"
    )


def test_each_file_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tmp_path / f"{name}.yaml") for name in "ab"]
    assert main([f"--config={','.join(files)}"]) == 2
    said = capsys.readouterr().err
    assert all(f"{file}: no such file" in said for file in files)
