"""docs/rewards.md against the registry: each reward has its row, and each key its place there."""

from __future__ import annotations

import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

from rljax.config import schema
from rljax.tasks.rewards.registry import built_in, resolve_reward
from rljax.tasks.task import Task
from rljax.trajectory import TaskId

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "rewards.md").read_text()
ROWS = dict(re.findall(r"^\| `(\w+)`.*? \| .*? \| (.*?) ?\|$", PAGE, re.MULTILINE))


def test_every_reward_has_its_row_with_its_keys() -> None:
    assert set(built_in()) <= set(ROWS)
    for name in built_in():
        parameters = inspect.signature(resolve_reward(name, "rewards").function).parameters.values()
        keys = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        outside_brackets = re.sub(r"\(.*?\)", "", ROWS[name])
        assert set(re.findall(r"`(\w+)`", outside_brackets)) == keys, name


def test_its_blocks_are_a_config_and_a_reward() -> None:
    names: dict[str, Any] = vars(schema).copy()
    configs: list[schema.Config] = []
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(block, names)
        if "TasksConfig" in block:
            configs.append(schema.Config(tasks=names["tasks"], judges=names.get("judges", {})))
    (mine,), (judged,) = (config.tasks.train.values() for config in configs)
    assert set(mine.rewards) == {"numeric", "my_package.rules:polite"}
    assert judged.reward_args["llm_judge"]["judge"] in configs[-1].judges
    task = Task(TaskId("mine", 0, 0), (), "3")
    found = asyncio.run(names["polite"](task, "3, please", **mine.reward_args["polite"]))
    assert found == {"please": 1.0, "short": 2.0}


def test_each_page_says_which_rewards_count_what_they_cannot_judge_in_time_as_wrong() -> None:
    known = [*built_in(), "format:REGEX"]
    *first, last = [f"`{name}`" for name in known if resolve_reward(name, "rewards").score_on_timeout is not None]
    names = f"{', '.join(first)} and {last}"
    said = f"{names}, whose time the response decides, count one that they cannot judge in time as wrong"
    for page in (ROOT / "ARCHITECTURE.md", ROOT / "docs" / "rewards.md"):
        assert said in " ".join(page.read_text().split()), page
