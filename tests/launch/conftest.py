"""Starts supervisors of hosts that do nothing but live, halt, hang or end."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rljax.config.load import load_config
from rljax.config.schema import Config, HostsConfig
from rljax.launch.host_process import Place
from rljax.launch.supervisor import End, Supervisor
from sidecar.workers import lifeline
from tests.e2e.program import free_port

CHILD = """
import json, os, signal, sys, time
from sidecar.workers import lifeline, pulse
lifeline.hold(int(sys.argv[1]))
given = json.load(sys.stdin)
pulse.begin(int(sys.argv[2]), given["service"])
hosts = given["config"]["learner"]["hosts"]
exec(os.environ[f"HOST_{hosts['rank']}"])
"""
LIVES = "time.sleep(1000)"
"""Program of a host that lives until it is killed."""
MET = "pulse.current().tell('doing '); "
"""What a host says once it has met the others."""
WITHIN = 30.0


def config(**changes: Any) -> Config:
    made = load_config("quickstart")
    learner = dataclasses.replace(
        made.learner,
        mesh=dataclasses.replace(made.learner.mesh, fsdp=2),
        hosts=HostsConfig(number=2, heartbeat_timeout=5),
    )
    return dataclasses.replace(made, learner=learner, **changes)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Supervisor]:
    """Returns a function that starts two hosts with these programs, or one of them, and a supervisor."""
    program, coordinator = tmp_path / "child.py", f"127.0.0.1:{free_port()}"
    program.write_text(CHILD)
    monkeypatch.setattr(lifeline, "python_module", lambda name: [sys.executable, str(program)])

    def start(*programs: str, rank: int | None = None, **changes: Any) -> Supervisor:
        ranks = range(2) if rank is None else [rank]
        places = [Place(one, 2, coordinator) for one in ranks]
        environment = {f"HOST_{one}": text for one, text in zip(ranks, programs, strict=True)}
        return Supervisor(config(**changes), places, environment, linked=rank is not None)

    return start


def ended(watching: Supervisor) -> End:
    """Returns how it ended; none of its hosts is left."""
    began = time.monotonic()
    end = watching.run()
    assert time.monotonic() - began < WITHIN
    assert all(host.process.returncode is not None for host in watching.hosts)
    return end


def until(holds: Callable[[], bool]) -> None:
    """Waits for something, and no longer than `WITHIN`."""
    deadline = time.monotonic() + WITHIN
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
