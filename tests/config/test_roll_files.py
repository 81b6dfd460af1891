"""Files of ROLL: units, devices, layers, environments."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import pytest
import yaml

from rljax.config.fields import ConfigError
from rljax.config.importers.roll_devices import devices, indices
from rljax.config.importers.rule import Refusal
from rljax.config.importers.translate import translate
from rljax.config.load import load_config
from rljax.config.refusals import RefusedConfig
from tests.config.importer_files import RLVR, ROLL, SEEDS, nested, refused


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("list(range(0,4))", [0, 1, 2, 3]),
        ("list(range(16, 24))", list(range(16, 24))),
        ("list(range(2))", [0, 1]),
        ("list(range(0,8,2))", [0, 2, 4, 6]),
        ("[0, 3]", [0, 3]),
        ("list(range(0,2)) + [6]", [0, 1, 6]),
        ([4, 5], [4, 5]),
    ],
)
def test_a_device_mapping_is_parsed(written: Any, found: list[int]) -> None:
    assert indices(written) == found


@pytest.mark.parametrize(
    "written",
    [
        "__import__('os').system('true')",
        "list(range(0,4)) if 1 else 2",
        "[0, 0, 1]",
        [1, 0, 1],
        "list(range(0,4)) + [3]",
        "list(range(4,4))",
        "[]",
        [],
        [-1],
        [True],
        3,
        "",
        "list(range(0,99999999))",
        "+",
        "list(range(0,4)) + ",
    ],
)
def test_a_device_mapping_is_never_evaluated(written: Any) -> None:
    with pytest.raises(Refusal, match="write list"):
        indices(written)


def test_devices_are_written_as_spans() -> None:
    assert devices([0, 1, 2, 3, 6]) == "gpu:0-3,6"


def test_agentic_units(write: Any) -> None:
    config = load_config(write(ROLL))
    assert (config.rollout_batch_size, config.group_size) == (64, 8)  # trajectories
    assert (config.algorithm.minibatch_size, config.learner.rows_per_microbatch) == (64, 8)  # 2 × 8 × 4; 2 × 4
    assert config.val_groups == {"FrozenLake": 16, "SimpleSokoban": 16}  # 32 in all
    assert config.learner.optimizer.schedule == "linear"
    assert config.async_generation_ratio == 0.0  # ROLL's default, not ours
    assert config.sidecar.generating_args.temperature == 0.95
    assert config.sidecar.val_generating_args.temperature == 0.0
    assert config.custom_envs["FrozenLake"].format_penalty == 0.01  # -0.01 there


def test_rlvr_units(write: Any) -> None:
    config = load_config(write(RLVR))
    assert (config.rollout_batch_size, config.group_size) == (64, 4)  # 16 prompts × 4
    assert (config.algorithm.minibatch_size, config.learner.rows_per_microbatch) == (32, 2)  # 1 × 16 × 2; 1 × 2
    assert (config.model.max_prompt_tokens, config.model.max_response_tokens) == (512, 1024)
    assert sorted(config.tasks.train) == ["math_rule"]
    assert config.tasks.train["math_rule"].source == "a.jsonl,b.jsonl"  # one set of rows, as ROLL has it
    assert config.tasks.train["math_rule"].tags == ()
    assert config.tasks.train["math_rule"].prompt_key == "question"
    assert config.tasks.train["math_rule"].rewards == ("numeric",)


def test_the_critic_s_optimizer_is_read_where_there_is_a_critic(write: Any) -> None:
    critic = {"training_args": {"learning_rate": 1e-5, "warmup_steps": 5, "lr_scheduler_type": "cosine"}}
    optimizer = load_config(
        write(nested(nested(ROLL, "adv_estimator", "gae"), "critic", critic))
    ).algorithm.critic.optimizer
    assert (optimizer.learning_rate, optimizer.warmup_steps, optimizer.schedule) == (1e-5, 5, "cosine")
    assert load_config(write(nested(ROLL, "critic", critic))).algorithm.critic.optimizer.warmup_steps == 0


def test_two_keys_that_say_two_things_are_refused(write: Any) -> None:
    path = write(nested(ROLL, "actor_train.model_args.model_name_or_path", "other"))
    assert refused(path) == {
        "pretrain": "model.path would be 'Qwen/Qwen2.5-0.5B-Instruct', and by "
        "actor_train.model_args.model_name_or_path it is 'other'; make them agree"
    }


def test_an_environment_of_one_s_own_takes_its_arguments(write: Any) -> None:
    mine = {"env_type": "mine", "env_config": {"level": 3, "board": {"side": 4}, "max_steps": 6}}
    path = write(nested(ROLL, "custom_envs", {"FrozenLake": mine}))
    assert list(refused(path)) == ["custom_envs.FrozenLake.env_type"]
    lake = load_config(path, {"custom_envs.FrozenLake.id": "mine:Mine-v0"}).custom_envs["FrozenLake"]
    assert (lake.id, dict(lake.kwargs), lake.max_actions) == ("mine:Mine-v0", {"level": 3, "board": {"side": 4}}, 6)
    known = {"env_type": "frozen_lake", "env_config": {"level": 3}}
    found = refused(write(nested(ROLL, "custom_envs", {"FrozenLake": known})))
    assert found == {"custom_envs.FrozenLake.env_config.level": "no environment here takes level; leave it out"}


def test_layers_of_roll_are_laid_on_each_other(write: Any) -> None:
    above = write("max_steps: 7\nactor_train: {training_args: {learning_rate: 1e-5}}\n", name="above.yaml")
    config = load_config(f"{write(ROLL)},{above}")
    assert (config.max_steps, config.learner.optimizer.learning_rate) == (7, 1e-5)
    assert config.algorithm.minibatch_size == 64  # of the layer below


def test_blocks_of_defaults_are_built_in(write: Any) -> None:
    more = """
    defaults:
      - ../config/traj_envs@_here_
      - ../config/deepspeed_zero3@_here_
    max_tokens_per_step: 64
    reference: {strategy_args: {strategy_config: "${deepspeed_zero3}"}}
    custom_envs:
      FrozenLake:
        ${custom_env.FrozenLake}
      SimpleSokoban: ${custom_env.SimpleSokoban}
      Mine: {env_type: frozen_lake, env_config: {size: 6, format_penalty: -0.5}}
    """
    config = load_config(write(ROLL, textwrap.dedent(more)))
    assert config.custom_envs["SimpleSokoban"].format_penalty == 0.15
    assert config.custom_envs["SimpleSokoban"].kwargs == {"dim_room": [6, 6], "num_boxes": 1}
    assert (config.custom_envs["Mine"].kwargs["size"], config.custom_envs["Mine"].format_penalty) == (6, 0.5)
    with pytest.raises(ConfigError, match=r"neither a file .* nor published .*traj_envs"):
        load_config(write(ROLL, "defaults: ['../config/traj_env@_here_']"))


def test_turns_of_a_step_environment_are_rows_of_their_own(write: Any) -> None:
    more = "defaults: ['../config/step_envs@_here_']\ncustom_envs: {FrozenLake: '${custom_env.FrozenLake}'}"
    lake = load_config(write(ROLL, more)).custom_envs["FrozenLake"]
    assert lake.history_length == 5
    assert "{history}" in lake.template


def test_the_action_is_the_last_group_there_and_the_first_here(write: Any) -> None:
    import re

    path = write(ROLL.replace("tags: [FrozenLake], num", "tags: [FrozenLakeThink], num"))
    pattern = load_config(path).custom_envs["FrozenLakeThink"].action_pattern
    found = re.search(pattern, "<think>left?</think> <answer>Right</answer>", re.DOTALL)
    assert found is not None
    assert found[1] == "Right"


def test_a_file_is_completed_by_what_it_is_an_excerpt_of_alone(write: Any) -> None:
    """Environments alone are one; a file whose model stands below a worker is none, and a name brings no domain."""
    text = nested(RLVR, "actor_train.model_args.model_name_or_path", "other").replace("pretrain: Qwen/Qwen2.5-7B", "")
    config = load_config(write(text))
    assert (config.model.path, config.rollout.train_env_manager.tags, list(config.tasks.train)) == (
        "other",
        (),
        ["math_rule"],
    )
    own = RLVR.replace("math_rule: {worker_cls", "code_sandbox: {worker_cls").replace("MathRule", "CodeSandbox")
    assert list(load_config(write(own, name="rlvr_config_async.yaml")).tasks.train) == ["code_sandbox"]


@pytest.mark.parametrize(("entries", "steps"), [("a, b", 2), ("b, a", 1), ("_self_, b", 2), ("b, _self_", 3)])
def test_of_two_blocks_the_later_wins(entries: str, steps: int, write: Any) -> None:
    write("max_steps: 1\n", name="a.yaml")
    write("max_steps: 2\n", name="b.yaml")
    own = "" if "a" in entries else "max_steps: 3\n"
    assert load_config(write(ROLL, f"{own}defaults: [{entries}]\n")).max_steps == steps


@pytest.mark.parametrize("value", ["null", ""])
def test_a_key_left_empty_is_what_the_file_without_it_says(value: str, write: Any) -> None:
    seed = (SEEDS / "agent_val_frozen_lake_async.yaml").read_text()
    path = write(
        re.sub(r"(?m)^(pretrain|max_steps):.*$", rf"\1: {value}", seed), name="agent_val_frozen_lake_async.yaml"
    )
    config = load_config(path)
    assert config.model.path == "Qwen/Qwen2.5-0.5B-Instruct"  # published under this name
    assert config.max_steps == 1024


def test_shares_of_tags_that_are_left_empty_are_equal(write: Any) -> None:
    """Also of other tags than those that the published file of this name has."""
    own = "{tags: [FrozenLake, SimpleSokoban], num_env_groups: 128, group_size: 8, num_groups_partition: }"
    path = write(f"train_env_manager: {own}\n", name="agent_val_frozen_lake_async.yaml")
    assert load_config(path).train_groups == {"FrozenLake": 64, "SimpleSokoban": 64}


def test_an_empty_key_leaves_a_fragment_one(write: Any) -> None:
    fragment = (SEEDS / "env_managers.yaml").read_text()
    assert load_config(write(f"{fragment}\npretrain:\n")) == load_config(write(fragment))


@pytest.mark.parametrize("line", ["", "pretrain:\n", "pretrain: null\n"])
def test_a_file_that_names_no_model_is_refused(line: str, write: Any) -> None:
    path = write(line + str(yaml.safe_dump({k: v for k, v in yaml.safe_load(ROLL).items() if k != "pretrain"})))
    with pytest.raises(ConfigError, match=r"pretrain, left out +the file names no model; .*--config\.model\.path"):
        load_config(path)
    assert load_config(path, {"model.path": "tiny"}).model.path == "tiny"


def test_a_mistake_of_a_copy_of_a_published_file_stands_behind_what_it_leaves_out(write: Any) -> None:
    with pytest.raises(RefusedConfig) as found:
        load_config(write(nested((SEEDS / "agent_val_frozen_lake_async.yaml").read_text(), "max_steps", "abc")))
    first, second = found.value.said
    assert first[0] == "train_env_manager or rewards, left out"
    assert second[0].startswith("max_steps")


def test_a_number_in_quotes_is_told_of_them(write: Any) -> None:
    path = write(nested(ROLL, "rollout_batch_size", "1024"))
    with pytest.raises(ConfigError, match="rollout_batch_size='1024' is text; write the number without quotes"):
        load_config(path)


def test_a_load_format_is_one_of_vllms(write: Any) -> None:
    path = write(nested(ROLL, "actor_infer.strategy_args.strategy_config.load_format", "dumy"))
    with pytest.raises(ConfigError, match=r"load_format='dumy': not one of .*did you mean dummy"):
        load_config(path)


def test_a_range_without_a_step_names_no_devices(write: Any) -> None:
    path = write(nested(ROLL, "actor_infer.device_mapping", "list(range(0,8,0))"))
    with pytest.raises(ConfigError, match=r"device_mapping = .*write list\(range\(0,4\)\)"):
        load_config(path)


@pytest.mark.parametrize(
    ("trained", "generated", "placed", "launcher"),
    [
        # of nodes of 8: hosts of 8, hosts of 2, one node with the engines' elsewhere, and one that is not the first
        (range(16), range(16, 24), ("gpu:0-15", 2, "gpu", 8), "ray"),
        ([0, 1, 8, 9], [2, 3], ("gpu:0-3", 2, "gpu", 2), "ray"),
        (range(4), range(8, 10), ("gpu:0-3", 1, "gpu:8-9", 2), "ray"),
        (range(8, 12), range(4), ("gpu:0-3", 1, "gpu:8-11", 4), "ray"),
        (range(8, 12), range(12, 16), ("gpu:0-3", 1, "gpu:4-7", 4), "local"),
    ],
)
def test_nodes_become_hosts(trained: Any, generated: Any, placed: Any, launcher: str, write: Any) -> None:
    text = nested(nested(ROLL, "actor_train.device_mapping", list(trained)), "num_nodes", 3)
    config = load_config(write(nested(text, "actor_infer.device_mapping", list(generated))))
    learner, sidecar = config.learner, config.sidecar
    assert (learner.devices, learner.hosts.number, sidecar.devices, sidecar.num_engines) == placed
    assert (config.launcher, learner.mesh.size, sidecar.colocate) == (launcher, len(trained), False)


def test_engines_on_the_gpus_of_a_learner_of_two_nodes_are_refused(write: Any) -> None:
    both = "list(range(0,16))"
    path = write(nested(nested(ROLL, "actor_train.device_mapping", both), "actor_infer.device_mapping", both))
    with pytest.raises(ConfigError, match=r"gpu:0-15 are of actor_train.device_mapping too, and a learner of several"):
        load_config(path)
    config = load_config(path, {"sidecar.devices": "gpu"})
    assert (config.sidecar.devices, config.sidecar.num_engines, config.launcher) == ("gpu", 16, "ray")


def test_advice_for_a_learner_on_uneven_nodes_works_as_it_stands(write: Any) -> None:
    """11 GPUs are 8 and 3, and the engines' are on the second node: Ray looks for them."""
    text = nested(ROLL, "actor_train.device_mapping", list(range(11)))
    file = write(nested(text, "actor_infer.device_mapping", list(range(11, 16))))
    advice = refused(file)["actor_train.device_mapping"]
    config = load_config(file, dict(re.findall(r"--config\.([\w.]+)=(\S+)", advice)))
    learner = config.learner
    assert (learner.devices, learner.mesh.fsdp, learner.rows_per_microbatch) == ("gpu:0-7", 8, 16)
    assert (config.launcher, config.sidecar.devices, config.sidecar.num_engines) == ("ray", "gpu:11-15", 5)


def test_a_dtype_that_is_no_text_is_told_the_choices(write: Any) -> None:
    file = write(nested(ROLL, "actor_train.model_args.dtype", []))
    assert "not one of bf16, fp32" in refused(file)["actor_train.model_args.dtype"]


def test_an_adapter_is_translated(write: Any) -> None:
    """Twice the rank is ROLL's alpha where the file has none; its rank is 8, and there is none without a target."""
    args = "actor_train.model_args"
    file = nested(nested(ROLL, f"{args}.lora_target", "q_proj, v_proj"), f"{args}.lora_rank", 16)
    lora = load_config(write(file)).model.lora
    assert (lora.rank, lora.alpha, lora.targets) == (16, 32.0, ("q_proj", "v_proj"))
    alone = load_config(write(nested(ROLL, f"{args}.lora_target", "all-linear"))).model.lora
    assert (alone.rank, alone.alpha, alone.targets) == (8, 16.0, ("all-linear",))
    assert load_config(write(nested(file, f"{args}.lora_alpha", 8))).model.lora.alpha == 8.0
    untargeted = write(nested(ROLL, f"{args}.lora_rank", 16))
    assert refused(untargeted) == {
        f"{args}.lora_rank": "without lora_target ROLL has no adapter; write it, or leave this out"
    }
    assert load_config(untargeted, {"model.lora.rank": "4"}).model.lora.rank == 4


def test_a_key_without_a_value_is_told_to_be_left_out(write: Any) -> None:
    translation = translate(write(nested(ROLL, "actor_train.training_args.learning_rate", None)))
    (row,) = [row for row in translation.rows if row.path.endswith("learning_rate") and row.given]
    assert row.remark == "empty: what a file without the key says"
