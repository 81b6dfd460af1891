"""The wheel of this checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("rljax", "sidecar", "envs", "configs", "pyproject.toml", "setup.py", "README.md", "LICENSE")
ALONE = ("--no-deps", "--no-index", "--quiet")


def build_wheel(folder: Path) -> Path:
    """Builds it in an empty folder; returns its file."""
    return built(copied(folder), folder / "wheels")


def copied(folder: Path) -> Path:
    """Copies into an empty folder what a wheel is built of: a build writes into a checkout."""
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    return source


def built(source: Path, wheels: Path) -> Path:
    """Builds the wheel of a checkout into an empty folder; returns its file."""
    pip(["wheel", *ALONE, "--no-build-isolation", "--wheel-dir", str(wheels), str(source)])
    (wheel,) = wheels.iterdir()
    return wheel


def pip(arguments: Sequence[str]) -> str:
    """Runs it; returns what it prints."""
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
