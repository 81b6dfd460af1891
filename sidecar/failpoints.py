"""Failpoints: named places where a test may kill the process, to prove that nothing is lost there.

``RLJAX_FAILPOINTS`` names a directory. Its file ``train:3`` is for the first process that reaches ``train`` for its
third time: the process removes the file and kills itself, or sends itself the signal whose name the file holds. So a
strike happens once, also where a restarted process inherits the environment. Unset, a failpoint costs a dictionary
look-up.
"""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

PHASES = ("claim", "generate", "store", "lease", "train", "publish", "announce", "load", "checkpoint", "validate")
"""Failpoints of learner and explorer: each at the start of its phase."""
NAMES = (
    *PHASES,
    *("write", "commit"),  # a version is written without its manifest; a checkpoint is being written
    *("engine_generate", "engine_update_weights", "engine_score"),  # in the engine's own process
    "engine_load",  # between two tensors, of which an engine has taken the first
)

_hits: collections.Counter[str] = collections.Counter()
_in_a_transaction = threading.RLock()


def unhalted() -> AbstractContextManager[Any]:
    """Returns a context in which no failpoint of another thread halts this process: halted in the middle of a
    transaction it would hold a lock of the ledger, and nobody else could go on.
    """
    return _in_a_transaction if "RLJAX_FAILPOINTS" in os.environ else contextlib.nullcontext()


def failpoint(name: str) -> None:
    """Kills or signals this process if the environment says so."""
    directory = os.environ.get("RLJAX_FAILPOINTS")
    if directory is None:
        return
    _hits[name] += 1
    strike = Path(directory) / f"{name}:{_hits[name]}"
    with contextlib.suppress(FileNotFoundError):
        number = signal.Signals[strike.read_text() or "SIGKILL"]
        strike.unlink()  # of two processes at this point only one can remove it; the other goes on
        # A kill may fall into a transaction: the lock of who is dead is given back.
        with _in_a_transaction if number == signal.SIGSTOP else contextlib.nullcontext():
            signal.pthread_kill(threading.get_ident(), number)  # to the process it may come when this has returned
