"""Named places where a test may kill the process, to prove that nothing is lost there.

``RLJAX_FAILPOINT=train:3`` kills this process with SIGKILL when it reaches ``train`` for the third time. Unset, a
failpoint costs a dictionary look-up.
"""

from __future__ import annotations

import collections
import os
import signal

NAMES = (
    *("claim", "generate", "store", "lease", "train", "publish", "announce", "load", "checkpoint", "validate"),
    *("engine_generate", "engine_update_weights", "engine_score"),  # in the engine's own process
)

_hits: collections.Counter[str] = collections.Counter()


def failpoint(name: str) -> None:
    """Dies here if the environment says so."""
    wanted = os.environ.get("RLJAX_FAILPOINT")
    if wanted is None:
        return
    _hits[name] += 1
    if wanted == f"{name}:{_hits[name]}":
        os.kill(os.getpid(), signal.SIGKILL)
