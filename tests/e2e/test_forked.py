"""What a forked start of the program has in common with one from nothing."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from program import LIMIT, ROOT, command, environment, start

from tests.e2e.forked import Forked

CONFIG = """
import json, os, sys
from pathlib import Path
from tests.e2e.smallest import get_config

streams = [(type(s.buffer).__name__, s.line_buffering, s.write_through, s.encoding, s.errors)
           for s in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)]
Path(__file__).with_name(f"{os.getpid()}.json").write_text(json.dumps(streams))
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_its_streams_hold_back_what_those_of_a_user_do(tmp_path: Path, cache: Path, unbuffered: str) -> None:
    (config := tmp_path / "shown.py").write_text(CONFIG)
    given = [*command(tmp_path / "run", config=config), "--dry-run"]
    env = environment(cache, PYTHONUNBUFFERED=unbuffered)
    with (tmp_path / "log").open("w") as log:
        forked = start(given, env, ROOT, log, log)
        plain = subprocess.Popen(given, stdout=log, stderr=log, env=env, cwd=ROOT)
        ends = [process.wait(LIMIT) for process in (forked, plain)]
    assert ends == [0, 0], (tmp_path / "log").read_text()
    assert isinstance(forked, Forked)
    found, expected = (json.loads((tmp_path / f"{one.pid}.json").read_text()) for one in (forked, plain))
    assert found == expected


IMPORTED_BEFORE = {"train", "_lead", "explore", "evaluate", "replay", "serve", "import_modules"}
"""Functions that run when `rljax.run` is imported, in a start from nothing too."""
ALONE = """
import importlib, os, sys
import jax, transformers  # theirs is not asked for
for modules in sys.argv[1:]:
    if not (pid := os.fork()):
        list(map(importlib.import_module, modules.split()))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, modules
"""


def test_other_modes_import_what_they_need() -> None:
    """Each by itself, without what who forks has imported."""
    tree = ast.parse((ROOT / "rljax" / "commands.py").read_text())
    functions = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name not in IMPORTED_BEFORE]
    imports = [[node for node in ast.walk(one) if isinstance(node, ast.ImportFrom)] for one in functions]
    modes = [" ".join(node.module or "" for node in nodes) for nodes in imports if nodes]
    assert len(modes) >= 6, "export, play, plan, audit, report, watch"
    subprocess.run([sys.executable, "-W", "ignore", "-c", ALONE, *modes], cwd=ROOT, check=True, timeout=LIMIT)
