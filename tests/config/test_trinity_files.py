"""Files of Trinity-RFT: units, styles, modes."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import pytest

from rljax.config.fields import ConfigError
from rljax.config.importers.page import side_by_side
from rljax.config.importers.translate import translate
from rljax.config.load import load_config
from rljax.pipeline.plan.plan import room_refusals
from tests.config.importer_files import SEEDS, TRINITY, lines, nested, refused


def test_trinity_units(write: Any) -> None:
    config = load_config(write(TRINITY))
    assert (config.rollout_batch_size, config.group_size, config.max_steps) == (32, 4, 20)
    assert (config.learner.devices, config.sidecar.devices) == ("gpu:0-5", "gpu:6-7")  # engines take what they need
    assert config.learner.mesh.fsdp == 6
    assert config.learner.rows_per_microbatch == 2 * 6  # max_token_len_per_gpu: twice max_model_len
    assert (config.sidecar.max_concurrency, config.run_dir) == (32, "./checkpoints/p/n")  # 8 runners × 4


@pytest.mark.parametrize(
    ("style", "found"),
    [
        ({"sync_interval": 5}, (0.0, 5, True, 4)),
        ({"sync_interval": 5, "sync_offset": 2}, (2.0, 5, True, 6)),
        ({"sync_interval": 1}, (0.0, 1, False, 0)),
        ({"sync_interval": 1, "sync_offset": 1}, (1.0, 1, False, 1)),
        ({"sync_interval": 3, "sync_style": "fully_async"}, (2.0, 3, False, 4)),
    ],
)
def test_trinity_s_styles(style: dict[str, Any], found: tuple[Any, ...], write: Any) -> None:
    """sync_interval + sync_offset - 1 steps of staleness, where an interval is filled."""
    config = load_config(write(nested(TRINITY, "synchronizer", {"sync_method": "checkpoint", **style})))
    said = (config.async_generation_ratio, config.sync_interval, config.fill_interval, config.staleness_bound)
    assert said == found


def test_trinitys_server_follows_the_run(write: Any) -> None:
    text = nested(nested(TRINITY, "mode", "serve"), "explorer.proxy_port", 8010)
    with pytest.raises(ConfigError, match=r"sync_method=nccl: such versions are no files.*synchronizer\.sync_method"):
        load_config(write(text))
    config = load_config(write(nested(text, "synchronizer.sync_method", "checkpoint")))
    assert (config.mode, config.serve.follow, config.serve.port) == ("serve", True, 8010)
    assert config.sidecar.devices == "gpu:6-7"  # two engines; the first GPUs are the trainer's


BENCHED = {False: "all", True: "latest"}


@pytest.mark.parametrize("latest", BENCHED)
def test_bench_is_the_evaluation_of_checkpoints(latest: bool, write: Any) -> None:
    text = nested(TRINITY, "explorer.bench_on_latest_checkpoint", latest)
    config = load_config(write(nested(text, "mode", "bench")))
    assert (config.mode, config.checkpoint, config.sidecar.devices) == ("evaluate", BENCHED[latest], "gpu:0-7")


def test_colocate_has_engines_where_the_learner_is(write: Any) -> None:
    text = nested(TRINITY, "cluster.gpu_per_node", 2)
    config = load_config(write(nested(text, "mode", "colocate")))
    assert (config.mode, config.sidecar.colocate, config.learner.devices) == ("both", True, "gpu:0-1")
    assert config.sidecar.devices == "auto"


def test_a_trainer_of_several_nodes_has_a_host_on_each(write: Any) -> None:
    text = nested(TRINITY, "cluster.node_num", 3)
    config = load_config(write(nested(text, "explorer.rollout_model.engine_num", 8)))
    learner, sidecar = config.learner, config.sidecar  # 24 GPUs, of which 8 are the engines'
    assert (learner.devices, learner.hosts.number, learner.mesh.fsdp) == ("gpu:0-15", 2, 16)
    assert (config.launcher, sidecar.devices, sidecar.num_engines) == ("ray", "gpu", 8)
    assert config.sync_method == "checkpoint"
    alone = load_config(write(TRINITY))
    assert (alone.learner.hosts.number, alone.sync_method) == (1, "nccl")
    uneven = write(nested(text, "explorer.rollout_model.engine_num", 1))
    assert "23 GPUs are left to the trainer of 3 × 8" in refused(uneven)["cluster.gpu_per_node"]


@pytest.mark.parametrize(("value", "count"), [("explorer", 1), ("trainer", 1), ("server", 1)])
def test_a_mode_that_is_misspelt_is_one_line(value: str, count: int, write: Any) -> None:
    assert list(refused(write(nested(TRINITY, "mode", value)))) == ["mode"] * count


def test_an_explorer_beside_a_trainer_of_several_nodes_is_where_ray_finds_room(seed: Any) -> None:
    trainer = seed("trainer.yaml", {"cluster.node_num": 2, "cluster.gpu_per_node": 8})
    config = load_config(f"{seed('explorer.yaml', {})},{trainer}")
    assert (config.sidecar.devices, config.launcher, config.learner.hosts.number) == ("gpu", "ray", 2)


def followed(file: str, key: str) -> dict[str, str]:
    """The overrides that a refusal writes."""
    return dict(re.findall(r"--config\.([\w.]+)=(\S+)", refused(file)[key]))


def test_advice_for_a_cluster_that_does_not_fit_keeps_what_else_the_file_says(write: Any) -> None:
    """24 GPUs without 7 are 17 on three nodes; 8 of them in rows of 1024, of which 4096 tokens are 4."""
    seven = nested(nested(TRINITY, "cluster.node_num", 3), "explorer.rollout_model.engine_num", 7)
    file = write(nested(seven, "trainer.max_token_len_per_gpu", 4096))
    config = load_config(file, followed(file, "cluster.gpu_per_node"))
    assert (config.launcher, config.sidecar.devices, config.sidecar.num_engines) == ("ray", "gpu", 7)
    learner = config.learner
    assert (learner.devices, learner.mesh.fsdp, learner.rows_per_microbatch) == ("gpu:0-7", 8, 32)
    assert learner.max_tokens_per_row == 1024
    plan = load_config(file, {**followed(file, "cluster.gpu_per_node"), "plan.target": "h100:3x8"})
    assert not list(room_refusals(plan))

    cut = write(nested(nested(TRINITY, "cluster.gpu_per_node", 9), "trainer.ulysses_sequence_parallel_size", 2))
    config = load_config(cut, followed(cut, "trainer.ulysses_sequence_parallel_size"))
    assert (config.learner.devices, config.learner.mesh.fsdp, config.learner.mesh.sequence) == ("gpu:0-5", 3, 2)
    assert config.sidecar.devices == "gpu:7-8"
    whole = load_config(cut, {"learner.mesh.sequence": "1"}).learner
    assert (whole.devices, whole.mesh.fsdp, whole.mesh.sequence) == ("gpu:0-6", 7, 1)


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.jsonl.gz"])
def test_files_of_every_ending_are_files(name: str, write: Any, tmp_path: Path) -> None:
    rows = {"a.csv": b"prompt,response\n1,2\n", "a.json": b'[{"prompt": "1", "response": "2"}]'}
    path = tmp_path / name
    path.write_bytes(rows.get(name) or gzip.compress(b'{"prompt": "1", "response": "2"}\n'))
    config = load_config(write(nested(TRINITY, "buffer.explorer_input.taskset.path", str(path))))
    assert (config.tasks.train["t"].source, config.tasks.train["t"].split) == (str(path), None)


@pytest.mark.parametrize(
    ("path", "value", "overrides"),
    [
        ("explorer.auxiliary_models", [{"model_path": "x"}], {"judges.a.path": "tiny"}),
        ("explorer.over_rollout.ratio", 0.2, {"rollout.train_env_manager.group_size_redundancy": "1"}),
    ],
)
def test_advice_that_names_a_key_is_settled_by_it(path: str, value: Any, overrides: Any, write: Any) -> None:
    file = write(nested(TRINITY, path, value))
    assert path in refused(file)
    assert path not in refused(file, **overrides)


def test_a_workflow_of_ones_own_takes_the_place_of_one_that_is_not_there(write: Any) -> None:
    file = write(nested(TRINITY, "buffer.explorer_input.taskset.default_workflow_type", "debate_workflow"))
    mine = "tests.rollout.workflows.bad_workflows:Mine"
    config = load_config(file, {"rollout.workflow": mine, "tasks.train.t.rewards": "digits"})
    assert (config.rollout.workflow, config.tasks.train["t"].source) == (mine, "train.jsonl")
    assert config.tasks.train["t"].rewards == ("digits",)


@pytest.mark.parametrize(("key", "value"), [("storage_type", "sql"), ("data_selector.selector_type", "hard")])
def test_of_a_taskset_the_key_alone_is_refused_that_is_wrong(key: str, value: str, write: Any) -> None:
    path = f"buffer.explorer_input.taskset.{key}"
    assert list(refused(write(nested(TRINITY, path, value)))) == [path]


def test_what_a_file_leaves_out_is_not_refused_for_what_it_says(write: Any) -> None:
    path = "synchronizer.sync_interval"
    assert list(refused(write(nested(TRINITY, path, "ten")))) == [path]


def test_an_explorer_with_gpus_of_its_trainer_is_no_pair() -> None:
    pair = f"{SEEDS / 'explorer_new.yaml'},{SEEDS / 'trainer.yaml'}"
    assert [row.where for row in translate(pair).refusals()] == ["explorer_new.yaml: cluster.gpu_per_node"]
    assert refused(pair) == {
        "cluster.gpu_per_node": "these are gpu:0-7, and the trainer has gpu:0-3 of one node; start "
        "this file in a shell of its own, on another node, or write fewer, or --config.sidecar.devices and "
        "--config.sidecar.num_engines"
    }
    moved = {"sidecar.devices": "gpu:4-7"}
    assert not translate(pair).beside(moved).unsettled(moved)


def test_the_table_of_a_pair_has_a_part_for_each_file() -> None:
    lines = list(side_by_side(translate(f"{SEEDS / 'explorer.yaml'},{SEEDS / 'trainer.yaml'}"), {}))
    titles = [f"{of}: Trinity-RFT's keys" for of in ("explorer.yaml, trainer.yaml", "explorer.yaml", "trainer.yaml")]
    both, explorer, trainer = (lines.index(title) for title in titles)
    rate, runners = (
        next(at for at, line in enumerate(lines) if line.startswith(f"  {key} ="))
        for key in ("algorithm.optimizer.lr", "explorer.runner_per_model")
    )
    assert both < explorer < runners < trainer < rate


def test_a_pair_that_is_two_runs_is_refused(write: Any) -> None:
    text = (SEEDS / "trainer.yaml").read_text()
    one = write(text.replace("name: <experiment_name>", "name: other"), name="trainer2.yaml")
    found = refused(f"{SEEDS / 'explorer.yaml'},{one}")
    assert found
    assert all("run_dir would be" in remark for remark in found.values())
    three = ",".join(str(SEEDS / f"{name}.yaml") for name in ("explorer", "trainer", "explorer_new"))
    with pytest.raises(ConfigError, match="3 files; a pair is one with mode explore and one with mode train"):
        translate(three)


@pytest.mark.parametrize(
    ("explorer", "trainer", "wrong"),
    [
        ("explore", "explore", {"trainer": "train"}),
        ("train", "train", {"trainer": "explore"}),
        ("both", "train", {"explorer": "explore"}),
        ("explore", "trian", {"trainer": "train"}),
        ("explore", None, {"trainer": "train"}),
        ("colocate", "both", {"explorer": "explore", "trainer": "train"}),
        ("train", "both", {"trainer": "explore"}),
    ],
)
def test_modes_of_a_pair_that_do_not_fit_are_told_with_all_else(
    explorer: str, trainer: str | None, wrong: dict[str, str], seed: Any
) -> None:
    """Whatever the mode of a file is meant to be, the files differ in a temperature."""
    one = seed("explorer.yaml", {"mode": explorer})
    two = seed("trainer.yaml", {"mode": trainer, "buffer.explorer_input.taskset.rollout_args.temperature": 0.5})
    said = lines(f"{one},{two}", {"mode": "plan"})
    modes = [line for line in said if ".yaml: mode" in line]
    assert len(said) == len(modes) + 1
    pair = "a pair is one with mode explore and one with mode train"
    for line, (name, meant) in zip(modes, wrong.items(), strict=True):
        given = {"explorer": explorer, "trainer": trainer}[name]
        key = f"mode = '{given}'" if given else "mode, left out"
        alone = ", or start each explorer in a shell of its own" if explorer == trainer == "explore" else ""
        assert line == f"{name}.yaml: {key} {pair}; write mode: {meant}{alone}"


def test_a_mode_of_a_pair_that_is_not_resolved_is_one_line(seed: Any) -> None:
    [line] = lines(f"{seed('explorer.yaml', {'mode': '${nowhere}'})},{seed('trainer.yaml', {})}")
    assert line.startswith("explorer.yaml: mode = '${nowhere}' ${nowhere}: the file has no nowhere")


EVAL = {"name": "e", "path": "e.jsonl", "default_workflow_type": "simple_workflow"}


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("repeat_times", 32, "a validation samples one of each; write 1"),
        (
            "default_reward_fn_type",
            "accuracy_reward",
            "write --config.tasks.validation.NAME.rewards and --config.tasks.validation.NAME.reward_weights",
        ),
        (
            "rollout_arg",
            {"temperature": 0.6},
            "unknown; did you mean buffer.explorer_input.eval_tasksets.1.rollout_args",
        ),
        ("pathh", "f.jsonl", "unknown key; did you mean"),
        ("default_workflow_type", "alfworld_workflow", "there is no alfworld_workflow"),
    ],
)
def test_a_validation_s_taskset_is_read_key_by_key(key: str, value: Any, line: str, write: Any) -> None:
    sets = [EVAL, {**EVAL, "name": "f", key: value}]
    found = refused(write(nested(TRINITY, "buffer.explorer_input.eval_tasksets", sets)))
    assert list(found)
    assert all(path.startswith("buffer.explorer_input.eval_tasksets.1.") for path in found)
    assert any(line in remark for remark in found.values()), found


def test_a_validation_samples_as_its_tasksets_say(write: Any) -> None:
    sets = [{**EVAL, "rollout_args": {"temperature": 0.6, "top_k": -1}}, {**EVAL, "name": "f"}]
    config = load_config(write(nested(TRINITY, "buffer.explorer_input.eval_tasksets", sets)))
    assert (config.sidecar.val_generating_args.temperature, config.sidecar.val_generating_args.top_k) == (0.6, 0)
    assert config.sidecar.generating_args.temperature == 1.0
    assert sorted(config.tasks.validation) == ["e", "f"]
    sets[1]["rollout_args"] = {"temperature": 0.7}
    assert refused(write(nested(TRINITY, "buffer.explorer_input.eval_tasksets", sets)))


def test_a_validation_s_workflow_may_be_that_of_all(write: Any) -> None:
    text = nested(TRINITY, "buffer.explorer_input.eval_tasksets", [{"path": "e.jsonl"}])
    both = load_config(write(text)).tasks.validation["eval_1"]
    assert (both.rewards, both.reward_weights) == (("numeric", "format"), (1.0, 0.1))
    text = nested(text, "buffer.explorer_input.default_eval_workflow_type", "simple_workflow")
    config = load_config(write(text))
    assert config.tasks.validation["eval_1"].rewards == ("numeric",)
    assert config.tasks.train["t"].rewards == ("numeric", "format")
    text = nested(text, "buffer.explorer_input.default_eval_workflow_type", "mine")
    own = load_config(write(text), {"rollout.workflow": "tests.rollout.workflows.bad_workflows:Mine"})
    assert own.tasks.validation["eval_1"].source == "e.jsonl"


def test_a_right_format_adds_what_a_wrong_one_takes_off(write: Any) -> None:
    """Trinity-RFT's math reward is 1 for the answer and ±0.1 for the format: 1.1, 0.9, 0.1 and −0.1."""
    from rljax.tasks.rewards.text import think_answer_format

    taskset = load_config(write(TRINITY)).tasks.train["t"]
    low = taskset.reward_args["format"]["low"]
    answer, weight = taskset.reward_weights or ()
    formed: list[float] = [
        think_answer_format(None, reply, low=low)  # type: ignore[arg-type]
        for reply in ("<think>a</think> <answer>b</answer>", "b")
    ]
    assert [right * answer + weight * form for right in (1, 0) for form in formed] == [1.1, 0.9, 0.1, -0.1]


@pytest.mark.parametrize("line", ["", "model_path:"])
def test_a_file_that_names_no_model_is_refused(line: str, write: Any) -> None:
    text = re.sub(r"model_path:.*", line, (SEEDS / "explorer.yaml").read_text())
    with pytest.raises(
        ConfigError, match=r"model\.model_path, left out +the file names no model; .*--config\.model\.path"
    ):
        load_config(write(text))
    assert load_config(write(text), {"model.path": "tiny"}).model.path == "tiny"


def test_a_model_that_one_file_of_a_pair_names_is_the_pairs(write: Any) -> None:
    train = re.sub(r"model_path:.*", "", (SEEDS / "trainer.yaml").read_text())
    pair = f"{SEEDS / 'explorer.yaml'},{write(train, name='trainer.yaml')}"
    assert translate(pair).values["model.path"] == "Qwen/Qwen2.5-1.5B-Instruct"


def test_two_explorers_are_told_to_start_alone_and_nothing_of_a_trainer() -> None:
    found = refused(f"{SEEDS / 'explorer.yaml'},{SEEDS / 'explorer_new.yaml'}")
    assert found["mode"].endswith("write mode: train, or start each explorer in a shell of its own")
    assert not any("the trainer has" in remark for remark in found.values())


def test_an_adapter_of_trinitys_is_translated(write: Any) -> None:
    given = [{"name": "lora", "lora_rank": 16, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}]
    lora = load_config(write(nested(TRINITY, "model.lora_configs", given))).model.lora
    assert (lora.rank, lora.alpha, lora.targets) == (16, 8.0, ("q_proj", "v_proj"))
    named = load_config(write(nested(TRINITY, "model.lora_configs", [{"name": "lora"}]))).model.lora
    assert (named.rank, named.alpha, named.targets) == (32, 32.0, ("all-linear",))
    assert load_config(write(nested(TRINITY, "model.lora_configs", []))).model.lora.rank is None
    for wrong, said in (([{}, {}], "write a list of one"), ([{"path": "x"}], "path is not translated: leave it out")):
        file = write(nested(TRINITY, "model.lora_configs", wrong))
        assert said in refused(file)["model.lora_configs"]
        assert load_config(file, {"model.lora.rank": "4"}).model.lora.rank == 4
