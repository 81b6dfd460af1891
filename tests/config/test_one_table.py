"""Several mistakes in a file of ROLL's, or in both of a Trinity pair, are one table: a line for each cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rljax.command_line import main
from rljax.config.fields import ConfigError
from rljax.config.importers.translate import translate
from rljax.config.load import load_config
from rljax.config.refusals import RefusedConfig, table
from tests.config.importer_files import RLVR, ROLL, SEEDS, TRINITY, changed, nested

LAKE = "\n".join((SEEDS / name).read_text() for name in ("env_managers.yaml", "agent_val_frozen_lake_async.yaml"))
TRAINED, GENERATED = "actor_train.device_mapping", "actor_infer.device_mapping"
NODE = "num_gpus_per_node"
TURN, ACCUMULATED = (
    "actor_infer.generating_args.max_new_tokens",
    "actor_train.training_args.gradient_accumulation_steps",
)
ENGINES = "explorer.rollout_model.engine_num"
TEMPERATURE = "buffer.explorer_input.taskset.rollout_args.temperature"


def refused(path: str, **overrides: Any) -> list[tuple[str, str]]:
    """The key, with its file where there are two, and the message of each line that is refused."""
    with pytest.raises(ConfigError) as answered:
        load_config(path, {key.replace("__", "."): value for key, value in overrides.items()})
    title, *lines = str(answered.value).splitlines()
    assert lines, title
    return [(line.strip().split(" = ")[0].split("  ")[0], line) for line in lines]


PAIRS: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    (
        {ENGINES: 7},
        {"buffer.train_batch_size": 500, "cluster.gpu_per_node": "many", "trainer.grad_clipp": 1.0},
        [
            f"explorer.yaml: {ENGINES}",
            "trainer.yaml: buffer.train_batch_size",
            "trainer.yaml: cluster.gpu_per_node",
            "trainer.yaml: trainer.grad_clipp",
        ],
    ),
    ({}, {"buffer.train_batch_size": 500}, ["trainer.yaml: buffer.train_batch_size"]),
    ({"buffer.batch_size": 63}, {}, ["trainer.yaml: buffer.train_batch_size"]),
    ({}, {"algorithm.repeat_times": 4}, ["trainer.yaml: algorithm.repeat_times"]),
    (
        {TEMPERATURE: 0.5},
        {"model.max_model_len": 4096, "synchronizer.sync_interval": 5},
        [
            "trainer.yaml: model.max_model_len",
            f"trainer.yaml: {TEMPERATURE}",
            "trainer.yaml: synchronizer.sync_interval",
        ],
    ),
    (
        {"algorithm.repeat_times": 4, "synchronizer.sync_style": "dynamic_by_explorer"},
        {"trainer.max_token_len_per_gpu": -5, "cluster.gpu_per_node": "many"},
        [
            "trainer.yaml: algorithm.repeat_times",
            "explorer.yaml: synchronizer.sync_style",
            "trainer.yaml: trainer.max_token_len_per_gpu",
            "trainer.yaml: cluster.gpu_per_node",
        ],
    ),
    (
        {"cluster.gpu_per_node": "x"},
        {"cluster.gpu_per_node": "x"},
        ["explorer.yaml, trainer.yaml: cluster.gpu_per_node"],
    ),
    (
        {"explorer.rollout_model.tensor_parallel_size": 2, "explorer.runner_per_model": "few"},
        {"trainer.ulysses_sequence_parallel_size": 3, "algorithm.optimizer.lr": "fast"},
        [
            f"explorer.yaml: {ENGINES}",
            "explorer.yaml: explorer.runner_per_model",
            "trainer.yaml: algorithm.optimizer.lr",
            "trainer.yaml: trainer.ulysses_sequence_parallel_size",
        ],
    ),
]


@pytest.mark.parametrize(("explorer", "trainer", "keys"), PAIRS)
def test_both_files_of_a_pair_are_one_table(
    explorer: dict[str, Any], trainer: dict[str, Any], keys: list[str], pair: Any
) -> None:
    found = [key for key, _ in refused(pair(explorer, trainer))]
    assert sorted(found) == sorted(keys)


def test_a_key_of_both_files_is_held_to_that_of_the_other(pair: Any) -> None:
    [(_, line)] = refused(pair({TEMPERATURE: 0.5}, {}))
    assert f"would be 1.0, and by explorer.yaml: {TEMPERATURE} it is 0.5" in line


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for name in ("explorer", "trainer"):
        (tmp_path / name).mkdir()
        text = (SEEDS / f"{name}.yaml").read_text()
        (tmp_path / name / "run.yaml").write_text(nested(text, "no_such", 1))
    files = [str(tmp_path / name / "run.yaml") for name in ("explorer", "trainer")]
    [(key, _)] = refused(",".join(files))
    assert key == f"{', '.join(files)}: no_such"


def test_engines_beyond_the_gpus_are_settled_by_fewer(pair: Any) -> None:
    config = load_config(pair({ENGINES: 7}, {}), {"sidecar.num_engines": "2"})
    assert (config.sidecar.num_engines, config.sidecar.devices) == (2, "gpu:4-7")


def test_a_batch_of_ours_leaves_the_steps_of_the_epochs_to_be_said(pair: Any) -> None:
    path = pair({}, {"buffer.train_batch_size": 500})
    [(key, line)] = refused(path, rollout_batch_size="504")
    assert (key, line.endswith("or --config.max_steps")) == ("trainer.yaml: buffer.train_batch_size", True)
    config = load_config(path, {"rollout_batch_size": "504", "max_steps": "9"})
    assert (config.rollout_batch_size, config.group_size, config.max_steps) == (504, 8, 9)


def test_the_steps_of_one_file_are_those_of_the_pair(pair: Any) -> None:
    config = load_config(pair({}, {"buffer.total_steps": 7}))
    assert (config.max_steps, config.total_epochs) == (7, None)


def test_an_override_that_does_not_fit_is_named_before_the_file_s_key(pair: Any) -> None:
    found = refused(pair({}, {}), learner__mesh__fsdp="3")
    assert len(found) == 2  # devices, and rows
    assert all(key.startswith("--config.learner.mesh.fsdp, trainer.yaml: ") for key, _ in found)


ROLLS: list[tuple[dict[str, Any], list[str]]] = [
    ({ACCUMULATED: 100}, [ACCUMULATED]),
    ({TURN: 9000, "actor_train.model_args.lora_rank": 8}, [TURN, "actor_train.model_args.lora_rank"]),
    ({"sequence_length": 100, "max_steps": "many"}, [TURN, "max_steps"]),
    ({GENERATED: "list(range(2,6))", "pg_clip": "x"}, [GENERATED, "pg_clip"]),
    ({GENERATED: "list(range(0,8))", "ppo_epochs": 0}, [GENERATED, "ppo_epochs"]),
    (
        {GENERATED: "list(range(0,4))", "actor_infer.generating_args.num_beams": 2},
        ["actor_infer.strategy_args.strategy_config.gpu_memory_utilization", "actor_infer.generating_args.num_beams"],
    ),
    ({TRAINED: "list(rang(0,4))", GENERATED: "4-7", "max_step": 1}, [TRAINED, GENERATED, "max_step"]),
    ({TRAINED: "four", GENERATED: "4-7", NODE: "eight"}, [TRAINED, GENERATED, NODE]),
    (
        {ACCUMULATED: "x", "actor_train.training_args.per_device_train_batch_size": 0, "rollout_batch_size": "many"},
        [ACCUMULATED, "actor_train.training_args.per_device_train_batch_size", "rollout_batch_size"],
    ),
    ({"sequence_length": "long", TURN: "short"}, ["sequence_length", TURN]),
    (
        {"actor_train.strategy_args.strategy_config.tensor_model_parallel_size": 3, TURN: 8192},
        [TRAINED, TURN],
    ),
]


@pytest.mark.parametrize(("mistakes", "keys"), ROLLS, ids=[" ".join(mistakes) for mistakes, _ in ROLLS])
def test_a_mistake_in_a_file_of_roll_is_one_line(mistakes: dict[str, Any], keys: list[str], write: Any) -> None:
    text = LAKE
    for key, value in mistakes.items():
        text = nested(text, key, value)
    assert sorted(key for key, _ in refused(write(text))) == sorted(keys)


def test_devices_of_ours_settle_a_mapping_that_cannot_be_read(write: Any) -> None:
    infer = load_config(write(nested(ROLL, GENERATED, "four")), {"sidecar.devices": "gpu:4-5"})
    assert infer.sidecar.devices == "gpu:4-5"
    learner = write(nested(ROLL, TRAINED, "four"))
    [(_, line)] = refused(learner, learner__devices="cpu")  # the minibatch is of as many devices as there would be
    assert "--config.algorithm.minibatch_size" in line
    config = load_config(learner, {"learner.devices": "cpu", "algorithm.minibatch_size": "8"})
    assert (config.learner.devices, config.algorithm.minibatch_size, config.learner.rows_per_microbatch) == (
        "cpu",
        8,
        1,
    )


def test_gpus_of_a_node_are_settled_by_the_devices_that_they_are_read_for(write: Any) -> None:
    path = write(nested(ROLL, NODE, "eight"))
    [(key, line)] = refused(path)
    assert key == NODE
    assert line.endswith("; or --config.learner.devices, --config.sidecar.devices and --config.learner.mesh.fsdp")
    named = {"learner.devices": "gpu:0-3", "sidecar.devices": "gpu:4-7", "learner.mesh.fsdp": "4"}
    assert load_config(path, named).learner.mesh.fsdp == 4


SCORER = {"worker_cls": "roll.RewardWorker", "tag_included": ["a"]}


@pytest.mark.parametrize(("worker", "name"), [("reward", "reward"), ("rewards.scored", "scored")])
@pytest.mark.parametrize("wrong", [[TRAINED], [GENERATED], ["own"], [TRAINED, GENERATED, "own"]])
def test_devices_of_each_worker_are_told_where_they_stand(wrong: list[str], worker: str, name: str, write: Any) -> None:
    """A reward model is on devices of its own if neither learner nor engines have them, whose keys it reads."""
    own = f"{worker}.device_mapping"
    text = changed(RLVR, {worker: SCORER, own: "[3]", "reward_pretrain": "m"}, "rewards" if name == "reward" else "")
    if name != "reward":
        text = nested(text, "rewards.math_rule.tag_included", ["b"])
    assert load_config(write(text)).reward_models[name].devices == "gpu:3"
    keys = {own if key == "own" else key: f"four of {key}" for key in wrong}
    path = write(changed(text, keys))
    found = refused(path)
    assert sorted(key for key, _ in found) == sorted(keys)
    assert all(f"{key} = '{value}'" in "".join(line for _, line in found) for key, value in keys.items())
    assert f"--config.reward_models.{name}.devices" in found[-1][1]


@pytest.mark.parametrize(
    ("left_out", "blamed"),
    [("", "rollout_batch_size, train_env_manager.group_size"), ("rollout_batch_size", "train_env_manager.group_size")],
)
def test_a_group_that_divides_no_batch_is_told_of_each_key_that_the_file_says(
    left_out: str, blamed: str, write: Any
) -> None:
    """Neither the 64 of the file nor the 128 that are published are groups of 7."""
    found = refused(write(changed(ROLL, {"train_env_manager.group_size": 7, "no_such": 1}, left_out)))
    [(key, line)] = [one for one in found if one[0] != "no_such"]
    assert key == blamed
    assert line.endswith(f"; or write a group_size that divides {128 if left_out else 64}")


@pytest.mark.parametrize(("text", "said"), [(ROLL, TURN), (RLVR, f"{TURN}, left out")])
def test_a_budget_that_trains_and_validates_is_one_line(text: str, said: str, write: Any) -> None:
    found = refused(write(text, "no_such: 1"), model__max_response_tokens="64")
    [(key, line)] = [one for one in found if "generating_args" in one[1]]
    assert key == f"--config.model.max_response_tokens, {said}"
    assert "sidecar.generating_args.max_new_tokens and sidecar.val_generating_args.max_new_tokens=" in line
    wrong = {f"sidecar__{side}generating_args__max_new_tokens": "0" for side in ("", "val_")}
    assert len(refused(write(text), **wrong)) == 2  # two overrides are two mistakes


def test_a_file_that_tells_no_pipeline_is_told_which_group_it_leaves_out(write: Any) -> None:
    (key, line), *_ = refused(write("pretrain: m", "no_such: 1", "no_other: 2"))
    assert key == "train_env_manager or rewards, left out"
    assert "the file has neither a key of environments (train_env_manager, " in line


def test_a_longer_trajectory_has_room_for_the_turn_and_its_prompt(write: Any) -> None:
    config = load_config(write(nested(ROLL, TURN, 3000)), {"model.sequence_length": "8192"})
    assert config.sidecar.generating_args.max_new_tokens == config.model.max_response_tokens == 3000


def test_engines_within_the_learners_gpus_share_their_memory(write: Any) -> None:
    shared = nested(ROLL, GENERATED, "list(range(0,4))")
    memory = "actor_infer.strategy_args.strategy_config.gpu_memory_utilization"
    assert load_config(write(nested(shared, memory, 0.4))).sidecar.colocate
    config = load_config(write(nested(shared, memory, 0.8)), {"learner.gpu_memory_utilization": "0.2"})
    assert config.sidecar.gpu_memory_utilization == 0.8


def test_a_copy_of_a_published_file_says_what_its_name_would_have_told(write: Any) -> None:
    text = (SEEDS / "agent_val_frozen_lake_async.yaml").read_text()
    with pytest.raises(ConfigError, match=r"neither a key of environments \(train_env_manager.*agent_val_frozen_lake_"):
        load_config(write(text))
    group = {"group_size": "8"}  # with it nothing else is wrong, and what it trains is still not said
    with pytest.raises(ConfigError, match=r"neither a key of environments \(train_env_manager.*agent_val_frozen_lake_"):
        load_config(write(text), group)
    tags = {"rollout.train_env_manager.tags": "FrozenLake"}
    assert load_config(write(text), group | tags).rollout.train_env_manager.tags == ("FrozenLake",)
    with pytest.raises(ConfigError, match=r"looked for pretrain, .*--config=roll:FILE"):
        load_config(write(yaml.safe_dump({"hello": 1})))


def test_what_a_run_refuses_alone_names_the_key_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is looked for once the config has loaded: a model, or rows, that are not here."""
    file = tmp_path / "mine.yaml"
    file.write_text(nested(ROLL, "pretrain", "./models/qwen"))
    small = [f"--config={file}", "--config.learner.devices=cpu", f"--config.run_dir={tmp_path / 'run'}"]
    assert main(small) == 2
    missing = "rljax: model.path=./models/qwen: there is no such directory"
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("rljax: "))
    assert line.startswith(missing)
    assert line.endswith(" (ROLL: pretrain)")
    file.write_text(TRINITY)
    assert main([*small, "--config.model.path=tiny"]) == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("rljax: "))
    assert line.startswith("rljax: tasks.train.t.source='train.jsonl': ")
    keys = "buffer.explorer_input.taskset.name, buffer.explorer_input.taskset.path"
    assert line.endswith(f" (Trinity-RFT: {keys})")


def test_what_a_run_refuses_of_several_keys_is_one_table(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(TRINITY)
    found = translate(str(file)).told(
        table("what is refused", [ConfigError("model.path=x: is not here"), ConfigError("a reward printed: no")]), {}
    )
    assert isinstance(found, RefusedConfig)
    assert found.said == [
        ("model.model_path", "model.path=x: is not here"),
        ("(several keys)", "a reward printed: no"),
    ]


WORKER, OWN_COLUMNS = "rewards.math_rule.worker_cls", '{"prmpt": "1+1?", "answr": "2"}\n'


def columns_refused(file: Path, text: str, capsys: pytest.CaptureFixture[str], *more: str) -> list[str]:
    file.write_text(text)
    small = ["--config.learner.devices=cpu", "--config.model.path=tiny", f"--config.run_dir={file.parent / 'run'}"]
    assert main([f"--config={file}", *small, *more]) == 2
    return [line for line in capsys.readouterr().err.splitlines() if "no such column" in line]


@pytest.mark.parametrize(
    ("worker", "named"),
    [("roll.MathRuleRewardWorkr", ["prompt_key", "answer_key"]), ("mine.MyWorker", ["prompt_key"])],
)
def test_a_worker_that_is_refused_hides_no_columns(
    worker: str, named: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelt one reads the answer as the nearest does; what one of one's own reads nobody knows."""
    (tmp_path / "rows.jsonl").write_text(OWN_COLUMNS)
    text = nested(RLVR, "actor_train.data_args.file_name", str(tmp_path / "rows.jsonl"))
    found = columns_refused(tmp_path / "mine.yaml", nested(text, WORKER, worker), capsys)
    assert [line.partition("tasks.train.math_rule.")[2].partition("=")[0] for line in found] == named


def test_a_workflow_that_is_misspelt_hides_no_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").write_text(OWN_COLUMNS)
    text = nested(TRINITY, "buffer.explorer_input.taskset.path", str(tmp_path / "rows.jsonl"))
    text = nested(text, "buffer.explorer_input.taskset.default_workflow_type", "math_workflw")
    found = columns_refused(tmp_path / "mine.yaml", text, capsys)
    assert [line.partition("tasks.train.t.")[2].partition("=")[0] for line in found] == ["prompt_key", "answer_key"]


def test_a_key_that_no_key_of_the_file_says_is_that_of_its_rows(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(nested(RLVR, "actor_train.data_args.file_name", "rows.jsonl"))
    errors = ["tasks.train.math_rule.tag_key='tag': no such column", "tasks.train.math_rule.source='rows.jsonl': no"]
    found = translate(str(file)).told(table("what is refused", [ConfigError(error) for error in errors]), {})
    assert isinstance(found, RefusedConfig)
    assert [key for key, _ in found.said] == ["actor_train.data_args.file_name"] * 2
