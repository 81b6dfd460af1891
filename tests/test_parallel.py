"""A parallel session keeps the tests of a group on one worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import os
import pytest

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("number", range(6))
def test_worker(number):
    with open("workers", "a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")
"""


@pytest.mark.slow
def test_a_group_runs_on_one_worker(tmp_path: Path) -> None:
    (tmp_path / "test_group.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--rootdir",
        ".",
        "-p",
        "no:cacheprovider",
        "-p",
        "xdist",
        "-n",
        "2",
        "--dist",
        "loadgroup",
    ]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # others take seconds to import
    done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    workers = (tmp_path / "workers").read_text().split()
    assert len(workers) == 6
    assert len(set(workers)) == 1
