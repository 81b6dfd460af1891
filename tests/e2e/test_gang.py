"""A learner of several hosts that one command starts, and starts again where one is lost."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from program import Started, assert_balanced, steps_trained

HERE = ("mode=both", "learner.mesh.fsdp=4", "learner.hosts.number=2", "learner.hosts.heartbeat_timeout=10")
FEW = ("learner.hosts.start=here", "observe.report=false", "eval_steps=none")


def test_hosts_are_lost_one_after_the_other_and_the_run_ends_all_the_same(tmp_path: Path, cache: Path) -> None:
    """Host 1 halts, then host 0 is killed, then host 1: each time one line says so, and all start again."""
    strikes = "agree:2=SIGSTOP,train:3,agree:4"
    run = Started(tmp_path / "run", cache, *HERE, *FEW, failpoint=strikes)
    assert run.end() == 0, run.printed
    assert run.spared == []
    said = [line for line in run.printed.splitlines() if "start again" in line]
    assert [re.sub(r"restart [12] of", "restart N of", line) for line in said] == [  # a checkpoint may be whole by then
        f"rljax: host {lost}: all hosts start again from the last checkpoint (restart N of 3)"
        for lost in (
            "1 has shown no sign of life for 10 s (learner.hosts.heartbeat_timeout)",
            "0 was ended by SIGKILL",
            "1 was ended by SIGKILL",
        )
    ], run.printed
    assert "Check failure stack trace" not in run.printed
    assert "Traceback" not in run.printed, run.printed
    assert_balanced(tmp_path / "run", groups=24)


def test_a_signal_to_the_command_saves_and_ends_all(tmp_path: Path, cache: Path) -> None:
    """Versions are handed over in memory. No step is trained on what older weights sampled: the third shows that they
    arrive.
    """
    run_dir = tmp_path / "run"
    run = Started(run_dir, cache, *HERE, *FEW, "sync_method=memory")
    run.until(lambda: steps_trained(run_dir) >= 3, "three steps")
    assert run.end(signal.SIGTERM) == 0, run.printed
    assert "stopped after a checkpoint" in run.printed
