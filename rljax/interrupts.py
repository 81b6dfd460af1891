"""Ends the process: by a second Ctrl-C, and at its own end, whatever XLA, Ray or a disk is doing."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

TYPE_CHECKING = False  # this is imported before Ctrl-C is handled: nothing here may take long
if TYPE_CHECKING:
    from typing import NoReturn

SECONDS = 1.0
"""Seconds after the second Ctrl-C in which the process may still end by itself."""
HARD_SECONDS = 3.0
"""Seconds after which the kernel ends it, whoever has the interpreter's lock; see `HARD_END`."""
HARD_END = signal.SIGALRM
"""Signal by which it does; shells say 142."""
REFUSED = 2
"""Exit code where a config is refused."""
HOST_LOST = 75
"""Exit code where a host of a learner has lost another: the same command goes on. It is EX_TEMPFAIL of sysexits.h."""
LEFT_SECONDS = 60.0
"""Seconds that threads have to end in once all else is closed and recorded."""
COMPILING, RAY = "compile", "connection to Ray"
"""Beginnings of the names of threads that nobody waits for any more when a run has ended: they compile programs, or
hold a connection to Ray that did not close in time."""

_at_once = threading.Event()


def end_on_interrupt() -> None:
    """Has Ctrl-C end this process at once, with a line, while nothing has begun that could be saved.

    A KeyboardInterrupt amid imports would come up in any of their callbacks, where it is printed or lost.
    """
    signal.signal(signal.SIGINT, _end_before_the_start)


def raise_on_interrupt() -> None:
    """Has Ctrl-C raise KeyboardInterrupt again, after `end_on_interrupt`."""
    if signal.getsignal(signal.SIGINT) is _end_before_the_start:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def end_on_second_interrupt() -> None:
    """Has a second Ctrl-C end this process in `SECONDS`, or `HARD_SECONDS` where it is too busy even to end, and its
    children with it. Call it in the main thread.

    Python handles signals in the main thread, when that returns from what it is doing: not while XLA compiles there. So
    their numbers go into a pipe, at which a thread waits.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_wait_for_two, args=(reading,), name="interrupts", daemon=True).start()


def end_process(code: int) -> NoReturn:
    """Ends this process with an exit code, once all else is closed and recorded.

    Python would wait for its threads. Those that compile, and Ray's, cannot be interrupted, and end with the process;
    others, such as one that writes to a disk that hangs, when they have had `LEFT_SECONDS`.
    """
    if _at_once.is_set() or any(thread.name.startswith((COMPILING, RAY)) for thread in threading.enumerate()):
        _end_now(code)
    threading.Thread(target=_end_late, args=(code,), name="end", daemon=True).start()
    sys.exit(code)


def end_at_once() -> None:
    """Has `end_process` leave out what libraries do at their end: JAX's would wait for hosts that do not come."""
    _at_once.set()


def _end_before_the_start(number: int, _frame: object) -> None:
    os.write(2, b"\nrljax: interrupted before anything had begun\n")  # printing may be what was interrupted
    os._exit(128 + number)


def _end_now(code: int) -> NoReturn:
    import logging

    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def _end_late(code: int) -> NoReturn:
    time.sleep(LEFT_SECONDS)
    left = [t.name for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
    with contextlib.suppress(OSError):
        said = f"did not end within {LEFT_SECONDS:g} s; this process ends all the same"
        print(f"rljax: {', '.join(left) or 'what ends with the process'} {said}", file=sys.stderr, flush=True)
    _end_now(code)


def _wait_for_two(reading: int) -> None:
    interrupts = 0
    while interrupts < 2:
        interrupts += os.read(reading, 64).count(signal.SIGINT)
    signal.setitimer(signal.ITIMER_REAL, HARD_SECONDS)  # nothing here handles its signal, which so is the end
    time.sleep(SECONDS)
    shown = "\x1b[?25h" if sys.stderr.isatty() else ""  # the live view has hidden the cursor
    print(f"{shown}\nrljax: interrupted twice and ended at once; the same command resumes", file=sys.stderr, flush=True)
    os._exit(128 + signal.SIGINT)
