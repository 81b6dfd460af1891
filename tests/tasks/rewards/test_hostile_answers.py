"""Programs that would pass for right, or stay, where their tests are texts to read and to write."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from rljax.tasks.rewards.code import code
from rljax.tasks.task import Task

TESTS = [{"input": "3 4\n", "output": "7"}, {"input": "10 20\n", "output": "30"}]
ANSWER = "a, b = map(int, input().split())\nprint(a + b, flush=True)\n"
LOOKS = """
import os
for folder, _, files in os.walk("/"):
    for file in files if not folder.startswith(("/usr", "/lib", "/opt")) else ():
        try: print(open(os.path.join(folder, file)).read())
        except (OSError, ValueError): pass
"""
DESCRIPTORS = """
import os
for n in range(1000):
    for path in (f"/proc/self/fd/{n}", f"/proc/1/fd/{n}", f"/dev/fd/{n}"):
        try: print("got", open(path).read())
        except OSError: pass
    try: n in (0, 1, 2) or print("got", os.read(n, 100))
    except OSError: pass
"""
REWRITES = """
import os
for write in (lambda: os.pwrite(0, b"3 4", 0), lambda: os.ftruncate(0, 0), lambda: os.write(0, b"3 4")):
    try: print("wrote", write())
    except OSError: pass
"""
REMEMBERS = """
import ctypes, os
for folder in {os.path.realpath(path) for path in ("/box", "/tmp", "/dev/shm", "/var/tmp", "/usr")}:
    try:
        if os.path.exists(folder + "/seen"): print(30)
        open(folder + "/seen", "w").close()
    except OSError: pass
if ctypes.CDLL(None).shmget(1234, 4096, 0o1600) >= 0: print(30)
"""
LEAVES = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        {0}\n    os._exit(0)\n"
FORKS = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"

PROGRAMS = {  # and the share of the tests that it passes: a constant is right once
    "honest": (ANSWER, 1.0),
    "a constant": ("print(7)", 0.5),
    "every answer": ("print(7)\nprint(30)", 0.0),
    "nothing": ("pass", 0.0),
    "whatever can be read": (LOOKS, 0.0),
    "descriptors": (DESCRIPTORS + "print(7)", 0.5),
    "its input written anew": (REWRITES + "print(7)", 0.5),
    "what a run before left": (REMEMBERS + "print(7)", 0.5),
    "right, then status 1": (ANSWER + "raise SystemExit(1)", 0.0),
    "right, then a crash": (ANSWER + "import ctypes\nctypes.string_at(0)", 0.0),
    "right, and out before its end": (ANSWER + "import os\nos._exit(0)\nraise SystemExit(1)", 1.0),
    "right, then never an end": (ANSWER + "while True: pass", 0.0),
    "right, then asleep without outputs": (ANSWER + "import os, time\nos.closerange(0, 3)\ntime.sleep(600)", 0.0),
    "right, then another program": (ANSWER + "import os\nos.execv('/bin/sleep', ['sleep', '600'])", 0.0),
    "right, then a thread that stays": (
        ANSWER + "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()",
        0.0,
    ),
    "right, then many": (ANSWER + FORKS, 0.0),
    "right, then endless errors": (ANSWER + "import sys\nwhile True: sys.stderr.write('x' * 1000)", 0.0),
    "right, beside a child that stays": (LEAVES.format("time.sleep(600)") + ANSWER, 1.0),
    "right, beside a child that writes on": (
        LEAVES.format("while True: os.write(1, b'x' * 4096)") + ANSWER + "time.sleep(600)",
        0.0,
    ),
    "endless output": ("while True: print(7)", 0.0),
}
THAT_HANG = ("never an end", "asleep without outputs", "another program", "a thread that stays", "many")
HANG_SECONDS, END_SECONDS = 5.0, 60.0  # what ends by itself has time for it beside one that takes every core


@pytest.mark.slow
def test_the_verdict_is_right_and_nothing_stays() -> None:
    def share(name: str) -> float:
        task = Task("t", (), "", metadata={"tests": TESTS})  # type: ignore[arg-type]
        response = f"```python\n{PROGRAMS[name][0]}\n```"
        seconds = HANG_SECONDS if name.removeprefix("right, then ") in THAT_HANG else END_SECONDS
        scored = code(task, response, partial=True, timeout=seconds, total_timeout=2 * seconds, memory_mb=512)
        return scored.parts["passed"]

    with ThreadPoolExecutor(4) as pool:
        found = dict(zip(PROGRAMS, pool.map(share, PROGRAMS), strict=True))
    assert found == {name: wanted for name, (_, wanted) in PROGRAMS.items()}
    assert (
        psutil.wait_procs([process for process in psutil.Process().children(recursive=True) if is_inside(process)], 30)[
            1
        ]
        == []
    )


def is_inside(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return "/box" in str(process.cmdline())
    return False
