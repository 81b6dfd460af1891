"""The machine and the commit that are measured. Imports nothing beyond the standard library."""

from __future__ import annotations

import platform
import subprocess

CHANGED = " with changes"
"""Behind a commit from which the working tree differs."""


def processor() -> str:
    """Returns the processor's own name, where the system has it."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def commit() -> str:
    """Returns the commit that runs, and whether the working tree, but for results, differs from
    it; ``unknown`` outside one, or where there is no git.
    """
    try:
        head = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--", ".", ":!bench/runs")
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return (head or "unknown") + (CHANGED if changed else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, timeout=10)
    return done.stdout.strip()
