"""Runs one part in a process of its own, ends it when its time is over, and says what became of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.accelerator.plan import Part

ROOT = Path(__file__).parents[2]
KILL_SECONDS = 10.0
FROM_COLD = ("quickstart", "first-step")
"""Groups that measure what an empty compile cache costs, and then a warm one."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """Outcome of a part.

    Attributes:
        part: which one.
        status: ``done``, ``failed``, ``timed out`` or ``skipped``.
        seconds: that it took.
        rows: that it wrote, in order; also those of a part that failed later.
        why: of anything but ``done``.
    """

    part: Part
    status: str
    seconds: float
    rows: list[Row]
    why: str = ""


def environment(group: str, caches: Path) -> dict[str, str]:
    """Returns the environment of a part: the first device alone, no network. The compile cache is the user's own, where
    `JAX_COMPILATION_CACHE_DIR` names one; parts of `FROM_COLD` begin with an empty one. JAX takes memory as it needs
    it, and may take as much as torch; the quickstart is left to do that as it does for a user.
    """
    mine = None if group in FROM_COLD else os.environ.get("JAX_COMPILATION_CACHE_DIR")
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    found = os.environ | {
        "PYTHONPATH": path,
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0],
        "JAX_COMPILATION_CACHE_DIR": mine or str(caches / group / "jax"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / group / "inductor"),
        "TRITON_CACHE_DIR": str(caches / group / "triton"),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    if group != "quickstart":
        found |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_CLIENT_MEM_FRACTION": "0.95"}
        found.pop("XLA_PYTHON_CLIENT_MEM_FRACTION", None)  # its former name, which JAX refuses beside it
    return found


def run_part(part: Part, seconds: float, caches: Path) -> Outcome:
    """Runs a part for so many seconds at most. Parts of a group share what they compile, in a folder of ``caches``."""
    arguments = dict(part.arguments)
    begin = time.time()
    if part.worker in ("learner", "torch_learner"):
        arguments["spawned"] = begin
    with tempfile.TemporaryDirectory(prefix="bench-part-") as name:
        file, printed = Path(name) / "rows.jsonl", Path(name) / "printed"
        file.touch()
        command = [sys.executable, "-m", "bench.accelerator.worker", part.worker, json.dumps(arguments), str(file)]
        with open(printed, "wb") as output:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment(part.group, caches),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                ended = kill_group(process)
        took, rows = time.time() - begin, whole_rows(file)
        last = last_line(printed)
    skipped = next((row["skipped"] for row in rows if "skipped" in row), None)
    if skipped is not None:
        return Outcome(part, "skipped", took, [row for row in rows if "skipped" not in row], skipped)
    if code is None:
        how = "ended" if ended else "could not be ended, and keeps the device,"
        return Outcome(part, "timed out", took, rows, f"{how} after {seconds:.0f} s; it last said: {last}")
    if code:
        signalled = f"by {signal.Signals(-code).name}" if code < 0 else f"with {code}"
        return Outcome(part, "failed", took, rows, f"ended {signalled}: {last}")
    return Outcome(part, "done", took, rows)


def kill_group(process: subprocess.Popen[bytes]) -> bool:
    """Kills whatever is left of the process and of those that it started; returns whether it has ended. One that waits
    for its device in the kernel may not.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):  # they have ended; what is left is another user's
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(KILL_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def whole_rows(file: Path) -> list[Row]:
    """Returns the rows that were written whole."""
    text = file.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def last_line(file: Path) -> str:
    """Returns the last line that says something, cut to 300 characters."""
    lines = [line.strip() for line in file.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "nothing"
