"""Scripts that start children, are killed, and must leave none of them behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
LIMIT = 30.0
"""Seconds in which nothing may be left; the kernel needs none, a busy machine some."""


def survivors(script: str) -> list[list[str]]:
    """Kills a script (SIGKILL) once it has printed ``ready``; returns the command lines of descendants that live on."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as parent:
        assert parent.stdout is not None
        try:
            while parent.stdout.readline().strip() != "ready":
                assert parent.poll() is None
            family = psutil.Process(parent.pid).children(recursive=True)
            assert family
        finally:
            parent.kill()
    _, alive = psutil.wait_procs(family, timeout=LIMIT)
    left = [process.cmdline() for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    for process in alive:
        process.kill()
    return left
