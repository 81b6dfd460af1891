"""ROLL's environments, validation, data and rewards in ours."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rljax.config.importers.published import TRAJECTORY_ENVIRONMENTS
from rljax.config.importers.roll_values import is_rlvr, lengths
from rljax.config.importers.rule import LEFT_OUT, Document, Found, Refusal, Values

REWARDS: dict[str, tuple[str, ...]] = {
    "MathRuleRewardWorker": ("numeric",),
    "CrossThinkQARuleRewardWorker": ("choice",),
    "CodeSandboxRewardWorker": ("code",),
    "GeneralRuleRewardWorker": ("ifeval",),
    "LLMJudgeRewardWorker": ("llm_judge",),
}
"""Rewards by ROLL's worker; a worker of one's own is refused by its name."""
_WORKERS = {
    "math_rule": "MathRuleRewardWorker",
    "crossthinkqa": "CrossThinkQARuleRewardWorker",
    "code_sandbox": "CodeSandboxRewardWorker",
    "ifeval": "GeneralRuleRewardWorker",
    "llm_judge": "LLMJudgeRewardWorker",
}
_KINDS: dict[Any, dict[str, Any]] = {
    "frozen_lake": {"id": "rljax/FrozenLake-v0", "place": "loop"},
    "sokoban": {"id": "rljax/SimpleSokoban-v0", "place": "loop"},
    "webshop": {"id": "rljax/WebShop-v0", "kwargs.split": "train"},
}


def _agentic(found: Found, values: Values) -> Values | str:
    return "an RLVR run plays no environment" if is_rlvr(found.document) else values


def train_tags(found: Found) -> Values | str:
    """Translates ``train_env_manager.tags``; tags whose environment is published bring it along."""
    if not isinstance(found.value, list):
        raise Refusal("write a list of tags")
    return _agentic(found, {"rollout.train_env_manager.tags": tuple(found.value)})


def val_tags(found: Found) -> Values | str:
    """Translates ``val_env_manager.tags``; a shop validates on goals that are held out."""
    tags: list[str] = []
    more: dict[str, Any] = {}
    for tag in found.value:
        given = found.document.given(f"custom_envs.{tag}")
        if isinstance(given, dict) and given.get("env_type") == "webshop":
            more |= {f"custom_envs.{tag}HeldOut.{key}": value for key, value in shop(given).items()}
            tag = f"{tag}HeldOut"
        tags.append(tag)
    return _agentic(found, {"rollout.val_env_manager.tags": tuple(tags), **more})


def shop(environment: dict[str, Any]) -> dict[str, Any]:
    """Returns our keys of the shop that validates, which is the one that trains with other goals."""
    inner, turns = environment.get("env_config", {}), environment.get("max_tokens_per_step")
    named = {
        "id": "rljax/WebShop-v0",
        "kwargs.split": "validation",
        "system_prompt": environment.get("agent_system_template"),
        "template": environment.get("agent_template"),
        "max_actions": environment.get("max_steps"),
        "max_tokens_per_turn": turns,
        "format_penalty": -inner.get("format_penalty", 0.0),
        "history_length": environment.get("history_length"),
    }
    return {key: value for key, value in named.items() if value is not None}


def partition(found: Found) -> Values | str:
    """Translates ``num_groups_partition``; that of the validation has ``val_batch_size`` episodes in all."""
    path, numbers = found.path.partition(".")[0], found.value
    tags, groups = found.beside("tags", []), found.document.number(f"{path}.num_env_groups")
    if not isinstance(numbers, list) or len(numbers) != len(tags) or sum(numbers) != groups:
        raise Refusal(f"write {len(tags)} numbers, one a tag, that add up to num_env_groups={groups}")
    if path == "val_env_manager":
        seeds = val_seeds(found.document)
        numbers = [number * seeds // groups for number in numbers]
        numbers = [n + (index < seeds - sum(numbers)) for index, n in enumerate(numbers)]
    return _agentic(found, {f"rollout.{path}.num_groups_partition": tuple(numbers)})


def val_seeds(document: Document) -> int:
    """Returns how many seeds a validation plays: ``val_batch_size`` episodes, ``group_size`` of each."""
    return max(int(document.number("val_batch_size")) // int(document.number("val_env_manager.group_size", 1)), 1)


def val_batch(found: Found) -> Values | str:
    """Translates ``val_batch_size``: of all tags together."""
    if is_rlvr(found.document):
        return (
            {"val_batch_size": found.value} if found.document.given("validation") is not LEFT_OUT else "no validation"
        )
    return {"rollout.val_env_manager.num_env_groups": val_seeds(found.document)}


def pattern(found: Found) -> Values:
    """Translates ``action_pattern``: the action is ROLL's last group, and the first one here."""
    text = str(found.value)
    opening = [m.start() for m in re.finditer(r"(?<!\\)\((?!\?)", text)]
    for at in reversed(opening[:-1]):
        text = f"{text[:at]}(?:{text[at + 1 :]}"
    return {"custom_envs.NAME.action_pattern": text}


def penalty(found: Found) -> Values:
    """Translates ``format_penalty`` of an environment: what is added there is taken off here."""
    if isinstance(found.value, bool) or not isinstance(found.value, int | float) or found.value > 0:
        raise Refusal("write a number of 0 or below", "custom_envs.NAME.format_penalty")
    return {"custom_envs.NAME.format_penalty": abs(float(found.value))}


def environment(found: Found) -> Values:
    """Translates ``env_type``: the environment, where it computes, and of a shop which goals it trains on."""
    if not isinstance(found.value, str) or found.value not in _KINDS:
        raise Refusal(
            f"none of {', '.join(_KINDS)}; write --config.custom_envs.{found.name}.id=PACKAGE:ID of a gymnasium "
            "environment of texts",
            "custom_envs.NAME.id",
        )
    return {f"custom_envs.NAME.{key}": value for key, value in _KINDS[found.value].items()}


def manager(found: Found) -> Values | str:
    """Translates ``env_manager_cls``: one dialogue, or a row for each turn."""
    name = str(found.value).rpartition(".")[2]
    if name == "TrajEnvManager":
        return "history_length=None: one dialogue, one row"
    if name == "StepEnvManager":
        return {"custom_envs.NAME.history_length": found.beside("history_length", 5)}
    raise Refusal(
        f"there is no {name}; write TrajEnvManager or StepEnvManager, or --config.rollout.workflow=module:Class "
        "(docs/workflows.md)",
        "custom_envs.NAME.history_length",
        "rollout.workflow",
    )


def template(found: Found) -> Values:
    """Translates ``agent_template``, whose names differ a little."""
    text = str(found.value)
    for theirs, ours in (("{current_observation}", "{observation}"), ("{current_step}", "{turn_idx}")):
        text = text.replace(theirs, ours)
    if "{step_count}" in text:
        raise Refusal(
            f"there is no {{step_count}}; write {{turn_idx}} or --config.custom_envs.{found.name}.template",
            "custom_envs.NAME.template",
        )
    return {"custom_envs.NAME.template": text}


def rows(found: Found) -> Values | str:
    """Translates ``data_args.file_name`` of actor_train or validation: a taskset for each domain, of all files."""
    names = [found.value] if isinstance(found.value, str) else found.value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or not names:
        raise Refusal("write FILE.jsonl, or a list of such")
    side, document = _side(found), found.document
    trained = domains(document)
    values: dict[str, Any] = {}
    for domain in trained:
        tags = _tags(document, domain) if len(trained) > 1 else ()
        if tags and side == "validation" and not _has_rows(names, tags):
            continue
        columns = {"prompt_key": found.beside("prompt") or "prompt", "answer_key": "ground_truth"}
        here = {
            "source": ",".join(names),
            **columns,
            **_reward_of(document, domain),
            **({"tags": tags} if tags else {}),
        }
        values |= {f"tasks.{side}.{domain}.{key}": value for key, value in here.items()}
    return values


def _side(found: Found) -> str:
    return "validation" if found.path.startswith("validation") else "train"


def domains(document: Document) -> list[str]:
    """Returns the domains of a run: those of ``rewards`` that have a share, where shares are given."""
    named, shares = document.get("rewards"), document.get("actor_train.data_args.domain_interleave_probs")
    every = [str(name) for name in named] if isinstance(named, dict) and named else ["math_rule"]
    return [name for name in every if shares.get(name)] if isinstance(shares, dict) else every


def _tags(document: Document, domain: str) -> tuple[str, ...]:
    given = document.get(f"rewards.{domain}.tag_included") or [domain]
    return tuple(map(str, given)) if isinstance(given, list) else (str(given),)


def _has_rows(names: list[str], tags: tuple[str, ...]) -> bool:
    """Returns whether a file has a row with one of these tags; or is not here, so that nobody can say."""
    if not all(Path(name).is_file() for name in names):
        return True
    for name in names:
        with Path(name).open(encoding="utf-8", errors="replace") as file:
            if any(f'"{tag}"' in line for line in file for tag in tags):
                return True
    return False


def _reward_of(document: Document, domain: str) -> dict[str, Any]:
    """Returns the keys of a taskset that say how a domain is scored; what is no reward here is refused by `judged`."""
    rewards = REWARDS.get(_worker(document, domain), ("numeric",))
    args: dict[str, Any] = {"reward_args.code.tests": "test_cases"} if rewards == ("code",) else {}
    if rewards == ("llm_judge",):
        args = {f"reward_args.llm_judge.{key}": value for key, value in _question(document, domain).items()}
    return {"rewards": rewards, **args}


def _question(document: Document, domain: str) -> dict[str, Any]:
    how = {"pattern": r"(?i)\b(yes|no)\b", "high": 1.0}
    if is_served(document, domain):
        url, name = (document.get(f"rewards.{domain}.{key}") for key in ("judge_api_url", "judge_model_name"))
        return {"url": url, "model": name, "template": _template(document, domain), **how}
    return {"judge": domain, **how}


VERDICT = """Given a problem, decide whether the final answer of the solution below matches the reference answer. \
Where the solution is unclear or has no end, it does not.

Question: {question}

Solution: {response}

Reference answer: {answer}

Answer with YES or NO, and nothing else."""
"""What a judge is asked by default, in the place of the prompts that ROLL has by name."""


def is_served(document: Document, domain: str) -> bool:
    """Returns whether a domain's judge is behind a URL."""
    return document.get(f"rewards.{domain}.judge_model_type") == "api"


def judge_key(make: Callable[[Found], Values]) -> Callable[[Found], Values | str]:
    """Makes a rule's function of one that translates a key of a judge on its own engine."""

    def made(found: Found) -> Values | str:
        if REWARDS.get(_worker(found.document, found.name)) != ("llm_judge",):
            return "rewards are functions, not workers"
        if found.name not in domains(found.document):
            return "the domain has no share"
        if is_served(found.document, found.name):
            return "the judge is behind a URL"
        return make(found)

    return made


def judge_prompt(found: Found) -> Values | str:
    """Translates ``judge_prompt``: a template, or one of ROLL's by its name."""
    if found.name not in domains(found.document):
        return "the domain has no share"
    template = _template(found.document, found.name)
    if is_served(found.document, found.name):
        return "with judge_model_type api it is reward_args.llm_judge.template"
    return {"judges.NAME.template": template}


def _template(document: Document, domain: str) -> str:
    asked = str(document.get(f"rewards.{domain}.judge_prompt") or "-prompt")
    text = asked.replace("{reference}", "{answer}").replace("{prompt}", "{question}")
    if "{response}" in text:
        return text
    if text.endswith("-prompt"):
        return VERDICT
    raise Refusal(
        f"{asked} is no template; write --config.judges.{domain}.template, with {{question}}, {{answer}} and {{response}}",
        "judges.NAME.template",
    )


def judge_model(found: Found) -> Values:
    """Translates ``model_args`` of a judge."""
    path = found.value.get("model_name_or_path") or found.document.get("reward_pretrain")
    dtype = found.value.get("dtype")
    return {"judges.NAME.path": path, **({"judges.NAME.dtype": dtype} if dtype in ("fp32", "bf16") else {})}


def judge_sampling(found: Found) -> Values:
    """Translates ``generating_args`` of a judge."""
    same = {key: found.value[key] for key in ("temperature", "top_p", "top_k") if key in found.value}
    values = {f"judges.NAME.generating_args.{key}": value for key, value in same.items()}
    if "max_new_tokens" in found.value:
        values["judges.NAME.max_response_tokens"] = found.value["max_new_tokens"]
    return values


def judge_engine(found: Found) -> Values:
    """Translates ``strategy_args`` of a judge."""
    return {"judges.NAME.engine": "vllm" if found.value.get("strategy_name") == "vllm" else "embedded"}


def judge_type(found: Found) -> str:
    """Translates ``judge_model_type``, which `_question` reads."""
    if found.value not in ("api", "inference"):
        raise Refusal("write api or inference", "tasks.train.NAME.reward_args.llm_judge.judge")
    if found.value == "api" and not (found.beside("judge_api_url") and found.beside("judge_model_name")):
        raise Refusal(
            "write judge_api_url and judge_model_name beside it", "tasks.train.NAME.reward_args.llm_judge.url"
        )
    return "a URL, or a section of judges"


def _worker(document: Document, domain: str) -> str:
    named = document.get(f"rewards.{domain}.worker_cls") or _WORKERS.get(domain, domain)
    return str(named).rpartition(".")[2]


def judged(found: Found) -> Values | str:
    """Translates ``rewards.DOMAIN.worker_cls``: a reward that there is."""
    worker = str(found.value).rpartition(".")[2]
    if worker not in REWARDS:
        raise Refusal(
            f"{worker} is not translated; leave the domain {found.name} out, or name its reward (code, choice, ifeval, "
            f"llm_judge or your own), --config.tasks.train.{found.name}.rewards=module:function",
            f"tasks.train.{found.name}.rewards",
        )
    if found.name not in domains(found.document):
        return "the domain has no share"
    return {f"tasks.train.{found.name}.rewards": REWARDS[worker]}


def completed(values: dict[str, Any]) -> dict[str, Any]:
    """Returns a document with the published environment of each tag that it names and does not describe."""
    managers = [values.get(f"{side}_env_manager") for side in ("train", "val")]
    named = [manager.get("tags") for manager in managers if isinstance(manager, dict)]
    tags = [tag for listed in named if isinstance(listed, list) for tag in listed if isinstance(tag, str)]
    known = {tag: TRAJECTORY_ENVIRONMENTS[tag] for tag in tags if tag in TRAJECTORY_ENVIRONMENTS}
    described = values.get("custom_envs") or {}
    return values | {"custom_envs": known | described} if known and isinstance(described, dict) else values


def prompt(found: Found) -> Values:
    """Translates ``data_args.prompt``: the column of the question."""
    return {f"tasks.{_side(found)}.{domain}.prompt_key": found.value for domain in domains(found.document)}


def val_group(found: Found) -> Values | str:
    """Translates ``val_env_manager.group_size``: 1, since a validation is greedy."""
    if found.value != 1:
        raise Refusal(
            "a validation is greedy, and greedy episodes of one seed are all the same; write 1, or "
            "--config.sidecar.val_generating_args.temperature=1",
            "sidecar.val_generating_args.temperature",
            "rollout.val_env_manager.group_size",
        )
    return _agentic(found, {"rollout.val_env_manager.group_size": 1})


def history(found: Found) -> Values | str:
    """Translates ``history_length``, which a trajectory in one dialogue does not read."""
    if str(found.beside("env_manager_cls", "")).endswith("StepEnvManager"):
        return {"custom_envs.NAME.history_length": found.value}
    return "one dialogue shows all turns"


def shares(found: Found) -> Values | str:
    """Translates ``domain_interleave_probs``: the weights of the domains' tasksets."""
    given = found.value
    if not isinstance(given, dict) or not any(given.values()):
        raise Refusal("write DOMAIN: SHARE")
    known = found.document.get("rewards") or {"math_rule": {}}
    if unknown := [str(name) for name, share in given.items() if share and name not in known]:
        raise Refusal(f"{', '.join(unknown)}: no such domain in rewards; write it there, or leave its share out")
    trained = domains(found.document)
    if len(trained) == 1:
        return "there is one domain"
    return {f"tasks.train.{domain}.weight": float(given[domain]) for domain in trained}


def tags(found: Found) -> Values | str:
    """Translates ``tag_included``: the rows of a domain; of a run of one domain all."""
    trained = domains(found.document)
    if found.name not in trained:
        return "the domain has no share"
    if len(trained) == 1:
        return "a run of one domain trains all rows of its files"
    return {"tasks.train.NAME.tags": _tags(found.document, found.name)}


def query_filter(found: Found) -> Values | str:
    """Translates ``query_filter_config``: groups that are too easy or too hard are replaced."""
    kind, args = found.value.get("type", "no_filter"), found.value.get("filter_args") or {}
    if kind == "no_filter":
        return "it is off"
    if kind == "mean_filter":
        bounds = {"low": args.get("threshold_down"), "high": args.get("threshold_up")}
        more = {f"algorithm.filter.mean_band.{key}": value for key, value in bounds.items()}
        return {"algorithm.filters": ("mean_band",), **more}
    if kind == "std_filter":
        bound = {"algorithm.filter.min_std.bound": float(args.get("std_threshold", 0.0))}
        return {"algorithm.filters": ("min_std",), **bound}
    raise Refusal("write no_filter, mean_filter or std_filter", "algorithm.filters")


def turn(found: Found) -> Values:
    """Translates ``max_tokens_per_step``: what the environment says or ``max_new_tokens``, whichever is less."""
    return {"custom_envs.NAME.max_tokens_per_turn": min(found.value, lengths(found)["model.max_response_tokens"])}


def argument(found: Found) -> Values:
    """Translates an argument that no environment here takes: that of one of the user's own."""
    key = found.path.rpartition(".")[2]
    if found.document.get(f"custom_envs.{found.name}.env_type") in _KINDS:
        raise Refusal(f"no environment here takes {key}; leave it out")
    return {f"custom_envs.NAME.kwargs.{key}": found.value}
