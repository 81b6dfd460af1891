"""What a new user meets first: the first snippet in Python, a run_dir that was mistyped, a first try that failed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from program import LIMIT, ROOT, SMALLEST, audit_of, environment, run


def test_the_snippet_trains_and_prints_each_step(tmp_path: Path, cache: Path) -> None:
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "run.md").read_text(), re.DOTALL)
    (snippet,) = (text for text in snippets if text.startswith("import rljax"))
    shown = 'load_config("quickstart", max_steps=50, run_dir="runs/first")'
    assert shown in snippet
    mine = snippet.replace(shown, f"load_config({str(SMALLEST)!r}, max_steps=2, run_dir={str(tmp_path / 'run')!r})")
    done = subprocess.run(
        [sys.executable, "-c", mine.replace('"481"', '"48"')],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=environment(cache),
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert [line.split()[0] for line in printed[:2]] == ["1", "2"]
    assert printed[-1].endswith("True")


def test_a_checkpoint_is_not_looked_for_where_no_run_is(tmp_path: Path, cache: Path) -> None:
    for mode in ("evaluate", "export"):
        done = run(tmp_path / "none", cache, f"mode={mode}")
        assert done.returncode == 2, done.stderr
        assert "no run here; train first, or correct run_dir" in done.stderr
        assert not (tmp_path / "none").exists()


def test_a_first_try_with_other_limits_does_not_spoil_the_run(tmp_path: Path, cache: Path) -> None:
    first = run(tmp_path / "run", cache, "model.max_prompt_tokens=4", "max_steps=2", "eval_steps=none")
    assert first.returncode == 1
    assert "model.max_prompt_tokens is 4" in first.stderr
    second = run(tmp_path / "run", cache, "max_steps=2", "eval_steps=none")
    assert second.returncode == 0, second.stderr
    assert audit_of(tmp_path / "run")["balanced"]
