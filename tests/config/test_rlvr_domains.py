"""ROLL's RLVR with several domains: each of its keys, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljax.config.fields import ConfigError
from rljax.config.importers.roll_domains import VERDICT
from rljax.config.importers.translate import translate
from rljax.config.load import load_config
from rljax.config.schema import GeneratingConfig, RewardModelConfig

FILE = Path(__file__).parents[1] / "data" / "rlvr_domains.yaml"
FILES = "data/code.jsonl,data/judge.jsonl,data/math.jsonl,data/ifeval.jsonl,data/choice.jsonl"
UNNEEDED = "unnecessary"
RULES = ("crossthinkqa", "ifeval", "math_rule", "code_sandbox")


def here(domain: str, **keys: Any) -> dict[str, Any]:
    return {f"tasks.train.{domain}.{key}": value for key, value in keys.items()}


def rows(domain: str, reward: str, *tags: str) -> dict[str, Any]:
    columns = {"prompt_key": "prompt", "messages_key": "messages", "answer_key": "ground_truth"}
    return here(domain, source=FILES, **columns, rewards=(reward,), tags=tags)


def scored(domain: str, reward: str, *tags: str) -> dict[str, Any]:
    return {
        f"rewards.{domain}.worker_cls": here(domain, rewards=(reward,)),
        f"rewards.{domain}.tag_included": here(domain, tags=tags),
    }


KEYS: dict[str, Any] = {
    "pretrain": {"model.path": "Qwen/Qwen2.5-7B"},
    "reward_pretrain": UNNEEDED,
    "adv_estimator": {"algorithm.adv_estimator": "reinforce"},
    "rollout_batch_size": {"rollout_batch_size": 64},
    "num_return_sequences_in_group": {"group_size": 4},
    "prompt_length": {"model.max_prompt_tokens": 512, "model.max_response_tokens": 1024},
    "response_length": {"model.max_response_tokens": 1024},
    # 1 × 16 × 2 devices
    "actor_train.training_args.per_device_train_batch_size": {
        "learner.rows_per_microbatch": 2,
        "algorithm.minibatch_size": 32,
    },
    "actor_train.training_args.gradient_accumulation_steps": {"algorithm.minibatch_size": 32},
    **{f"actor_train.data_args.{key}": UNNEEDED for key in ("template", "dataset_dir", "interleave_probs")},
    "actor_train.data_args.messages": {f"tasks.train.{d}.messages_key": "messages" for d in (*RULES, "llm_judge")},
    "actor_train.data_args.file_name": {
        **rows("math_rule", "numeric", "deepmath_103k", "aime"),
        **rows("code_sandbox", "code", "KodCode"),
        **rows("llm_judge", "llm_judge", "RLVR"),
        **rows("crossthinkqa", "choice", "crossthinkqa"),
        **rows("ifeval", "ifeval", "ifeval"),
        "tasks.train.code_sandbox.reward_args.code.tests": "test_cases",
        "tasks.train.code_sandbox.reward_args.code.entry_point": "test_case_function",
        "tasks.train.code_sandbox.reward_args.code.case_type": "case_type",
        "tasks.train.code_sandbox.reward_args.code.imports": True,
        "tasks.train.llm_judge.reward_args.llm_judge.judge": "llm_judge",
        "tasks.train.llm_judge.reward_args.llm_judge.pattern": r"(?i)\b(yes|no)\b",
        "tasks.train.llm_judge.reward_args.llm_judge.high": 1.0,
    },
    "actor_train.data_args.domain_interleave_probs": {
        **here("math_rule", weight=0.4),
        **here("code_sandbox", weight=0.3),
        **here("llm_judge", weight=0.1),
        **here("crossthinkqa", weight=0.1),
        **here("ifeval", weight=0.1),
    },
    "actor_train.device_mapping": {"learner.devices": "gpu:0-1", "learner.mesh.fsdp": 2},
    "actor_infer.device_mapping": {"sidecar.devices": "gpu:2", "sidecar.num_engines": 1},
    **scored("crossthinkqa", "choice", "crossthinkqa"),
    **scored("ifeval", "ifeval", "ifeval"),
    **scored("math_rule", "numeric", "deepmath_103k", "aime"),
    **scored("code_sandbox", "code", "KodCode"),
    **scored("llm_judge", "llm_judge", "RLVR"),
    "rewards.code_sandbox.use_local": UNNEEDED,
    "rewards.llm_judge.judge_prompt": {"judges.llm_judge.template": VERDICT},
    "rewards.llm_judge.judge_model_type": UNNEEDED,
    "rewards.llm_judge.model_args": {
        "judges.llm_judge.path": "virtuoussy/Qwen2.5-7B-Instruct-RLVR",
        "judges.llm_judge.dtype": "bf16",
    },
    "rewards.llm_judge.generating_args": {
        "judges.llm_judge.max_response_tokens": 100,
        "judges.llm_judge.generating_args.temperature": 0.8,
        "judges.llm_judge.generating_args.top_p": 0.8,
        "judges.llm_judge.generating_args.top_k": 50,
    },
    "rewards.llm_judge.strategy_args": {"judges.llm_judge.engine": "embedded"},
    "rewards.llm_judge.device_mapping": UNNEEDED,
    "rewards.crossthinkqa.response_length_penalty_coef": UNNEEDED,
    "rewards.crossthinkqa.model_args": UNNEEDED,
    **{f"rewards.{domain}.data_args": UNNEEDED for domain in ("crossthinkqa", "llm_judge")},
    **{f"rewards.{domain}.reward_type": UNNEEDED for domain in ("crossthinkqa", "ifeval")},
    **{f"rewards.{domain}.world_size": UNNEEDED for domain in RULES},
    **{f"rewards.{domain}.infer_batch_size": UNNEEDED for domain in (*RULES, "llm_judge")},
}


def test_each_key_becomes_what_it_should() -> None:
    found = {row.path: dict(row.here) or UNNEEDED for row in translate(str(FILE)).rows if row.given}
    assert found == KEYS


def test_it_is_a_config() -> None:
    config = load_config(str(FILE))
    judge = config.judges["llm_judge"]
    assert (judge.path, judge.engine, judge.devices) == ("virtuoussy/Qwen2.5-7B-Instruct-RLVR", "embedded", "auto")
    assert (judge.dtype, judge.generating_args.temperature, judge.max_response_tokens) == ("bf16", 0.8, 100)
    shares = {name: one.weight for name, one in config.tasks.train.items()}
    assert shares == {"math_rule": 0.4, "code_sandbox": 0.3, "llm_judge": 0.1, "crossthinkqa": 0.1, "ifeval": 0.1}


def changed(tmp_path: Path, **changes: Any) -> str:
    """The document with other values; keys have __ for dots."""
    document = yaml.safe_load(FILE.read_text())
    for path, value in changes.items():
        group = document
        *above, last = path.split("__")
        for name in above:
            group = group.setdefault(name, {})
        group[last] = value
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(document))
    return str(tmp_path / "mine.yaml")


def test_a_domain_without_a_share_is_left_out(tmp_path: Path) -> None:
    shares = {"math_rule": 0.75, "ifeval": 0.25, "llm_judge": 0}
    config = load_config(changed(tmp_path, actor_train__data_args__domain_interleave_probs=shares))
    assert sorted(config.tasks.train) == ["ifeval", "math_rule"]
    assert config.judges == {}


@pytest.mark.parametrize("given", [None, {}, {"top_p": 0.8, "max_new_tokens": 9}])
def test_what_a_judge_leaves_out_is_as_roll_has_it(given: Any, tmp_path: Path) -> None:
    path = changed(tmp_path, rewards__llm_judge__generating_args=given, rewards__llm_judge__judge_prompt=None)
    judge = load_config(path).judges["llm_judge"]
    top_p, most = (0.8, 9) if given else (0.7, 8192)
    assert judge.generating_args == GeneratingConfig(temperature=0.95, top_p=top_p, top_k=50)
    assert (judge.max_response_tokens, judge.template) == (most, VERDICT), "its reply is read as YES or NO"


def test_a_prompt_that_is_another_worker_s_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"PERALIGN-RLVR-prompt is no template; write --config\.judges\.llm_judge"):
        load_config(changed(tmp_path, rewards__llm_judge__judge_prompt="PERALIGN-RLVR-prompt"))


def test_a_judge_behind_a_url_has_no_engine(tmp_path: Path) -> None:
    api = {
        "worker_cls": "LLMJudgeRewardWorker",
        "judge_model_type": "api",
        "judge_api_url": "http://127.0.0.1:8000/v1",
        "judge_model_name": "big",
        "judge_prompt": "{question} {reference} {response}",
        "tag_included": ["RLVR"],
        "model_args": {"model_name_or_path": "x"},
    }
    config = load_config(changed(tmp_path, rewards__llm_judge=api))
    assert config.judges == {}
    args = config.tasks.train["llm_judge"].reward_args["llm_judge"]
    assert (args["url"], args["model"]) == ("http://127.0.0.1:8000/v1", "big")
    assert args["template"] == "{question} {answer} {response}"
    said = {row.path: row.remark for row in translate(changed(tmp_path, rewards__llm_judge=api)).rows}
    assert "ROLL sends none of it" in said["rewards.llm_judge.generating_args"]


def test_validation_has_the_domains_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = changed(tmp_path, validation__data_args__file_name="held_out.jsonl")
    assert len(load_config(path).tasks.validation) == 5  # the file is not here
    Path("held_out.jsonl").write_text(json.dumps({"tag": "aime", "prompt": "1+1?", "ground_truth": "2"}) + "\n")
    config = load_config(path)
    assert sorted(config.tasks.validation) == ["math_rule"]
    assert config.tasks.validation["math_rule"].tags == ("deepmath_103k", "aime")


def test_what_a_judge_samples_with_is_honoured(tmp_path: Path) -> None:
    sampling = {"temperature": 0.7, "top_k": -1, "min_p": 0.1, "repetition_penalty": 1.2, "stop_strings": ["\n"]}
    unchanging = {"num_beams": 1, "num_return_sequences": 1, "do_sample": True, "length_penalty": 1.0, "logprobs": 0}
    path = changed(
        tmp_path,
        rewards__llm_judge__generating_args={**sampling, **unchanging, "max_new_tokens": 9},
        rewards__llm_judge__strategy_args={"strategy_name": "vllm"},
    )
    judge = load_config(path).judges["llm_judge"]
    assert judge.generating_args == GeneratingConfig(
        temperature=0.7, top_p=0.7, top_k=0, min_p=0.1, repetition_penalty=1.2, stop=("\n",)
    )
    assert (judge.engine, judge.max_response_tokens) == ("vllm", 9)


@pytest.mark.parametrize(
    ("group", "key", "value", "line"),
    [
        ("model_args", "dtype", "fp16", "dtype=fp16: a judge computes in bf16 or fp32; write one of them"),
        ("generating_args", "num_beams", 4, "num_beams=4: there is no beam search; write 1"),
        ("generating_args", "num_return_sequences", 2, "num_return_sequences=2: a judge gives one reply; write 1"),
        ("generating_args", "do_sample", False, "do_sample=False: write temperature: 0 in its place"),
        ("generating_args", "typical_p", 0.9, "typical_p=0.9: nothing here reads it; leave it out"),
    ],
)
def test_what_a_judge_cannot_be_given_is_refused(group: str, key: str, value: Any, line: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"rewards.llm_judge.{group}.*{line}"):
        load_config(changed(tmp_path, **{f"rewards__llm_judge__{group}__{key}": value}))


HELPFUL = {"worker_cls": "roll.pipeline.base_worker.RewardWorker", "tag_included": ["RLVR"], "infer_batch_size": 4}


def with_reward_worker(tmp_path: Path, reward: dict[str, Any], **changes: Any) -> str:
    """RLHF as ROLL has it: no domains, and a worker ``reward``."""
    document = yaml.safe_load(FILE.read_text())
    del document["rewards"], document["actor_train"]["data_args"]["domain_interleave_probs"]
    (tmp_path / "rlhf.yaml").write_text(yaml.safe_dump({**document, "reward": reward, **changes}))
    return str(tmp_path / "rlhf.yaml")


def test_a_domain_of_a_reward_worker_is_scored_by_its_model(tmp_path: Path) -> None:
    path = changed(tmp_path, rewards__llm_judge={**HELPFUL, "device_mapping": "[3, 4]"}, reward_pretrain="models/rm")
    config = load_config(path)
    assert config.judges == {}
    assert config.tasks.train["llm_judge"].rewards == ("reward_model",)
    assert config.tasks.train["llm_judge"].reward_args == {"reward_model": {"model": "llm_judge"}}
    # 4 rows of each of two devices, which neither the learner (0 and 1) nor the engine (2) has
    model = RewardModelConfig(path="models/rm", rows_per_batch=8, devices="gpu:3-4")
    assert config.reward_models == {"llm_judge": model}
    own = {**HELPFUL, "model_args": {"model_name_or_path": "models/own", "dtype": "bf16"}, "device_mapping": "[1, 3]"}
    shared = load_config(changed(tmp_path, rewards__llm_judge=own)).reward_models["llm_judge"]
    assert shared == RewardModelConfig(path="models/own", rows_per_batch=4, dtype="bf16", devices="auto")


def test_the_reward_worker_of_rlhf_scores_all_rows(tmp_path: Path) -> None:
    config = load_config(with_reward_worker(tmp_path, {"device_mapping": "list(range(3,8))", "infer_batch_size": 2}))
    model = RewardModelConfig(path="Qwen/Qwen2.5-7B", rows_per_batch=10, devices="gpu:3-7")
    assert config.reward_models == {"reward": model}
    (taskset,) = config.tasks.train.values()
    assert (taskset.rewards, taskset.reward_args) == (("reward_model",), {"reward_model": {"model": "reward"}})
    away = with_reward_worker(tmp_path, {"device_mapping": "[9]"})  # on another machine than the learner
    assert load_config(away).reward_models["reward"] == RewardModelConfig(path="Qwen/Qwen2.5-7B", rows_per_batch=16)
    unused = load_config(with_reward_worker(tmp_path, {"infer_batch_size": 2}))
    assert unused.reward_models == {}, "ROLL starts none without devices"


@pytest.mark.parametrize(
    ("reward", "line"),
    [
        (
            {"worker_cls": "mine.MyWorker"},
            "MyWorker is not translated; write --config.tasks.train.NAME.rewards=",
        ),
        ({"model_args": {"dtype": "fp16"}}, "dtype=fp16: a reward model computes in bf16 or fp32"),
    ],
)
def test_a_reward_worker_that_cannot_be_had_is_refused(reward: dict[str, Any], line: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"reward.*{line}"):
        load_config(with_reward_worker(tmp_path, {"device_mapping": "[3]", **reward}))


def test_a_reward_worker_without_a_model_says_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"write reward_pretrain, or --config.reward_models.reward.path=MODEL"):
        load_config(with_reward_worker(tmp_path, {"device_mapping": "[3]"}, reward_pretrain=None))
