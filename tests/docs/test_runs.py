"""What the pages say is run, run as a reader would: in a folder with the page's files, one block after the other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, Block, blocks, write_files

pytestmark = pytest.mark.slow
RUN = [page for page in PAGES if any(block.mark == "run" for block in blocks(page))]
LIMIT = 600


@pytest.fixture(scope="module")
def begun() -> dict[str, Path]:
    """What commands that pages have run beforehand leave in ``runs``, by the command."""
    return {}


def bash(script: str, folder: Path, environment: dict[str, str], block: Block) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, f"{block}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.parametrize("page", RUN)
def test_blocks_of_a_page_run_in_their_order(
    page: str, begun: dict[str, Path], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    write_files(page, tmp_path)
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name, module in (("python", ""), ("rljax", " -m rljax.main")):
        (binaries / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{module} "$@"\n')
        (binaries / name).chmod(0o755)
    environment = os.environ | {
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}",
        "JAX_PLATFORMS": "cpu",
    }
    for block in blocks(page):
        if block.mark != "run":
            continue
        before = block.what.removeprefix("after ")
        if before in begun:
            shutil.copytree(begun[before], tmp_path / "runs", dirs_exist_ok=True)
        elif before:
            bash(before, tmp_path, environment, block)
            begun[before] = shutil.copytree(tmp_path / "runs", tmp_path_factory.mktemp("begun") / "runs")
        bash(
            block.text if block.language == "sh" else f"python - <<'END'\n{block.text}END\n",
            tmp_path,
            environment,
            block,
        )
