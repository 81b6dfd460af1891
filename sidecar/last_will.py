"""Has what a process starts die with it, however it dies."""

from __future__ import annotations

import os
import subprocess


def end_group_with_process() -> None:
    """Makes this process lead a group of its own, and has the group killed once it is dead.

    vLLM's core does not look whether the process that started it still lives, a process that dies by SIGKILL can do
    nothing itself, and not every Ray cluster cleans up after an actor. So a shell waits at a pipe whose other end this
    process alone holds open.
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
