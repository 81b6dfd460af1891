"""Domains of ROLL's RLVR in ours: a taskset for each, with its rows, reward, share and judge."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rljax.config.importers import roll_reward_models as models
from rljax.config.importers.roll_values import OWN_CLASS, is_own
from rljax.config.importers.rule import LEFT_OUT, Document, Found, Refusal, Values, did_you_mean, nearest, no_choice
from rljax.config.secrets import blanked

REWARDS: dict[str, tuple[str, ...]] = {
    "MathRuleRewardWorker": ("numeric",),
    "CrossThinkQARuleRewardWorker": ("choice",),
    "CodeSandboxRewardWorker": ("code",),
    "GeneralRuleRewardWorker": ("ifeval",),
    "LLMJudgeRewardWorker": ("llm_judge",),
    models.WORKER: ("reward_model",),
}
"""Rewards by ROLL's worker; a worker of one's own is refused by its name."""
_WORKERS = {
    "math_rule": "MathRuleRewardWorker",
    "crossthinkqa": "CrossThinkQARuleRewardWorker",
    "code_sandbox": "CodeSandboxRewardWorker",
    "ifeval": "GeneralRuleRewardWorker",
    "llm_judge": "LLMJudgeRewardWorker",
}


def rows(found: Found) -> Values | str:
    """Translates ``data_args.file_name`` of actor_train or validation: a taskset for each domain, of all files."""
    names = [found.value] if isinstance(found.value, str) else found.value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or not names:
        raise Refusal("write FILE.jsonl, or a list of such")
    side, document = _side(found), found.document
    trained = domains(document)
    values: dict[str, Any] = {}
    several, dialogues = len(_named(document)) > 1, _messages(found, names)
    for domain in trained:
        tags = _tags(document, domain) if several else ()
        if tags and side == "validation" and not _has_rows(names, tags):
            continue
        columns = {"prompt_key": found.beside("prompt") or "prompt", "answer_key": "ground_truth"}
        if dialogues:
            columns["messages_key"] = dialogues
        here = {
            "source": ",".join(names),
            **columns,
            **_reward_of(document, domain),
            **({"tags": tags} if tags else {}),
        }
        values |= {f"tasks.{side}.{domain}.{key}": value for key, value in here.items()}
    scored = models.cluster_scores(document)
    if own := [domain for domain in trained if not scored and _worker(document, domain) not in REWARDS]:
        keys = [f"tasks.{side}.{domain}.rewards" for domain in own]
        written = " and ".join(f"--config.{key}=module:function" for key in keys)
        message = f"{', '.join(own)}: no reward of ours; write {written}"
        near = {
            f"tasks.{side}.{domain}.{key}": value
            for domain in own
            if f"tasks.{side}.{domain}.source" in values
            for key, value in {"messages_key": None, "tags": (), **_meant(document, domain)}.items()
        }
        raise Refusal(message, *keys, here=values, of=f"rewards.{own[0]}.worker_cls", meant={**near, **values})
    return values


def _side(found: Found) -> str:
    return "validation" if found.path.startswith("validation") else "train"


def domains(document: Document) -> list[str]:
    """Returns the domains of a run: those of ``rewards`` that have a share, where shares are given."""
    every, shares = _named(document), document.get("actor_train.data_args.domain_interleave_probs")
    return [name for name in every if shares.get(name)] if isinstance(shares, dict) else every


def _named(document: Document) -> list[str]:
    named = document.get("rewards")
    return [str(name) for name in named] if isinstance(named, dict) and named else ["math_rule"]


def _tags(document: Document, domain: str) -> tuple[str, ...]:
    given = document.get(f"rewards.{domain}.tag_included") or [domain]
    return tuple(map(str, given)) if isinstance(given, list) else (str(given),)


def _has_rows(names: list[str], tags: tuple[str, ...]) -> bool:
    """Returns whether a file has a row with one of these tags; or is not here, or no JSON Lines: nobody can say."""
    if not all(Path(name).is_file() and name.endswith(".jsonl") for name in names):
        return True
    return any(_tagged(row, tags) for name in names for row in _rows_of(name))


def _messages(found: Found, names: list[str]) -> str | None:
    """Returns the column of messages, which ROLL prefers to the prompt: that of the first row, else the one named."""
    asked = found.beside("messages")
    if not all(Path(name).is_file() and name.endswith(".jsonl") for name in names):
        return asked if isinstance(asked, str) else None
    first: Any = next((row for name in names for row in _rows_of(name)), {})
    column = str(asked or "messages")
    return column if isinstance(first, dict) and column in first else None


def _tagged(row: Any, tags: tuple[str, ...]) -> bool:
    tag = row.get("tag") if isinstance(row, dict) else None
    return not set(map(str, tag if isinstance(tag, list) else [tag])).isdisjoint(tags)


def _rows_of(name: str) -> Iterator[Any]:
    """Yields the rows of a file; a line that is none is refused when the rows are read."""
    with Path(name).open(encoding="utf-8", errors="replace") as file:
        for line in file:
            with suppress(ValueError):
                yield json.loads(line)


def _reward_of(document: Document, domain: str) -> dict[str, Any]:
    """Returns the keys of a taskset that say how a domain is scored; what is no reward here is refused by `judged`."""
    if models.cluster_scores(document):
        return models.asked()
    rewards = REWARDS.get(_worker(document, domain))
    if rewards is None:
        return {}
    if rewards == ("reward_model",):
        return models.asked(domain)
    if rewards == ("llm_judge",):
        args = {f"reward_args.llm_judge.{key}": value for key, value in _question(document, domain).items()}
        return {"rewards": rewards, **args}
    return _ruled(rewards)


def _ruled(rewards: tuple[str, ...]) -> dict[str, Any]:
    """Returns the keys of a taskset that a rule scores."""
    args = {f"reward_args.code.{key}": value for key, value in _CODE.items() if rewards == ("code",)}
    return {"rewards": rewards, **args}


def _meant(document: Document, domain: str) -> dict[str, Any]:
    """Returns those keys for the worker that a misspelt one is near, where a rule scores there: a judge and a reward
    model take sections of their own.
    """
    if is_own(document.get(f"rewards.{domain}.worker_cls")):
        return {}
    near = REWARDS.get(nearest(_worker(document, domain), REWARDS), ())
    return {} if near in ((), ("llm_judge",), ("reward_model",)) else _ruled(near)


_CODE = {"tests": "test_cases", "entry_point": "test_case_function", "case_type": "case_type", "imports": True}


def _question(document: Document, domain: str) -> dict[str, Any]:
    how = {"pattern": r"(?i)\b(yes|no)\b", "high": 1.0}
    if is_served(document, domain):
        said = {key: document.get(f"rewards.{domain}.{theirs}") for key, theirs in _SERVED.items()}
        said["template"] = _template(document, domain)
        return {**{key: value for key, value in said.items() if value}, **how}  # others are refused where they stand
    return {"judge": domain, **how}


_SERVED = {"url": "judge_api_url", "model": "judge_model_name"}
VERDICT = """Given a problem, decide whether the final answer of the solution below matches the reference answer. \
Where the solution is unclear or has no end, it does not.

Question: {question}

Solution: {response}

Reference answer: {answer}

Answer with YES or NO, and nothing else."""
"""Question to a judge by default, in the place of the prompt that ROLL has by name."""
_NAMED = "Qwen2.5-7B-Instruct-RLVR-prompt"


def is_served(document: Document, domain: str) -> bool:
    """Returns whether a domain's judge is behind a URL; where its type is none that there is, whether it has one."""
    kind, url = (document.get(f"rewards.{domain}.{key}") for key in ("judge_model_type", "judge_api_url"))
    return kind == "api" or (kind not in (None, "inference") and bool(url))


def judge_key(make: Callable[[Found], Values]) -> Callable[[Found], Values | str]:
    """Makes a rule's function of one that translates a key of a judge on its own engine."""

    def made(found: Found) -> Values | str:
        if _worker(found.document, found.name) == models.WORKER:
            return "worker_cls says it"
        if REWARDS.get(_worker(found.document, found.name)) != ("llm_judge",):
            return "rewards are functions, not workers"
        if found.name not in domains(found.document):
            return "the domain has no share"
        if is_served(found.document, found.name):
            return "the judge is behind a URL, which ROLL sends none of it; reward_args.llm_judge says what is sent"
        return make(found)

    return made


def judge_prompt(found: Found) -> Values | str:
    """Translates ``judge_prompt``: a template, or one of ROLL's by its name."""
    if found.name not in domains(found.document):
        return "the domain has no share"
    template, served = _template(found.document, found.name), is_served(found.document, found.name)
    if template is None:
        key = "tasks.train.NAME.reward_args.llm_judge.template" if served else "judges.NAME.template"
        raise Refusal(
            f"{found.value} is no template; write --config.{key}, with {{question}}, {{answer}} and {{response}}", key
        )
    if served:
        return "with judge_model_type api it is reward_args.llm_judge.template"
    return {"judges.NAME.template": template}


def _template(document: Document, domain: str) -> str | None:
    """Returns the question to a judge; None where ``judge_prompt`` is none."""
    asked = str(document.get(f"rewards.{domain}.judge_prompt") or _NAMED)
    text = asked.replace("{reference}", "{answer}").replace("{prompt}", "{question}")
    return text if "{response}" in text else VERDICT if text == _NAMED else None


def judge_model(found: Found) -> Values:
    """Translates ``model_args`` of a judge."""
    path = found.value.get("model_name_or_path") or found.document.get("reward_pretrain")
    dtype = found.value.get("dtype")
    if dtype not in (None, "fp32", "bf16"):
        raise Refusal(f"dtype={dtype}: a judge computes in bf16 or fp32; write one of them", "judges.NAME.dtype")
    return {"judges.NAME.path": path, **({"judges.NAME.dtype": dtype} if dtype else {})}


def with_judges(values: dict[str, Any]) -> dict[str, Any]:
    """Returns a document whose judges have what they leave out: sampling, which `judge_sampling` completes, and the
    prompt.
    """
    rewards, document = values.get("rewards"), Document(values, "", {})
    if not isinstance(rewards, dict):
        return values
    judges = {
        name: {**group, **{key: group.get(key) or left_out for key, left_out in _LEFT_OUT.items()}}
        for name, group in rewards.items()
        if isinstance(group, dict) and REWARDS.get(_worker(document, name)) == ("llm_judge",)
    }
    return {**values, "rewards": {**rewards, **judges}} if judges else values


_LEFT_OUT: dict[str, Any] = {"judge_prompt": _NAMED, "generating_args": {}}
_SAMPLING = {"temperature": 0.95, "top_p": 0.7, "top_k": 50, "max_new_tokens": 8192}
"""ROLL's published defaults of ``generating_args``, a judge's too."""
_HONOURED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_NEEDLESS = ("max_length", "include_stop_str_in_output", "logprobs")
_UNCHANGING = {
    "num_beams": (1, "there is no beam search; write 1"),
    "length_penalty": (1, "it is for beam search, which there is none of; write 1"),
    "num_return_sequences": (1, "a judge gives one reply; write 1"),
    "do_sample": (True, "write temperature: 0 in its place"),
}
"""Of a judge's sampling what is refused, but where it changes nothing."""


def judge_sampling(found: Found) -> Values:
    """Translates ``generating_args`` of a judge, with ROLL's defaults for what it leaves out."""
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for key, value in {**_SAMPLING, **found.value}.items():
        if value is None or key in _NEEDLESS:
            continue
        if key in _HONOURED:
            values[f"judges.NAME.generating_args.{key}"] = 0 if (key, value) == ("top_k", -1) else value
        elif key == "max_new_tokens":
            values["judges.NAME.max_response_tokens"] = value
        elif key == "stop_strings":
            values["judges.NAME.generating_args.stop"] = tuple(value)
        else:
            near = did_you_mean(key, {**_SAMPLING, **dict.fromkeys(_HONOURED), **_UNCHANGING})
            unchanging, write = _UNCHANGING.get(key, (LEFT_OUT, f"nothing here reads it; {near}leave it out"))
            wrong += [f"{key}={blanked(value, key)}: {write}"] if value != unchanging else []
    if wrong:
        here = {key.replace("NAME", found.name): value for key, value in values.items()}
        raise Refusal("; ".join(wrong), here=here)
    return values


def judge_engine(found: Found) -> Values:
    """Translates ``strategy_args`` of a judge, whose engine is on one device."""
    if found.value.get("strategy_name") != "vllm":
        return {"judges.NAME.engine": "embedded"}
    values: dict[str, Any] = {"judges.NAME.engine": "vllm"}
    for key, value in (found.value.get("strategy_config") or {}).items():
        if key == "gpu_memory_utilization":
            values["judges.NAME.gpu_memory_utilization"] = value
        elif key == "max_num_batched_tokens":
            values[f"judges.NAME.engine_args.{key}"] = value
        elif key not in _OF_SPEED and (key, value) != ("tensor_parallel_size", 1):
            raise Refusal(f"{key}={value}: an engine of a judge is on one device and takes no such key; leave it out")
    return values


_OF_SPEED = (
    *("block_size", "enable_prefix_caching", "enforce_eager", "load_format", "max_model_len", "sleep_level"),
    *("swap_space", "disable_log_stats"),
)
"""Keys that change no reply of a judge whose prompt and reply are bounded."""


def judge_type(found: Found) -> str:
    """Translates ``judge_model_type``, which `_question` reads."""
    served = is_served(found.document, found.name)
    key = f"tasks.train.NAME.reward_args.llm_judge.{'url' if served else 'judge'}"
    if found.value not in ("api", "inference"):
        raise no_choice(found.value, ("api", "inference"), key)
    if served and not all(map(found.beside, _SERVED.values())):
        raise Refusal("write judge_api_url and judge_model_name beside it", key)
    return "a URL, or a section of judges"


def _worker(document: Document, domain: str) -> str:
    named = document.get(f"rewards.{domain}.worker_cls") or _WORKERS.get(domain, domain)
    return str(named).rpartition(".")[2]


def judged(found: Found) -> Values | str:
    """Translates ``rewards.DOMAIN.worker_cls``: a reward that there is."""
    worker = str(found.value).rpartition(".")[2]
    if worker not in REWARDS:
        key = f"tasks.train.{found.name}.rewards"
        if is_own(found.value):
            what = f"{OWN_CLASS}; write its reward as a function, --config.{key}=module:function"
            raise Refusal(f"{worker} is not translated: {what} (docs/rewards.md), or leave the domain out", key)
        ours = ", ".join(reward for rewards in REWARDS.values() for reward in rewards)
        raise Refusal(
            f"{worker} is not translated; {did_you_mean(worker, REWARDS)}leave the domain {found.name} out, or name "
            f"its reward ({ours} or your own), --config.{key}=module:function",
            key,
            meant={f"tasks.train.{found.name}.{one}": it for one, it in _meant(found.document, found.name).items()},
        )
    if found.name not in domains(found.document):
        return "the domain has no share"
    model = models.described(found.document, f"rewards.{found.name}", found.name) if worker == models.WORKER else {}
    return {f"tasks.train.{found.name}.rewards": REWARDS[worker], **model}


def messages(found: Found) -> Values | str:
    """Translates ``data_args.messages``: the column of dialogues, if the files that are here have one."""
    names = found.beside("file_name") or []
    column = _messages(found, [names] if isinstance(names, str) else names)
    if column is None:
        return "the files have no such column"
    return {f"tasks.{_side(found)}.{domain}.messages_key": column for domain in domains(found.document)}


def prompt(found: Found) -> Values:
    """Translates ``data_args.prompt``: the column of the question."""
    return {f"tasks.{_side(found)}.{domain}.prompt_key": found.value for domain in domains(found.document)}


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
    if len(_named(found.document)) == 1:
        return "a run of one domain trains all rows of its files"
    return {"tasks.train.NAME.tags": _tags(found.document, found.name)}
