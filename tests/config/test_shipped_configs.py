"""Every config of the repository is one that the program takes, each of its modes too."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from rljax.config.load import load_config
from rljax.config.validate import ConfigError

FOLDER = Path(__file__).parents[2] / "configs"
FILES = sorted(file.name for file in FOLDER.glob("*.py"))
SEEDS = Path(__file__).parents[1] / "data" / "seeds"
ARGUMENTS = {
    "gsm8k.py": ("train.jsonl", "train.jsonl,test.jsonl"),
    "roll.py": (f"{SEEDS}/agent_val_frozen_lake_async.yaml",),
    "trinity.py": (f"{SEEDS}/trainer.yaml", f"{SEEDS}/explorer.yaml,{SEEDS}/trainer.yaml"),
}
OF_FILES = ("roll.py", "trinity.py")


def variants() -> list[str]:
    found = []
    for name in FILES:
        modes = (*runpy.run_path(str(FOLDER / name)).get("MODES", ()), *ARGUMENTS.get(name, ()))
        found += [*([] if name in OF_FILES else [name]), *(f"{name}:{mode}" for mode in modes)]
    return found


@pytest.mark.parametrize("name", variants())
def test_a_config_is_taken_as_it_is(name: str) -> None:
    config = load_config(str(FOLDER / name))
    assert config.max_steps > 0
    wanted = name.partition(":")[2]
    if wanted in ("both", "train", "explore"):
        assert config.mode == wanted


@pytest.mark.parametrize("name", OF_FILES)
def test_a_config_that_needs_a_file_says_so(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}: names no file; write --config={name.removesuffix('.py')}:"):
        load_config(str(FOLDER / name))


def test_the_examples_are_there() -> None:
    assert {"agentic_frozen_lake_async.py", "agentic_webshop_async.py", "async_gsm8k.py", "quickstart.py"} <= {*FILES}
