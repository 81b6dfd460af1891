"""A program that does not end by itself is ended: by a second Ctrl-C, and when it is done."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rljax import interrupts

pytestmark = pytest.mark.slow

STUBBORN = {
    "a step that goes on": """
while True:
    time.sleep(3600)
""",
    "C that no signal disturbs": """
import ctypes
lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
lock(mutex)
lock(mutex)
""",
}
BEGINS = """
import signal, sys, time, types
from rljax import interrupts
def told(seconds):
    print(seconds, flush=True)
    time.sleep(seconds)
interrupts.time = types.SimpleNamespace(sleep=told)
signal.signal(signal.SIGINT, lambda *_: None)  # wherever one finds it
interrupts.end_on_second_interrupt()
print("ready", flush=True)
"""
STUCK = """
import threading
from concurrent.futures import ThreadPoolExecutor
from rljax import interrupts
interrupts.LEFT_SECONDS = 0.1
ThreadPoolExecutor(1, "checkpoint").submit(threading.Event().wait)
interrupts.end_process(7)
"""
ROOT = Path(__file__).parents[1]


def deliver(program: subprocess.Popen[str]) -> None:
    """Sends Ctrl-C and waits until the kernel has handed it over: two at once would be one."""
    program.send_signal(signal.SIGINT)
    status = Path(f"/proc/{program.pid}/status")
    while program.poll() is None and any(
        int(line.split()[1], 16) for line in status.read_text().splitlines() if line.startswith(("SigP", "ShdP"))
    ):
        time.sleep(0.01)


def test_a_process_ends_though_a_checkpoint_is_never_written() -> None:
    """P12: the run had failed by then, and Python would wait for the thread."""
    end = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    said = "rljax: checkpoint_0 did not end within 0.1 s; this process ends all the same\n"
    assert (end.returncode, end.stderr) == (7, said)


def test_a_process_that_never_gets_its_lock_back_is_ended_by_the_kernel() -> None:
    locked = """
import ctypes
lock, mutex = ctypes.PyDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
lock(mutex)
interrupts.time = types.SimpleNamespace(sleep=lambda _: lock(mutex))  # and no thread computes any more
"""
    begins = BEGINS.replace("interrupts.end_on", locked + "interrupts.end_on")
    command = [sys.executable, "-c", begins + STUBBORN["a step that goes on"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        deliver(program)
        deliver(program)
        try:
            assert program.wait(timeout=60) == -signal.SIGALRM
        finally:
            program.kill()
    assert interrupts.SECONDS < interrupts.HARD_SECONDS < 5


@pytest.mark.parametrize("does", STUBBORN)
def test_the_second_ends_it_within_five_seconds_and_the_first_does_not(does: str) -> None:
    command = [sys.executable, "-c", BEGINS + STUBBORN[does]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        deliver(program)
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(4)
        deliver(program)
        # Its own timer is read, and not a clock of ours: on a busy machine it may be seen to end much later.
        left, said = program.communicate(timeout=60)
    assert 0 < float(left) < 5
    assert program.returncode == 130
    assert said == "\nrljax: interrupted twice and ended at once; the same command resumes\n"


@pytest.mark.parametrize("module", ["sidecar.workers.lifeline", "numpy", "jax._src.core", "flax.nnx"])
def test_one_while_the_program_is_imported_ends_it_with_a_line(module: str) -> None:
    """Python tells what it has imported; which import the signal meets is chance."""
    command = [sys.executable, "-X", "importtime", "-m", "rljax.main", "--config=quickstart"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as program:
        assert program.stderr is not None
        imported = (line for line in program.stderr if line.rpartition("|")[2].strip() == module)
        try:
            assert next(imported, None) is not None
            program.send_signal(signal.SIGINT)
            _, left = program.communicate(timeout=60)
        finally:
            program.kill()
    assert program.returncode == 130
    said = [line for line in left.splitlines() if line and not line.startswith("import time:")]
    assert said == ["rljax: interrupted before anything had begun"]
