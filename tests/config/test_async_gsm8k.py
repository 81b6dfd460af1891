"""`configs/async_gsm8k.py` says what Trinity-RFT's three YAML files of that example say, key by key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rljax.config.load import load_config
from rljax.config.schema import Config

CONFIG = Path(__file__).parents[2] / "configs" / "async_gsm8k.py"
# As the files have it; what they leave out stands with Trinity's default, marked "default".
SHARED: dict[str, Any] = {
    "algorithm.algorithm_type": "grpo",
    "algorithm.repeat_times": 8,
    "model.model_path": "Qwen/Qwen2.5-1.5B-Instruct",
    "model.max_response_tokens": 1024,
    "model.max_model_len": 2048,
    "buffer.total_epochs": 1,
    "taskset.path": "openai/gsm8k",
    "taskset.split": "train",
    "taskset.subset_name": "main",
    "taskset.prompt_key": "question",
    "taskset.response_key": "answer",
    "taskset.rollout_args.temperature": 1.0,
    "synchronizer.sync_method": "checkpoint",
    "synchronizer.sync_interval": 10,
    "synchronizer.sync_offset": 0,  # default
}
EXPLORER = {
    "mode": "explore",
    "cluster.gpu_per_node": 4,
    "buffer.batch_size": 64,
    "explorer.name": "explorer",  # default
    "explorer.runner_per_model": 16,
    "explorer.rollout_model.engine_num": 4,
}
NEW = EXPLORER | {
    "cluster.gpu_per_node": 8,
    "explorer.name": "explorer_new",
    "explorer.runner_per_model": 8,
    "explorer.rollout_model.engine_num": 8,
}
TRAINER = {
    "mode": "train",
    "cluster.gpu_per_node": 4,
    "algorithm.optimizer.lr": 1e-6,
    "buffer.train_batch_size": 512,
    "trainer.grad_clip": 1.0,
    "trainer.ulysses_sequence_parallel_size": 1,
    "trainer.max_token_len_per_gpu": 16384,
}


def devices(named: str) -> int:
    first, _, last = named.removeprefix("gpu:").partition("-")
    return int(last) - int(first) + 1


def shared(config: Config) -> dict[str, Any]:
    taskset = config.explored[1]["gsm8k"]
    return {
        "algorithm.algorithm_type": config.algorithm.adv_estimator,
        "algorithm.repeat_times": config.group_size,
        "model.model_path": config.model.path,
        "model.max_response_tokens": config.model.max_response_tokens,
        "model.max_model_len": config.context,
        "buffer.total_epochs": config.total_epochs,
        "taskset.path": taskset.source.removeprefix("hub:"),
        "taskset.split": taskset.split,
        "taskset.subset_name": taskset.subset,
        "taskset.prompt_key": taskset.prompt_key,
        "taskset.response_key": taskset.answer_key,
        "taskset.rollout_args.temperature": config.sidecar.generating_args.temperature,
        "synchronizer.sync_method": config.sync_method,
        "synchronizer.sync_interval": config.sync_interval,
        "synchronizer.sync_offset": config.async_generation_ratio,
    }


def explorer(config: Config) -> dict[str, Any]:
    return {
        "mode": config.mode,
        "cluster.gpu_per_node": devices(config.sidecar.devices),
        "buffer.batch_size": config.groups_per_batch,
        "explorer.name": config.explorer.name,
        "explorer.runner_per_model": config.sidecar.max_concurrency // config.group_size,
        "explorer.rollout_model.engine_num": config.sidecar.num_engines,
    }


def trainer(config: Config) -> dict[str, Any]:
    rows = config.learner.rows_per_microbatch // devices(config.learner.devices)
    return {
        "mode": config.mode,
        "cluster.gpu_per_node": devices(config.learner.devices),
        "algorithm.optimizer.lr": config.learner.optimizer.learning_rate,
        "buffer.train_batch_size": config.rollout_batch_size,
        "trainer.grad_clip": config.learner.optimizer.grad_clip,
        "trainer.ulysses_sequence_parallel_size": config.learner.mesh.sequence,
        "trainer.max_token_len_per_gpu": rows * config.row_tokens,
    }


@pytest.fixture(autouse=True)
def as_published(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRINITY_MODEL_PATH", "TRINITY_TASKSET_PATH", "TRINITY_CHECKPOINT_ROOT_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("mode", "read", "written"),
    [("explore", explorer, EXPLORER), ("explore_new", explorer, NEW), ("train", trainer, TRAINER)],
)
def test_every_key_of_the_files_has_its_value(mode: str, read: Any, written: dict[str, Any]) -> None:
    config = load_config(f"{CONFIG}:{mode}")
    assert shared(config) | read(config) == SHARED | written


def test_no_token_is_staler_than_there() -> None:
    """sync_interval + sync_offset - 1 steps."""
    assert load_config(f"{CONFIG}:both").staleness_bound == 9


def test_all_batches_of_an_interval_are_made_with_its_version_as_there() -> None:
    """Ten of 64 tasks."""
    assert load_config(f"{CONFIG}:both").staleness_credit == 640
