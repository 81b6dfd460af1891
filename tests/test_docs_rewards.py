"""docs/rewards.md against the registry: each reward has its row, and each key its place there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from rljax.tasks.rewards.registry import _BUILT_IN, resolve_reward

PAGE = (Path(__file__).parents[1] / "docs" / "rewards.md").read_text()
ROWS = dict(re.findall(r"^\| `(\w+)`.*? \| .*? \| (.*?) ?\|$", PAGE, re.MULTILINE))


def test_every_reward_has_its_row_with_its_keys() -> None:
    assert set(_BUILT_IN) <= set(ROWS)
    for name in _BUILT_IN:
        parameters = inspect.signature(resolve_reward(name, "rewards").function).parameters.values()
        keys = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        outside_brackets = re.sub(r"\(.*?\)", "", ROWS[name])
        assert set(re.findall(r"`(\w+)`", outside_brackets)) == keys, name
