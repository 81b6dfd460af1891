"""Translates Trinity-RFT's tasksets, those that train and those that validate: rows, workflow, rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljax.config.importers.published import MATH_WORKFLOW
from rljax.config.importers.rule import LEFT_OUT, Document, Found, Refusal, Values
from rljax.config.tasksets import FILES

_INPUT = "buffer.explorer_input"
TRAINS, VALIDATE = f"{_INPUT}.taskset", f"{_INPUT}.eval_tasksets"


def numbered(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a document whose lists of ``eval_tasksets`` are groups by their numbers, so that each key has a path."""
    return {name: _numbered(name, value) for name, value in values.items()}


def _numbered(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return numbered(value)
    sets = value if isinstance(value, list) and VALIDATE.endswith(f".{name}") else []
    return {str(number): one for number, one in enumerate(sets)} or value


def taskset(found: Found) -> Values | str:
    """Translates a key of ``buffer.explorer_input.taskset``: all that the taskset says."""
    if found.document.given(TRAINS) is LEFT_OUT:
        return "there is no taskset"
    given = {**(found.document.get(TRAINS) or {}), "path": found.document.get(f"{TRAINS}.path")}
    workflow = _workflow(given, found.document, "default_workflow_type")
    values = _read(given, workflow)
    name = str(found.document.get(f"{TRAINS}.name", "taskset"))
    keys = {f"tasks.train.{name}.{key}": value for key, value in values.items()}
    if found.document.get("explorer.name") != "explorer" and found.document.get("mode") == "explore":
        # one of the run's own name is shared; under another name it would be this explorer's own
        keys |= {f"explorer.tasksets.{name}.{key}": value for key, value in values.items()}
    _check_rows(found.path, TRAINS, given, keys)
    if found.path.endswith("default_workflow_type"):
        _check_workflow(workflow, f"tasks.train.{name}", keys)
    return keys


def validation(found: Found) -> Values:
    """Translates a key of one of ``eval_tasksets``: all that the taskset says."""
    given = found.document.get(f"{VALIDATE}.{found.name}")
    workflow = _workflow(given, found.document, "default_eval_workflow_type")
    name = str(given.get("name") or f"eval_{int(found.name) + 1}")
    values = _read({"split": "test", **given}, workflow)
    keys = {f"tasks.validation.{name}.{key}": value for key, value in values.items()}
    _check_rows(found.path, f"{VALIDATE}.{found.name}", given, keys)
    if found.path.endswith(".path"):  # all that a set leaves out is said there too
        _check_workflow(workflow, f"tasks.validation.{name}", keys)
    return keys


def _workflow(given: Mapping[str, Any], document: Document, default: str) -> str:
    """Returns the workflow of a taskset: its own, else that of all, else of those that train."""
    of_all = (document.get(f"{_INPUT}.{key}") for key in (default, "default_workflow_type"))
    named = (given.get("default_workflow_type"), *of_all, document.get("buffer.default_workflow_type"))
    return str(next(filter(None, named), "math_workflow"))


def _check_workflow(workflow: str, taskset: str, values: Values) -> None:
    """Refuses a workflow that is not there, unless the config names one; the taskset is read all the same."""
    if workflow not in ("math_workflow", "simple_workflow"):
        rewarded = {key: value for key, value in values.items() if key.startswith(f"{taskset}.reward")}
        raise Refusal(
            f"there is no {workflow}; write math_workflow or simple_workflow, or "
            f"--config.rollout.workflow=module:Class (docs/workflows.md) and --config.{taskset}.rewards",
            "rollout.workflow",
            here={key: value for key, value in values.items() if key not in rewarded},
            meant=rewarded,
        )


def _check_rows(key: str, group: str, given: Mapping[str, Any], here: Values) -> None:
    """Refuses a taskset without a path; a key that says where it is stored, or its order, for itself first."""
    here = here if given.get("path") else {}
    if key.endswith(".storage_type") and given.get("storage_type", "file") != "file":
        raise Refusal("tasks are read from files and the hub; write storage_type: file", here=here)
    if key.endswith(".selector_type") and (selector := _selector(given)) not in ("sequential", "shuffle", "random"):
        raise Refusal(
            f"there is no selector {selector}; write sequential or shuffle", "tasks.train.*.shuffle", here=here
        )
    if given.get("path") in (None, ""):
        raise Refusal("there is no path; write a hub id, FILE.jsonl or FILE.parquet", of=f"{group}.path")


def _selector(given: Mapping[str, Any]) -> Any:
    return (given.get("data_selector") or given.get("task_selector") or {}).get("selector_type", "sequential")


def _read(given: Mapping[str, Any], workflow: str) -> dict[str, Any]:
    """Returns our keys of a taskset, of which each of its keys says those that are its own."""
    path, columns = str(given.get("path")), given.get("format") or {}
    file, math = path.endswith(FILES), workflow == "math_workflow"
    return {
        "source": path if file else f"hub:{path}",
        "subset": None if file else given.get("subset_name"),
        "split": None if file else given.get("split", "train"),
        "prompt_key": columns.get("prompt_key", "prompt"),
        "answer_key": columns.get("response_key", "response"),
        "system_prompt": columns.get("system_prompt") or (MATH_WORKFLOW if math else None),
        "rewards": ("numeric", "format") if math else ("numeric",),
        "reward_weights": (1.0, 0.1) if math else None,
        **({"reward_args.format.low": -1.0} if math else {}),
        "shuffle": _selector(given) != "sequential",
    }
