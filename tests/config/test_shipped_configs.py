"""Every config of the repository is one that the program takes, each of its modes too."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from rljax.config.load import load_config

FOLDER = Path(__file__).parents[2] / "configs"
FILES = sorted(file.name for file in FOLDER.glob("*.py"))
ARGUMENTS = {"gsm8k.py": ("train.jsonl", "train.jsonl,test.jsonl")}


def variants() -> list[str]:
    found = []
    for name in FILES:
        modes = (*runpy.run_path(str(FOLDER / name)).get("MODES", ()), *ARGUMENTS.get(name, ()))
        found += [name, *(f"{name}:{mode}" for mode in modes)]
    return found


@pytest.mark.parametrize("name", variants())
def test_a_config_is_taken_as_it_is(name: str) -> None:
    config = load_config(str(FOLDER / name))
    assert config.max_steps > 0
    wanted = name.partition(":")[2]
    if wanted in ("both", "train", "explore"):
        assert config.mode == wanted


def test_the_examples_are_there() -> None:
    assert {"agentic_frozen_lake_async.py", "agentic_webshop_async.py", "async_gsm8k.py", "quickstart.py"} <= {*FILES}
