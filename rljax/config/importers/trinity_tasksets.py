"""Translates Trinity-RFT's tasksets, those that train and those that validate: rows, workflow, rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljax.config.importers.published import MATH_WORKFLOW
from rljax.config.importers.rule import LEFT_OUT, Document, Found, Refusal, Values

_INPUT = "buffer.explorer_input"
TRAINS, VALIDATE = f"{_INPUT}.taskset", f"{_INPUT}.eval_tasksets"


def numbered(values: dict[str, Any]) -> dict[str, Any]:
    """Returns a document whose list of ``eval_tasksets`` is a group by their numbers, so that each key has a path."""
    buffer = values.get("buffer")
    reads = buffer.get("explorer_input") if isinstance(buffer, Mapping) else None
    sets = reads.get("eval_tasksets") if isinstance(reads, Mapping) else None
    if not isinstance(buffer, Mapping) or not isinstance(reads, Mapping) or not isinstance(sets, list) or not sets:
        return values
    listed = {str(number): one for number, one in enumerate(sets)}
    return {**values, "buffer": {**buffer, "explorer_input": {**reads, "eval_tasksets": listed}}}


def taskset(found: Found) -> Values | str:
    """Translates a key of ``buffer.explorer_input.taskset``: all that the taskset says."""
    if found.document.given(TRAINS) is LEFT_OUT:
        return "there is no taskset"
    given = found.document.get(TRAINS) or {}
    if found.path.endswith("default_workflow_type"):
        _check_workflow(_workflow(given, found.document, "default_workflow_type"))
    values = _read(found.path, given, _workflow(given, found.document, "default_workflow_type"))
    name = str(found.document.get(f"{TRAINS}.name", "taskset"))
    keys = {f"tasks.train.{name}.{key}": value for key, value in values.items()}
    if found.document.get("explorer.name") != "explorer" and found.document.get("mode") == "explore":
        # one of the run's own name is shared; under another name it would be this explorer's own
        keys |= {f"explorer.tasksets.{name}.{key}": value for key, value in values.items()}
    return keys


def validation(found: Found) -> Values:
    """Translates a key of one of ``eval_tasksets``: all that the taskset says."""
    given = found.document.get(f"{VALIDATE}.{found.name}")
    workflow = _workflow(given, found.document, "default_eval_workflow_type")
    name = str(given.get("name") or f"eval_{int(found.name) + 1}")
    values = _read(found.path, {"split": "test", **given}, workflow)
    keys = {f"tasks.validation.{name}.{key}": value for key, value in values.items()}
    if found.path.endswith(".path"):  # all that a set leaves out is said there too
        _check_workflow(workflow, keys)
    return keys


def _workflow(given: Mapping[str, Any], document: Document, default: str) -> str:
    """Returns the workflow of a taskset: its own, else that of all, else of those that train."""
    of_all = (document.get(f"{_INPUT}.{key}") for key in (default, "default_workflow_type"))
    named = (given.get("default_workflow_type"), *of_all, document.get("buffer.default_workflow_type"))
    return str(next(filter(None, named), "math_workflow"))


def _check_workflow(workflow: str, here: Values | None = None) -> None:
    """Refuses a workflow that is not there, unless the config names one; the taskset is read all the same."""
    if workflow not in ("math_workflow", "simple_workflow"):
        raise Refusal(
            f"there is no {workflow}; write math_workflow or simple_workflow, or "
            "--config.rollout.workflow=module:Class (docs/workflows.md) and --config.tasks.train.NAME.rewards",
            "rollout.workflow",
            here=here,
        )


def _read(key: str, given: Mapping[str, Any], workflow: str) -> dict[str, Any]:
    """Returns our keys of a taskset, of which each of its keys says those that are its own.

    Raises:
        Refusal: there is no path, or the key says where it is stored, or its order, and that is not there.
    """
    path, columns = str(given.get("path")), given.get("format") or {}
    if given.get("path") in (None, ""):
        raise Refusal("there is no path; write a hub id, FILE.jsonl or FILE.parquet")
    if key.endswith(".storage_type") and given.get("storage_type", "file") != "file":
        raise Refusal("tasks are read from files and the hub; write storage_type: file")
    file, math = path.endswith((".jsonl", ".parquet")), workflow == "math_workflow"
    selector = (given.get("data_selector") or given.get("task_selector") or {}).get("selector_type", "sequential")
    if key.endswith(".selector_type") and selector not in ("sequential", "shuffle", "random"):
        raise Refusal(f"there is no selector {selector}; write sequential or shuffle", "tasks.train.*.shuffle")
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
        "shuffle": selector != "sequential",
    }
