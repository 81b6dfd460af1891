"""Writes YAML files."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.config.importer_files import SEEDS, changed


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def writes(text: str, *more: str, name: str = "mine.yaml") -> str:
        file = tmp_path / name
        file.write_text(textwrap.dedent(text) + "\n" + "\n".join(more) + "\n")
        return str(file)

    return writes


@pytest.fixture
def seed(write: Any) -> Any:
    """Writes one of the seeds, under its name, with keys of its own and one left out."""

    def written(name: str, keys: dict[str, Any], left_out: str = "") -> str:
        return str(write(changed((SEEDS / name).read_text(), keys, left_out), name=name))

    return written


@pytest.fixture
def pair(seed: Any) -> Any:
    """Writes the seeds' pair, each file with keys of its own and one left out."""

    def written(explorer: dict[str, Any], trainer: dict[str, Any], of_explorer: str = "", of_trainer: str = "") -> str:
        return f"{seed('explorer.yaml', explorer, of_explorer)},{seed('trainer.yaml', trainer, of_trainer)}"

    return written
