"""The commands of docs/sft.md, as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from program import LIMIT, ROOT, audit_of, environment
from test_sft import rows_of

PAGE = (ROOT / "docs" / "sft.md").read_text()

pytestmark = pytest.mark.optimised


def test_the_commands_of_the_page_lead_from_imitation_to_rewards(tmp_path: Path, cache: Path) -> None:
    """Copied from the page, in an empty folder; the scores are those that it says, or better."""
    found = environment(cache, PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        for command in block.replace("\\\n", " ").splitlines():
            program, *arguments = shlex.split(command)
            assert program == "rljax"
            done = subprocess.run(
                [sys.executable, "-m", "rljax.main", *arguments],
                capture_output=True,
                text=True,
                timeout=LIMIT,
                env=found,
                cwd=tmp_path,
            )
            assert done.returncode == 0, done.stderr
    imitated, rewarded = (
        [row["val/reverse_digits/score"] for row in rows_of(tmp_path / "runs" / name) if "val/seconds" in row]
        for name in ("sft", "rl")
    )
    assert imitated[0] < 0.2 < 0.5 < imitated[-1]
    assert rewarded[0] == imitated[-1], "rewards begin where imitation ended"
    assert rewarded[-1] > rewarded[0] + 0.1
    for name in ("sft", "rl"):
        assert audit_of(tmp_path / "runs" / name)["balanced"]
