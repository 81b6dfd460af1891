"""Runs a sweep: one run after another, each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rljax.config.load import as_plain
from rljax.config.sweep import Point
from rljax.observe.formatting import number, validation_scores
from rljax.observe.metrics import read_metrics
from sidecar.errors import printable
from sidecar.workers import lifeline


def sweep(points: Sequence[Point]) -> int:
    """Trains all points and names those that failed; returns 0 where none did, else 1.

    The same command goes on with what was stopped, and finds finished what is. Ctrl-C and SIGTERM are passed on to the
    run under way, and no other begins.
    """
    codes: list[int] = []
    stopped = False
    process: subprocess.Popen[bytes] | None = None

    def stop(number: int, _frame: object) -> None:
        nonlocal stopped
        stopped = True
        if process is not None:
            process.send_signal(number)

    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, stop)
    for count, point in enumerate(points, 1):
        if stopped:
            break
        print(f"sweep: {printable(point.name)} ({count} of {len(points)})", flush=True)
        process = _start(point)
        codes.append(process.wait())
    for point, code in zip(points, codes, strict=False):
        print(f"sweep: {printable(_outcome(point, code))}")
    if stopped:
        print("sweep: stopped; the same command goes on")
    elif any(codes):
        print(f"sweep: {sum(map(bool, codes))} of {len(points)} failed; the same command tries them again")
    return 1 if any(codes) else 0


def _start(point: Point) -> subprocess.Popen[bytes]:
    """Starts a run; its config goes through a pipe, since there may be a password in it."""
    process = lifeline.start(
        [*lifeline.python_module("rljax.child_main"), str(os.getpid())],
        env={**os.environ, **lifeline.import_path()},
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is this process's to pass on
    )
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(json.dumps(as_plain(point.config)).encode())
    return process


def _outcome(point: Point, code: int) -> str:
    root = Path(point.config.run_dir or "")
    scores: dict[str, object] = {}
    for row in read_metrics(root):
        scores |= validation_scores(row)
    shown = "".join(f" · held out {name} {number(score)}" for name, score in scores.items())
    return f"{point.name}: {f'failed with exit code {code}' if code else 'ended'} · {root}{shown}"
