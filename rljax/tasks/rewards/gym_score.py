"""Reward of a `reasoning_gym` data set: its own score."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from rljax.tasks.gym_rows import ENTRY
from rljax.tasks.rewards.scorer import Place, built_in
from rljax.tasks.task import Task


@built_in("reasoning_gym", Place.PROCESS, score_on_timeout=0.0, source="reasoning_gym:", imports=("reasoning_gym",))
def reasoning_gym_score(task: Task, response: str) -> float:
    """Returns the data set's ``score_answer``, mostly in [0, 1], of what ``<answer>`` holds, else of it all."""
    from reasoning_gym.utils import extract_answer

    scored: Mapping[str, Any] = task.metadata[ENTRY]
    answer = extract_answer(response)
    dataset = _dataset(scored["dataset"], json.dumps(scored["args"]))
    return float(dataset.score_answer(response.strip() if answer is None else answer, scored["entry"]))


@lru_cache(maxsize=16)
def _dataset(name: str, args: str) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(name, **json.loads(args))
