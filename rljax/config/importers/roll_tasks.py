"""ROLL's environments, validation, data and rewards in ours."""

from __future__ import annotations

import re
from typing import Any

from rljax.config.importers.published import TRAJECTORY_ENVIRONMENTS
from rljax.config.importers.roll_domains import domains, with_judges
from rljax.config.importers.roll_values import is_rlvr, lengths
from rljax.config.importers.rule import Document, Found, Refusal, Values

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
        each = ", ".join(map(str, tags))
        raise Refusal(f"write a list with a number for each tag ({each}), which add up to num_env_groups={groups}")
    if path == "val_env_manager":
        seeds = val_seeds(found.document)
        numbers = [number * seeds // groups for number in numbers]
        numbers = [n + (index < seeds - sum(numbers)) for index, n in enumerate(numbers)]
    equal = len(set(numbers)) == 1
    return _agentic(found, {f"rollout.{path}.num_groups_partition": None if equal else tuple(numbers)})


def val_seeds(document: Document) -> int:
    """Returns how many seeds a validation plays: ``val_batch_size`` episodes, ``group_size`` of each."""
    return max(int(document.number("val_batch_size")) // int(document.number("val_env_manager.group_size", 1)), 1)


def val_batch(found: Found) -> Values | str:
    """Translates ``val_batch_size``: of all tags together."""
    if is_rlvr(found.document):
        return {"val_batch_size": None}
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


def completed(values: dict[str, Any]) -> dict[str, Any]:
    """Returns a document with what its judges leave out, and the published environment of each tag that it names and
    does not describe.
    """
    values = with_judges(values)
    managers = [values.get(f"{side}_env_manager") for side in ("train", "val")]
    named = [manager.get("tags") for manager in managers if isinstance(manager, dict)]
    tags = [tag for listed in named if isinstance(listed, list) for tag in listed if isinstance(tag, str)]
    known = {tag: TRAJECTORY_ENVIRONMENTS[tag] for tag in tags if tag in TRAJECTORY_ENVIRONMENTS}
    described = values.get("custom_envs") or {}
    return values | {"custom_envs": known | described} if known and isinstance(described, dict) else values


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


def query_filter(found: Found) -> Values | str:
    """Translates ``query_filter_config``: groups that are too easy or too hard are replaced, of all domains alike."""
    document, trained = found.document, domains(found.document)
    if found.name not in trained:
        return "the domain has no share"
    each = [_filtered(document.get(f"rewards.{domain}.query_filter_config") or {}) for domain in trained]
    if any(one != each[0] for one in each):
        raise Refusal(
            "a filter is of the whole run, and the domains differ; write the same for all, or "
            "--config.algorithm.filters",
            "algorithm.filters",
        )
    return each[0] or "it is off"


def _filtered(given: dict[str, Any]) -> Values:
    """Returns our keys of a ``query_filter_config``."""
    kind, args = given.get("type", "no_filter"), given.get("filter_args") or {}
    if kind == "no_filter":
        return {}
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
