"""Overrides that are read in the place of keys of a Trinity file, and disagreements of a pair beside misspellings."""

from __future__ import annotations

from typing import Any

import pytest

from rljax.config.load import load_config
from tests.config.importer_files import TRINITY, lines, nested

ENGINES, TENSOR = "explorer.rollout_model.engine_num", "explorer.rollout_model.tensor_parallel_size"
METHOD, ROOT, INTERVAL = "synchronizer.sync_method", "checkpoint_root_dir", "synchronizer.sync_interval"
RESPONSE, WHOLE, TRAINED = "model.max_response_tokens", "model.max_model_len", "buffer.train_batch_size"


@pytest.mark.parametrize("wrong", [9, "x", 0, 3])
def test_engines_that_are_said_divide_the_gpus(wrong: Any, write: Any) -> None:
    """2 of 8 GPUs are the engines', whatever the file says, and the rest the learner's: 2 rows on each of 6."""
    path = write(nested(TRINITY, ENGINES, wrong))
    config = load_config(path, {"sidecar.num_engines": "2"})
    assert (config.sidecar.num_engines, config.sidecar.devices) == (2, "gpu:6-7")
    assert (config.learner.devices, config.learner.mesh.fsdp, config.learner.rows_per_microbatch) == ("gpu:0-5", 6, 12)
    two = load_config(path, {"sidecar.num_engines": "2", "sidecar.tensor_parallel_size": "2"})
    assert (two.learner.devices, two.sidecar.devices) == ("gpu:0-3", "gpu:4-7")


@pytest.mark.parametrize("said", ["9", "many", "0"])
def test_engines_that_are_said_and_do_not_fit_are_told_of_the_override(said: str, write: Any) -> None:
    found = lines(write(TRINITY, "no_such: 1"), {"sidecar.num_engines": said})
    [line] = [line for line in found if "no_such" not in line]
    assert line.startswith("--config.sidecar.num_engines ")
    assert ("9 GPUs" if said == "9" else f"sidecar.num_engines={said}: ") in line


@pytest.mark.parametrize("wrong", [8, 9, "x"])
@pytest.mark.parametrize("files", ["explorer", "explorer, trainer"])
def test_engines_of_a_pair_are_settled_by_their_number(wrong: Any, files: str, pair: Any) -> None:
    keys = {ENGINES: wrong}
    path = pair(keys, keys if "trainer" in files else {})
    config = load_config(path, {"sidecar.num_engines": "2"})
    assert (config.sidecar.num_engines, config.sidecar.devices, config.learner.devices) == (2, "gpu:4-7", "gpu:0-3")


@pytest.mark.parametrize("key", [RESPONSE, WHOLE])
@pytest.mark.parametrize(("explorer", "trainer"), [(1024, 512), (512, 1024), (4096, 2048), ("x", 1024)])
def test_lengths_that_are_said_say_the_rows_too(key: str, explorer: Any, trainer: Any, pair: Any) -> None:
    """16384 / 1536 is 10 whole rows on each of 4 GPUs."""
    said = {"model.max_response_tokens": "512", "model.max_prompt_tokens": "1024", "sidecar.max_model_len": "1536"}
    config = load_config(pair({key: explorer}, {key: trainer}), said)
    assert (config.longest, config.sidecar.max_model_len) == (1536, 1536)
    assert (config.learner.rows_per_microbatch, config.learner.max_tokens_per_row) == (40, 1536)


def test_one_length_that_is_said_leaves_the_others_as_the_file_has_them(pair: Any) -> None:
    config = load_config(pair({}, {}), {"model.max_response_tokens": "512"})
    assert (config.model.max_prompt_tokens, config.sidecar.max_model_len) == (1024, 2048)


@pytest.mark.parametrize(
    ("explorer", "trainer", "told"),
    [
        ({METHOD: "nccll"}, {METHOD: "checkpoint"}, [f"explorer.yaml: {METHOD}", f"trainer.yaml: {METHOD}"]),
        ({METHOD: "nccll"}, {METHOD: "nccl"}, [f"explorer.yaml: {METHOD}"]),
        ({"algorithm.algorithm_type": "grpoo"}, {}, ["explorer.yaml: algorithm.algorithm_type"]),
        (
            {"algorithm.algorithm_type": "grpoo"},
            {"algorithm.algorithm_type": "ppo"},
            ["explorer.yaml: algorithm.algorithm_type", "trainer.yaml: algorithm.algorithm_type"],
        ),
        ({ROOT: "a"}, {"checkpoint_root_dri": "b"}, [f"trainer.yaml: {ROOT}", "trainer.yaml: checkpoint_root_dri"]),
        ({"checkpoint_root_dri": "a"}, {ROOT: "b"}, ["explorer.yaml: checkpoint_root_dri", f"trainer.yaml: {ROOT}"]),
        ({"checkpoint_root_dri": "a"}, {ROOT: "a"}, ["explorer.yaml: checkpoint_root_dri"]),
        (
            {"synchronizer.sync_intervall": 5},
            {INTERVAL: 10},
            ["explorer.yaml: synchronizer.sync_intervall", f"trainer.yaml: {INTERVAL}"],
        ),
    ],
)
def test_files_that_differ_are_told_beside_a_misspelling(
    explorer: dict[str, Any], trainer: dict[str, Any], told: list[str], pair: Any
) -> None:
    meant = {"checkpoint_root_dri": ROOT, "synchronizer.sync_intervall": INTERVAL}
    found = lines(pair(explorer, trainer, *(meant.get("".join(keys), "") for keys in (explorer, trainer))))
    assert [line.partition(" = ")[0] for line in found] == told
    assert sum("make them agree" in line for line in found) == len(told) - 1


def test_a_misspelt_value_that_differs_says_both(pair: Any) -> None:
    kind = "algorithm.algorithm_type"
    algorithm, method = lines(pair({METHOD: "checkpoint", kind: "ppo"}, {METHOD: "nccll", kind: "grpoo"}))
    assert "did you mean nccl? Else write --config.sync_method; sync_method would be 'nccl', and by " in method
    assert f"explorer.yaml: {METHOD} it is 'checkpoint'; make them agree" in method
    assert "did you mean grpo? Else" in algorithm
    assert f"algorithm.adv_estimator would be 'grpo', and by explorer.yaml: {kind} it is 'gae'; make" in algorithm


@pytest.mark.parametrize("size", [500, 502])
def test_a_batch_that_no_explorer_fills_is_answered_alike_in_a_pair_and_alone(size: int, pair: Any, seed: Any) -> None:
    """512 = 64 × 8; the trainer's file says the 8 alone."""
    [line] = lines(pair({}, {TRAINED: size}))
    assert "write train_batch_size: 512; or --config.rollout_batch_size and --config.max_steps" in line
    [alone] = lines(seed("trainer.yaml", {TRAINED: size}))
    assert alone.startswith(f"{TRAINED} = {size} ")
    assert "write train_batch_size: batch_size × repeat_times, 8 times the explorer's batch_size; or " in alone
    assert alone.endswith("; or --config.rollout_batch_size and --config.max_steps")
    for path in (pair({}, {TRAINED: 512}), seed("trainer.yaml", {TRAINED: 512})):
        assert load_config(path).rollout_batch_size == 512
