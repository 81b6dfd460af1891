"""Every notebook runs from top to bottom."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.waiting import HANGS

pytestmark = pytest.mark.slow

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_from_top_to_bottom(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLJAX_NOTEBOOK_STEPS", "12")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=int(HANGS), resources={"metadata": {"path": str(path.parent)}}).execute()
