"""A plausible mistake that leaves a rising curve: the diagnostics must see it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from program import LIMIT, ROOT, environment


def test_log_probabilities_shifted_by_one_token_are_flagged_within_ten_steps(tmp_path: Path, cache: Path) -> None:
    """In a process of its own, where the mistake can be planted before anything is imported."""
    command = [sys.executable, "-m", "bench.shifted", "--config.max_steps=10", "--config.eval_steps=10"]
    done = subprocess.run(command, cwd=ROOT, env=environment(cache), capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("flagged: "), done.stdout
    assert int(last.split()[-1]) <= 10
    assert "are not those that they were drawn by" in done.stderr
