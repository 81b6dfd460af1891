"""A process with eight fake CPU devices that answers one question after the other: `python -m tests.learner.X_worker`.

What it imports and compiles serves all the tests of a file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.unoptimised import CHEAPER_FLAGS

ROOT = Path(__file__).parents[2]
FLAGS = (
    "--xla_force_host_platform_device_count=8",
    # What makes programs fast on a CPU would take most of the time here and has nothing to do with what is tested.
    "--xla_backend_optimization_level=0",
    *CHEAPER_FLAGS,
)
ENVIRONMENT = {"XLA_FLAGS": " ".join((os.environ.get("XLA_FLAGS", ""), *FLAGS)), "JAX_PLATFORMS": "cpu"}


class EightDevices:
    """Starts the worker when it is first asked, and another one where that has died."""

    def __init__(self, worker: str) -> None:
        self._command = [sys.executable, "-m", f"tests.learner.{worker}"]
        self._process: subprocess.Popen[str] | None = None

    def ask(self, what: str, directory: Path) -> Any:
        """Returns what the worker finds; it may leave files in the directory."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env={**os.environ, **ENVIRONMENT},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            print(what, directory, file=process.stdin, flush=True)
            answer = process.stdout.readline()
        except BaseException:  # a time limit: nobody waits for the answer any more
            self.close()
            raise
        assert answer, f"the worker ended with {process.wait()} at {what}: see its output"
        return json.loads(answer)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def answer(questions: dict[str, Callable[[Path], Any]]) -> None:
    """Answers, in the worker, until nobody asks."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what is printed is no answer
    for line in sys.stdin:
        what, _, directory = line.rstrip("\n").partition(" ")
        print(json.dumps(questions[what](Path(directory))), file=answers, flush=True)
