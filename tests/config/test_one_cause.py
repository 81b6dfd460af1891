"""What is refused of a file of ROLL's or Trinity-RFT's: one cause, one line, and with it all that settles it."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from rljax.command_line import main
from rljax.config.fields import ConfigError
from rljax.config.importers.agreement import agreeing
from rljax.config.importers.literal import literal
from rljax.config.importers.translation import Row
from rljax.config.load import load_config
from tests.config.importer_files import RLVR, ROLL, ROOT, TRINITY, changed, lines, nested

LAKE, MATH = "agent_val_frozen_lake_async.yaml", "rlvr_config_async.yaml"
ON_CPU = {"learner.devices": "cpu"}
STRATEGY = "actor_train.strategy_args.strategy_config"
ENGINE = "actor_infer.strategy_args.strategy_config"


def test_a_length_without_room_is_settled_by_what_its_line_names(write: Any) -> None:
    path = write(nested(TRINITY, "model.max_model_len", 100))
    [line] = lines(path)
    assert line.endswith("; or --config.model.max_prompt_tokens and --config.learner.rows_per_microbatch")
    config = load_config(path, {"model.max_prompt_tokens": "64", "learner.rows_per_microbatch": "6"})
    assert (config.model.max_response_tokens, config.longest) == (512, 576)


def test_devices_that_are_not_read_are_settled_by_devices_and_their_mesh(write: Any) -> None:
    named = {"learner.devices": "gpu:0-3", "learner.mesh.fsdp": "4"}
    for text in (
        nested(ROLL, "actor_train.device_mapping", "list(range(0,4)"),
        nested(TRINITY, "explorer.rollout_model.engine_num", 9),
        nested(TRINITY, "cluster.gpu_per_node", "x"),
    ):
        path = write(text)
        [line] = lines(path)
        assert all(f"--config.{key}" in line for key in named), line
        others = {"learner.rows_per_microbatch": "8", "algorithm.minibatch_size": "64", "sidecar.devices": "gpu:4"}
        given = named | {key: value for key, value in others.items() if f"--config.{key}" in line}
        assert load_config(path, given).learner.mesh.fsdp == 4


def test_two_keys_of_one_file_are_held_to_each_other() -> None:
    one = Row("a", 1, True, {"x": 1}, "")
    two = Row("b", 2, True, {"x": 2}, "")
    published = Row("c", 3, False, {"x": 3}, "")
    held = agreeing([one, two, published])
    assert [row.refused for row in held] == [False, True, False]
    assert (held[1].remark, held[1].keys) == ("x would be 2, and by a it is 1; make them agree", ("x",))


DOMAINS = {"code": "KodCode", "judge": "RLVR", "math": "aime", "ifeval": "ifeval", "choice": "crossthinkqa"}
DATA = "actor_train.data_args"
NOT_THERE = "cannot be read (No such file or directory; looked in "


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--config.max_stesp=3",)])
def test_a_column_that_no_domain_has_is_one_line(
    more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each domain reads the rows of its tag, here those of a file of its own."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for name, tag in DOMAINS.items():
        row = {"question": "1 + 1", "tag": tag, "ground_truth": "2"}
        Path(f"data/{name}.jsonl").write_text(f"{json.dumps(row)}\n")
    text = (ROOT / "tests" / "data" / "rlvr_domains.yaml").read_text()
    Path("domains.yaml").write_text(text.replace("messages: messages", "prompt: quesiton"))
    assert main(["--config=domains.yaml", "--config.learner.devices=cpu", *more]) == 2
    last = " ".join(capsys.readouterr().err.splitlines()[-1].removeprefix("rljax: ").split())
    keys, line = (
        f"{DATA}.file_name, {DATA}.prompt",
        (
            "tasks.train.NAME.prompt_key='quesiton': no such column; nearest: question, of data/choice.jsonl, "
            "data/ifeval.jsonl, data/math.jsonl and 2 more (NAME: crossthinkqa, ifeval, math_rule, code_sandbox, "
            "llm_judge)"
        ),
    )
    assert last == (f"{keys} {line}" if "--config.max_stesp=3" in more else f"{line} (ROLL: {keys})")


def test_a_file_that_no_domain_finds_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    given = f"--config={ROOT / 'tests' / 'data' / 'rlvr_domains.yaml'}", "--config.learner.devices=cpu"
    assert main(given) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if NOT_THERE in line]
    assert [line.split("source=")[1].split(":")[0] for line in told] == [f"'data/{name}.jsonl'" for name in DOMAINS]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"actor_train.device_mapping": "list(range(0,3))", f"{STRATEGY}.tensor_model_parallel_size": 2},
            "3 devices are no multiple of the 2 that a replica takes (tensor_model_parallel_size=2)",
        ),
        (
            {f"{STRATEGY}.tensor_model_parallel_size": 4, f"{STRATEGY}.context_parallel_size": 2},
            "4 devices are no multiple of the 8 that a replica takes (tensor_model_parallel_size=4 × "
            "context_parallel_size=2)",
        ),
        (
            {"actor_train.device_mapping": "rang(0,3)"},
            "actor_train.device_mapping = 'rang(0,3)' write list(range(0,4))",
        ),
    ],
)
def test_devices_that_do_not_fit_are_settled_by_what_their_line_names(
    keys: dict[str, Any], said: str, seed: Any
) -> None:
    path = seed(LAKE, keys)
    [line] = lines(path)
    assert line.startswith("actor_train.device_mapping = ")
    assert said in line
    assert line.endswith(
        "; or --config.learner.devices, --config.learner.rows_per_microbatch, --config.algorithm.minibatch_size and "
        "--config.learner.mesh.fsdp"
    )
    [line] = lines(path, ON_CPU)  # which says how many rows it computes at a time
    assert said in line
    assert line.endswith("; or --config.algorithm.minibatch_size")
    config = load_config(path, ON_CPU | {"algorithm.minibatch_size": "512"})
    assert (config.learner.mesh.size, config.algorithm.minibatch_size) == (1, 512)


def test_rows_of_a_pass_hold_whatever_an_update_is_said_to_be(write: Any) -> None:
    """2 on each of 4 devices; 2 × 5 × 4 = 40 trajectories an update do not divide the 64 of a step."""
    path = write(nested(ROLL, "actor_train.training_args.gradient_accumulation_steps", 5))
    config = load_config(path, {"algorithm.minibatch_size": "32"})
    assert (config.learner.rows_per_microbatch, config.algorithm.minibatch_size) == (8, 32)
    [line] = lines(write(nested(ROLL, "rollout_batch_size", "many")))
    assert line.endswith("write one; or --config.rollout_batch_size and --config.algorithm.minibatch_size")


@pytest.mark.parametrize(
    ("rows", "accumulated", "batch", "passes", "minibatch"),
    [
        (2, 5, 64, 4, 32),  # 2 × 5 × 4 = 40: 32 is nearer than 64
        (2, 7, 64, 8, 64),  # 56
        (1, 100, 512, 128, 512),  # 400: 256 and 512
        (3, 4, 64, 6, 32),  # 48, and no multiple of 12 divides 64: 6 × 12 are all of it; 32 is as near as 64
        (2, 12, 10**9, 10, 100),  # 96: of multiples of 8 it is 80, and not 128
    ],
)
def test_an_update_that_does_not_divide_the_batch_is_answered_with_the_nearest(
    rows: int, accumulated: int, batch: int, passes: int, minibatch: int, write: Any
) -> None:
    training = "actor_train.training_args"
    keys = {"rollout_batch_size": batch, f"{training}.per_device_train_batch_size": rows}
    number = f"{training}.gradient_accumulation_steps"
    [line] = lines(write(changed(ROLL, {**keys, number: accumulated})))
    assert f"nearest that works: gradient_accumulation_steps: {passes}, or --config." in line
    assert line.endswith(f"algorithm.minibatch_size={minibatch}")
    config = load_config(write(changed(ROLL, {**keys, number: passes})))
    assert config.rollout_batch_size % (config.algorithm.minibatch_size or 0) == 0


def test_a_batch_that_is_said_leaves_the_group_as_the_file_has_it(write: Any) -> None:
    path = write(nested(TRINITY, "buffer.batch_size", "many"))
    config = load_config(path, {"rollout_batch_size": "64"})
    assert (config.rollout_batch_size, config.group_size) == (64, 4)


def test_a_worker_that_is_not_known_is_one_line(seed: Any) -> None:
    keys = {"rewards.math_rule.worker_cls": "roll.MathRuleRewardWorkr", "validation.data_args.file_name": "v.jsonl"}
    path = seed(MATH, keys)
    [line] = lines(path, ON_CPU)
    assert line.startswith("rewards.math_rule.worker_cls = ")
    assert "did you mean MathRuleRewardWorker?" in line
    assert "(numeric, choice, code, ifeval, llm_judge, reward_model or your own)" in line
    named = {f"tasks.{side}.math_rule.rewards": "numeric" for side in ("train", "validation")}
    assert all(f"--config.{key}" in line for key in named)
    assert load_config(path, ON_CPU | named).tasks.validation["math_rule"].rewards == ("numeric",)


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("rewards.math_rule.worker_cls", "tasks.train.math_rule.rewards=module:function"),
        ("actor_train.worker_cls", "algorithm.pg_variant=module:function"),
        ("actor_infer.worker_cls", "rollout.workflow=module:Class"),
    ],
)
def test_a_worker_of_ones_own_is_answered_with_what_stands_in_its_place(key: str, place: str, write: Any) -> None:
    [line] = lines(write(nested(RLVR, key, "mypackage.workers.MyWorker"), "no_such: 1"))[:-1]
    assert line.startswith(f"{key} = ")
    assert "workers of your own do not run here; write " in line
    assert f"--config.{place}" in line
    assert "did you mean" not in line
    if key != "rewards.math_rule.worker_cls":
        theirs = "roll.pipeline.base_worker.ActorWorker"
        assert load_config(write(nested(RLVR, key, theirs))) == load_config(write(RLVR))


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        (f"{ENGINE}.gpu_mem", f"{ENGINE}.gpu_memory_utilization"),
        (f"{ENGINE}.max_len", f"{ENGINE}.max_model_len"),
        ("actor_trian.training_args.learning_rate", "actor_train.training_args.learning_rate"),
        ("custom_envs.FrozenLake.env_typ", "custom_envs.FrozenLake.env_type"),
        ("rollout_batch_sise", "rollout_batch_size"),
    ],
)
def test_a_misspelt_key_is_answered_with_the_nearest(key: str, meant: str, write: Any) -> None:
    path = write(nested(ROLL, key, "frozen_lake" if "env" in key else 8192))
    for overrides in ({}, {"rollout_batch_size": "64"}):
        assert any(
            line.startswith(f"{key} = ")
            and line.endswith(f"unknown key; did you mean {meant}? Correct it in the file: no override settles it")
            for line in lines(path, overrides)
        )


def test_a_key_that_is_like_none_is_to_be_left_out(write: Any) -> None:
    [line] = lines(write(nested(ROLL, f"{ENGINE}.foo", 1)))
    assert line.endswith("unknown key; leave it out of the file: no override settles it")


DEFAULTS: list[tuple[str, dict[str, Any], str]] = [
    # 2 × 12 × 4 = 96 trajectories an update do not divide the 128 that are published
    (
        ROLL,
        {"rollout_batch_sise": 96, "actor_train.training_args.gradient_accumulation_steps": 12},
        "rollout_batch_size",
    ),
    (RLVR, {"responce_length": 1024}, "response_length"),
    # one attempt at each of 8 tasks is published, and makes no 32
    (TRINITY, {"algorithm.repeat_time": 4, "buffer.train_batch_size": 32}, "algorithm.repeat_times"),
]


@pytest.mark.parametrize(("text", "keys", "left_out"), DEFAULTS, ids=[left_out for _, _, left_out in DEFAULTS])
def test_nothing_is_refused_of_a_default_in_the_place_of_a_misspelt_key(
    text: str, keys: dict[str, Any], left_out: str, write: Any
) -> None:
    [line] = lines(write(changed(text, keys, left_out)))
    assert line.startswith(f"{next(iter(keys))} = ")
    assert f"did you mean {left_out}?" in line


@pytest.mark.parametrize(
    ("text", "key", "value", "meant"),
    [
        (ROLL, "adv_estimator", "gpro", "grpo"),
        (TRINITY, "synchronizer.sync_method", "nccll", "nccl"),
        (TRINITY, "algorithm.algorithm_type", "grpoo", "grpo"),
        (TRINITY, "mode", "exlpore", "explore"),
    ],
)
def test_a_value_that_is_none_is_answered_with_the_nearest(
    text: str, key: str, value: str, meant: str, write: Any
) -> None:
    [line] = lines(write(nested(text, key, value)))
    assert line.startswith(f"{key} = '{value}' not one of ")
    assert f"; did you mean {meant}? Else write --config." in line


def test_what_is_written_of_a_file_has_short_lines(seed: Any, tmp_path: Path) -> None:
    """Paths of many files, and texts with and without spaces."""
    files = [f"data/{name}/with/a/long/path.jsonl" for name in ("math", "code", "judge", "ifeval", "choice")]
    path, target = seed(MATH, {"actor_train.data_args.file_name": files}), tmp_path / "mine.py"
    overrides = {**ON_CPU, "tasks.train.math_rule.template": "x" * 300 + " {prompt} 'quoted'\n" * 20}
    arguments = [f"--config.{key}={value}" for key, value in overrides.items()]
    assert main([f"--config={path}", *arguments, f"--dry-run={target}"]) == 0
    assert max(map(len, target.read_text().splitlines())) <= 120
    assert load_config(str(target)) == load_config(path, overrides)


def test_a_literal_is_its_value() -> None:
    values = {"a": [1, ("x " * 200, None)], "b": {"c": {}, "d": ("\t\n " * 90, "ä" * 130)}, "e": ("y" * 130,)}
    written = literal(values)
    assert ast.literal_eval(written) == values
    assert max(map(len, written.splitlines())) <= 120
    assert literal({"a": (1,)}) == "{'a': (1,)}"


@pytest.mark.parametrize("rewards", ["code,numeric", "numeric", "('code', 'numeric')", ("numeric", "code")])
def test_arguments_of_a_reward_go_with_it(rewards: Any, write: Any) -> None:
    """Else a run would be refused for arguments that nobody wrote, with the advice to take the reward back."""
    path = write(nested(RLVR, "rewards", {"code_sandbox": {"worker_cls": "CodeSandboxRewardWorker"}}))
    taskset = load_config(path, {"tasks.train.code_sandbox.rewards": rewards}).tasks.train["code_sandbox"]
    assert "numeric" in taskset.rewards
    assert ("code" in taskset.reward_args) == ("code" in taskset.rewards)


@pytest.mark.parametrize("rewards", ["('numeric', 'format:<a>.*')", ("numeric", "format:a{1,2}"), "numeric,format"])
def test_arguments_of_a_format_stay_with_every_pattern(rewards: Any, seed: Any) -> None:
    """Trinity's math_workflow takes 0.1 off an answer without its form, whatever form that is."""
    path = seed("explorer.yaml", {"buffer.explorer_input.taskset.default_workflow_type": "math_workflow"})
    name, before = next(iter(load_config(path).tasks.train.items()))
    assert "format" in before.reward_args
    taskset = load_config(path, {f"tasks.train.{name}.rewards": rewards}).tasks.train[name]
    assert taskset.reward_args["format"] == before.reward_args["format"]


def test_weights_of_rewards_that_are_gone_say_what_to_write(write: Any) -> None:
    with pytest.raises(ConfigError, match=r"2 weights for 1 rewards; write one for each, or none"):
        load_config(write(TRINITY), {"tasks.train.t.rewards": "exact"})
    given = {"tasks.train.t.rewards": "exact", "tasks.train.t.reward_weights": "none"}
    assert load_config(write(TRINITY), given).tasks.train["t"].reward_args == {}
