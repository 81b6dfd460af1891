"""Small configs that work."""

from __future__ import annotations

import dataclasses
from typing import Any

from rljax.config.registries import policy_losses
from rljax.config.schema import Config, RowsConfig, TasksConfig, TasksetConfig

TASKSET = TasksetConfig(source="reverse_digits")
DEMONSTRATIONS = RowsConfig(source="shown.jsonl")


def make(**changes: Any) -> Config:
    """A config that trains; a loss that imitates has something to imitate."""
    algorithm = changes.get("algorithm")
    if algorithm is not None and policy_losses.traits(algorithm.pg_variant).imitates and "tasks" not in changes:
        changes["tasks"] = TasksConfig(train={"digits": TASKSET}, expert=DEMONSTRATIONS)
        changes["algorithm"] = dataclasses.replace(algorithm, expert_data_ratio=0.5)
    return Config(**{"tasks": TasksConfig(train={"digits": TASKSET}), **changes})
