"""Every notebook runs where there is nothing but the wheel, and shows what it printed when it did."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from tests.notebooks.executed import NOTEBOOKS, SIZES, bare_environment, execute
from tests.waiting import HANGS
from tests.wheel import build_wheel

SMALL = dict(zip(SIZES, ("2", "1"), strict=True))
"""Steps of each run, and runs of each kind."""
OF_A_MACHINE = re.compile(r"(?:(?<![\w.])|(?<=\\n))/(?:root|home|tmp|work|usr|opt|var|mnt|content|Users|private)/")
"""A path within JSON, where a line begins behind a backslash and an n."""

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def of_a_machine(cells: list[NotebookNode]) -> list[str]:
    """The beginnings of paths in their outputs that only the machine has on which they were made."""
    return OF_A_MACHINE.findall(json.dumps([cell.outputs for cell in cells]))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
@each
def test_it_runs_in_an_empty_folder_with_the_wheel(path: Path, wheel: Path, tmp_path: Path) -> None:
    executed = execute(path, wheel, tmp_path, SMALL, HANGS)
    assert of_a_machine(code_cells(executed)) == []


def test_they_begin_alike_and_say_what_is_missing(tmp_path: Path) -> None:
    first = {code_cells(nbformat.read(path, as_version=4))[0].source for path in NOTEBOOKS}
    assert len(first) == 1
    python = bare_environment(tmp_path / "environment")
    (tmp_path / "empty").mkdir()
    done = subprocess.run(
        [python, "-m", "IPython", "--colors=nocolor", "-c", *first],
        cwd=tmp_path / "empty",
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert "rljax is not installed: put rljax-*.whl into this folder" in done.stdout + done.stderr


@each
def test_its_outputs_are_kept_and_name_no_machine(path: Path) -> None:
    cells = code_cells(nbformat.read(path, as_version=4))
    counts = [cell.execution_count for cell in cells]
    assert counts == list(range(1, len(cells) + 1)), f"python -m tests.notebooks.executed {path.stem}"
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert of_a_machine(cells) == []
