"""Parent-death guard: no child outlives its parent, however the parent dies and whatever the child is doing.

Linux kills a child whose parent is dead (``PR_SET_PDEATHSIG``): that takes neither the child's interpreter nor its
lock. The kernel means the *thread* that started the child, so children are started from one that never ends. Elsewhere
a thread of the child looks after its parent.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

PR_SET_PDEATHSIG = 1
"""From ``linux/prctl.h``."""
LOOK_SECONDS = 0.5
"""Seconds between looks at the parent where the kernel does not tell of its death."""
T = TypeVar("T")


def hold(parent: int) -> None:
    """Has this process killed once ``parent``, the process that started it by `start`, is dead.

    A child calls it before anything else. A parent that has died before that is noticed, too.
    """
    if not _set_parent_death_signal():
        threading.Thread(target=_watch_parent, args=(parent,), name="lifeline", daemon=True).start()
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts a child that can `hold` on to this process; ``options`` are those of `subprocess.Popen`."""
    return in_lasting_thread(lambda: subprocess.Popen(command, **options))


def import_path() -> dict[str, str]:
    """Returns the environment variables by which another process of this machine imports what this one does."""
    return {"PYTHONPATH": os.pathsep.join(search_path())}


def search_path() -> list[str]:
    """Returns the folders from which this process imports, with the current one last: it may hold folders that are
    named like our packages. Who works in our own checkout means those.
    """
    here, own = os.getcwd(), str(Path(__file__).parents[2])
    folders = [folder or here for folder in sys.path]
    if here != own:
        folders = [folder for folder in folders if folder != here]
    return list(dict.fromkeys([*folders, own, here]))


def python_module(name: str) -> list[str]:
    """Returns the command that runs a module as a program of its own, by `import_path` alone."""
    return [sys.executable, "-P", "-m", name]


def in_lasting_thread(function: Callable[[], T]) -> T:
    """Returns the result of ``function``, called in a thread that lives as long as this process."""
    global _starter
    with _lock:
        if not _starter.is_alive():  # there was none, or it stayed behind where this process was forked
            _starter = _Starter()
            _starter.start()
    answer: Future[T] = Future()
    _starter.calls.put((function, answer))
    return answer.result()


def end_group_with_process() -> None:
    """Makes this process lead a group of its own, and has the group killed once it is dead.

    For children of its own that are not ours and do not `hold` on to it: vLLM's core does not look whether the process
    that started it still lives, and not every Ray cluster cleans up after an actor. So a shell waits at a pipe whose
    other end this process alone holds open.
    """
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    waited_at, _held = os.pipe()  # no program that is started from here inherits them
    subprocess.Popen(
        ["sh", "-c", f"read _; kill -s KILL -- -{os.getpid()}"],
        stdin=waited_at,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(waited_at)


class _Starter(threading.Thread):
    """Calls functions, one at a time, and never ends: not even in an interpreter that waits for its other threads."""

    def __init__(self) -> None:
        super().__init__(name="starts children", daemon=True)
        self.calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()

    def run(self) -> None:
        while True:
            function, answer = self.calls.get()
            try:
                answer.set_result(function())
            except BaseException as error:
                answer.set_exception(error)
            del function, answer  # what it has started is not held here until the next call


_lock = threading.Lock()
_starter = _Starter()


def _set_parent_death_signal() -> bool:
    if sys.platform != "linux":
        return False
    failed: int = ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    return not failed


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
