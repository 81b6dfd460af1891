"""Rewards that go wrong, named in configs as ``faulty_rewards:NAME``."""

import time
from typing import Any


def raises_for_some(task: Any, response: str) -> float:
    """Raises for one task in four."""
    if task.id.index % 4 == 0:
        raise ValueError(f"cannot score {task.answer}")
    return float(len(response) % 2)


def hangs_for_some(task: Any, response: str) -> float:
    """Never returns for one task in eight."""
    while task.id.index % 8 == 0:
        time.sleep(3600)
    return float(len(response) % 2)


def raises(task: Any, response: str) -> float:
    """Raises for every task."""
    print("no column of tests here")
    raise KeyError("tests")
