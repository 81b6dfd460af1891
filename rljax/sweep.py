"""Runs a sweep: one run after another, each in a process of its own. Another one looks for their devices before."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rljax.config.fields import ConfigError
from rljax.config.load import as_plain, from_plain
from rljax.config.refusals import refused_by
from rljax.config.sweep import Point
from rljax.observe.formatting import number, validation_scores
from rljax.observe.metrics import read_metrics
from sidecar.errors import printable
from sidecar.workers import lifeline
from sidecar.workers.child_process import ChildEnded, ChildProcess, serve


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


def device_refusals(points: Sequence[Point]) -> list[ConfigError]:
    """Returns what is refused of the devices of runs. A process of its own looks for them: one that has looked keeps
    memory of each GPU, which the runs are to have.
    """

    async def ask() -> list[str]:
        child = ChildProcess("rljax.sweep")
        try:
            found: list[str] = await child.call("devices", [as_plain(point.config) for point in points])
            return found
        finally:
            await child.close()

    with contextlib.suppress(ChildEnded):  # whatever has ended it, the first run says so
        return [ConfigError(said) for said in asyncio.run(ask())]
    return []


async def _answer(_method: str, configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Answers `device_refusals` from its child."""
    from rljax.pipeline.assemble.checks import check_devices

    return [str(error) for config in configs for error in refused_by(check_devices, from_plain(config))]


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


if __name__ == "__main__":
    serve(_answer)
