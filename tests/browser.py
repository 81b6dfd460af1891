"""A headless Chromium, where this machine has one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)

needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium: apt-get install chromium")


def opened(address: str, directory: Path) -> tuple[str, list[str]]:
    """The page as the browser has it once its scripts have run, and what its console says: also of every address that
    the page's own policy kept it from asking. Scripts have 20 seconds, by a clock that stands still while they load.
    """
    profile = f"--user-data-dir={directory / 'profile'}"
    logs = ("--enable-logging=stderr", "--virtual-time-budget=20000", "--dump-dom")
    command = [str(BROWSER), *QUIET, profile, *logs, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
