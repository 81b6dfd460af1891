"""Several mistakes of a file of ROLL's or of Trinity-RFT are told at once, wherever they stand: none hides another."""

from __future__ import annotations

from typing import Any

import pytest

from rljax.config.load import load, load_config
from rljax.config.refusals import RefusedConfig
from rljax.pipeline.assemble.names import lookup_refusals
from tests.config.importer_files import RLVR, ROLL, TRINITY, changed, lines, nested

LAKE = "agent_val_frozen_lake_async.yaml"
ON_CPU = {"learner.devices": "cpu"}
STRATEGY = "actor_train.strategy_args.strategy_config"


def test_a_number_with_a_letter_too_many_is_refused_by_its_key(seed: Any) -> None:
    rate = "actor_train.training_args.learning_rate"
    first, second = lines(seed(LAKE, {rate: "1.0e-6x", "adv_estimator": "gpro"}), ON_CPU)
    assert first.startswith("adv_estimator = 'gpro' ")
    assert second.startswith(f"{rate} = '1.0e-6x' learner.optimizer.learning_rate='1.0e-6x': expected a number")


def test_each_reference_that_leads_nowhere_is_a_line_beside_all_else(
    seed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RLJAX_NOT_SET", raising=False)
    keys = {
        "eval_steps": "${ppo_epoch}",
        "save_steps": "${oc.env:RLJAX_NOT_SET}",
        "tracker_kwargs": {"key": "${oc.env:RLJAX_NOT_SET}"},  # nothing reads it
        "adv_estimator": "gpro",
    }
    path = seed(LAKE, keys)
    save, evaluate, estimator = sorted(lines(path, ON_CPU), key=lambda line: "sea".index(line[0]))
    assert evaluate == (
        "eval_steps = '${ppo_epoch}' ${ppo_epoch}: the file has no ppo_epoch; did you mean ppo_epochs? Correct it; or "
        "--config.eval_steps"
    )
    assert save == (
        "save_steps = '${oc.env:RLJAX_NOT_SET}' ${oc.env:RLJAX_NOT_SET}: the environment has no RLJAX_NOT_SET; set it, "
        "or write a default; or --config.save_steps"
    )
    assert estimator.startswith("adv_estimator = 'gpro' ")
    settled = {"eval_steps": "5", "save_steps": "7", "algorithm.adv_estimator": "grpo"}
    assert load_config(path, {**ON_CPU, **settled}).eval_steps == 5


def test_a_reference_through_others_is_refused_where_it_is_written(seed: Any) -> None:
    keys = {"all_steps": "${nowhere.at.all}", "max_steps": "${all_steps}", "save_steps": "${all_steps}"}
    [line] = lines(seed(LAKE, keys), ON_CPU)
    assert line.startswith("all_steps = '${nowhere.at.all}' ${nowhere.at.all}: the file has no nowhere.at.all; ")
    assert line.endswith("; or --config.max_steps and --config.save_steps")


def test_what_reads_an_unresolved_key_is_not_blamed_on_itself(seed: Any) -> None:
    keys = {"max_steps": "${nowhere}", "actor_train.training_args.warmup_ratio": 0.1}
    path = seed(LAKE, keys, "actor_train.training_args.warmup_steps")
    [line] = lines(path, ON_CPU)
    assert line.startswith("max_steps = '${nowhere}' ")
    assert line.endswith("; or --config.max_steps, with --config.learner.optimizer.warmup_steps")
    named = {"max_steps": "9", "learner.optimizer.warmup_steps": "1"}
    assert load_config(path, {**ON_CPU, **named}).max_steps == 9


def test_a_misspelt_variable_is_one_line_where_it_is_read(seed: Any) -> None:
    [line] = lines(seed(LAKE, {"lenght_of_all": 8192, "sequence_length": "${length_of_all}"}), ON_CPU)
    assert line.startswith("sequence_length = '${length_of_all}' ")
    assert "did you mean lenght_of_all?" in line


def test_a_block_that_is_not_there_is_a_line_beside_all_else(seed: Any) -> None:
    reads = {"custom_envs": {"FrozenLake": "${custom_env.FrozenLake}"}, "adv_estimator": "gpro"}
    near, estimator = lines(seed(LAKE, {"defaults": ["../config/traj_envz@_here_"], **reads}), ON_CPU)
    assert near.startswith("defaults.0 = '../config/traj_envz@_here_' neither a file (")
    assert near.endswith(" nor published (traj_envs); correct it in the file: no override settles it")
    assert estimator.startswith("adv_estimator = 'gpro' ")
    far, _ = lines(seed(LAKE, {"defaults": ["mine@_here_"], **reads}), ON_CPU)
    assert far.startswith("defaults.0 = 'mine@_here_' neither a file (")


def test_each_mistake_of_a_synchronizer_is_a_line(write: Any) -> None:
    sync = "synchronizer"
    keys = {f"{sync}.sync_interval": 0, f"{sync}.sync_style": "dinamic", f"{sync}.sync_offset": -1}
    path = write(changed(TRINITY, keys))
    said = lines(path)
    assert sorted(line.split(" = ")[0] for line in said) == sorted(keys)
    named = {"sync_interval": "2", "async_generation_ratio": "1"}
    assert load_config(path, named).sync_interval == 2
    [line] = lines(write(nested(TRINITY, f"{sync}.sync_offset", -1)))
    assert line == f"{sync}.sync_offset = -1 async_generation_ratio=-1.0: must be at least 0"


def test_a_storage_that_there_is_not_hides_no_missing_path(write: Any) -> None:
    rows = "buffer.explorer_input.taskset"
    keys = {f"{rows}.storage_type": "fyle", f"{rows}.data_selector.selector_type": "radnom"}
    said = lines(write(changed(TRINITY, keys, f"{rows}.path")))
    assert sorted(line.split(" = ")[0] for line in said) == sorted([*keys, f"{rows}.path"])
    with pytest.raises(RefusedConfig) as refused:  # the file of the path is looked for too
        load(write(changed(TRINITY, {f"{rows}.storage_type": "fyle"})), {}, also=(lookup_refusals,))
    assert f"{rows}.storage_type = 'fyle'" in str(refused.value)
    assert "tasks.train.t.source='train.jsonl': cannot be read" in str(refused.value)


JUDGE = {"worker_cls": "LLMJudgeRewardWorker", "model_args": {"model_name_or_path": "models/judge"}}


def test_each_mistake_of_a_judge_s_sampling_is_said(write: Any) -> None:
    sampling = {"max_new_tokens": "many", "temprature": 1, "num_beams": 4}
    said = lines(write(nested(RLVR, "rewards", {"llm_judge": {**JUDGE, "generating_args": sampling}})))
    both, length = sorted(said, key=len, reverse=True)
    assert (
        "num_beams=4: there is no beam search; write 1; temprature=1: nothing here reads it; did you mean temperature?"
        in both
    )
    assert length.startswith("rewards.llm_judge.generating_args judges.llm_judge.max_response_tokens=many: ")


def test_a_granularity_that_is_none_is_one_line(write: Any) -> None:
    off = "actor_train.model_args.disable_gradient_checkpointing"
    [line] = lines(write(changed(ROLL, {off: False, f"{STRATEGY}.recompute_granularity": "fully"})))
    assert line.startswith(f"{STRATEGY}.recompute_granularity = 'fully' write full or selective")


@pytest.mark.parametrize(
    ("served", "key"),
    [
        ({}, "judges.llm_judge.template"),
        (
            {"judge_model_type": "api", "judge_api_url": "http://judge:1/v1", "judge_model_name": "m"},
            "tasks.train.llm_judge.reward_args.llm_judge.template",
        ),
    ],
)
def test_a_judge_s_prompt_that_is_none_is_one_line(served: dict[str, str], key: str, write: Any) -> None:
    path = write(nested(RLVR, "rewards", {"llm_judge": {**JUDGE, "judge_prompt": "nope", **served}}))
    [line] = lines(path)
    assert line.startswith(f"rewards.llm_judge.judge_prompt = 'nope' nope is no template; write --config.{key}, with ")
    load_config(path, {key: "{question} {response}"})


URL = {"judge_api_url": "http://judge:1/v1", "judge_model_name": "m"}
ASKED = "tasks.train.llm_judge.reward_args.llm_judge"


@pytest.mark.parametrize(
    ("keys", "said", "settled"),
    [
        ({**URL, "judge_model_type": "ap"}, "did you mean api? Else write ", {f"{ASKED}.url": "http://other:1/v1"}),
        (
            {**JUDGE, "judge_model_type": "infer"},
            "did you mean inference? Else write ",
            {f"{ASKED}.judge": "llm_judge"},
        ),
        ({**JUDGE, "judge_model_type": 3}, "not one of api, inference; write ", {f"{ASKED}.judge": "llm_judge"}),
        (
            {"judge_model_type": "api"},
            "write judge_api_url and judge_model_name beside it",
            {f"{ASKED}.url": "http://other:1/v1", f"{ASKED}.model": "m"},
        ),
        (
            {"judge_model_type": "api", "judge_api_url": "http://judge:1/v1"},
            "write judge_api_url and judge_model_name beside it",
            {f"{ASKED}.url": "http://other:1/v1", f"{ASKED}.model": "m"},
        ),
    ],
)
def test_a_judge_s_type_that_is_none_is_one_line(
    keys: dict[str, Any], said: str, settled: dict[str, str], write: Any
) -> None:
    path = write(nested(RLVR, "rewards", {"llm_judge": {"worker_cls": "LLMJudgeRewardWorker", **keys}}))
    [line] = lines(path)
    assert line.startswith("rewards.llm_judge.judge_model_type = ")
    assert said in line
    assert load_config(path, settled).tasks.train["llm_judge"].rewards == ("llm_judge",)


def respelt(text: str, name: str, written: str) -> str:
    assert f"{name}:" in text
    return text.replace(f"{name}:", f"{written}:", 1)


@pytest.mark.parametrize(
    ("text", "name", "written", "group"),
    [
        (ROLL, "actor_train", "actor_trian", ""),
        (TRINITY, "buffer", "bufer", ""),
        (TRINITY, "taskset", "tasket", "buffer.explorer_input."),
        (TRINITY, "rollout_model", "rolout_model", "explorer."),
    ],
)
def test_a_misspelt_section_is_one_line_and_read_as_it_is_meant(
    text: str, name: str, written: str, group: str, write: Any
) -> None:
    [line] = lines(write(respelt(text, name, written)))
    meant = f"unknown; did you mean {group}{name}? Correct it in the file: no override settles it"
    assert line == f"{group}{written} {meant}"
    wrong = nested(text, "model.max_model_len", 0) if text is TRINITY else nested(text, "actor_train.pg_variant", "pp")
    said = lines(write(respelt(wrong, name, written)))
    assert len(said) == 2
    assert f"{group}{written} {meant}" in said


def test_a_reference_in_a_misspelt_section_is_told_with_it(write: Any) -> None:
    text = nested(ROLL, "actor_train.training_args.learning_rate", "${nowhere}")
    section, rate = lines(write(respelt(text, "actor_train", "actor_trian")))
    assert section.startswith("actor_trian unknown; did you mean actor_train?")
    assert rate.startswith("actor_train.training_args.learning_rate = '${nowhere}' ")
    assert rate.endswith("; or --config.learner.optimizer.learning_rate")


def test_a_group_of_variables_is_not_taken_for_a_section(write: Any) -> None:
    more = "custom_envz: {L: {env_type: frozen_lake}}\ncustom_envs: {Lake: '${custom_envz.L}'}\n"
    assert load_config(write(ROLL, more)).custom_envs["Lake"].id == "rljax/FrozenLake-v0"


def test_a_group_and_a_batch_that_are_wrong_name_all_that_they_take(seed: Any) -> None:
    path = seed("explorer.yaml", {"algorithm.repeat_times": "eight", "buffer.batch_size": -64})
    repeats, batch = lines(path, ON_CPU)
    assert repeats.startswith("algorithm.repeat_times = 'eight' ")
    assert batch.startswith("buffer.batch_size = -64 ")
    taken = {"group_size": "8", "rollout_batch_size": "512", "max_steps": "116", "sidecar.max_concurrency": "128"}
    assert {word.strip(",").removeprefix("--config.") for word in repeats.split() if "--config." in word} == set(taken)
    assert load_config(path, ON_CPU | taken).rollout_batch_size == 512


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (
            "actor_infer.strategy_args.strategy_name",
            "vlm",
            "there is no vlm engine; write --config.sidecar.engine=vllm",
        ),
        (
            "actor_train.model_args.dtype",
            "bf17",
            "not one of bf16, fp32; did you mean bf16? Else write --config.model.dtype",
        ),
        (
            "actor_infer.device_mapping",
            "rang(0,3)",
            "write list(range(0,4)), [0, 1, 2, 3] or a sum of such",
        ),
        (
            "train_env_manager.num_groups_partition",
            [7],
            "write a list with a number for each tag (FrozenLake), which add up to num_env_groups=8",
        ),
        (
            "actor_infer",
            {"device_mapping": [4], "num_gpus_per_worker": 2},
            "1 device is no multiple of the 2 of an engine; write others",
        ),
    ],
)
def test_a_line_says_once_what_to_write(key: str, value: Any, said: str, write: Any) -> None:
    [line] = lines(write(nested(ROLL, key, value)))
    assert line.endswith(said)
    assert line.count("device_mapping") <= 1
