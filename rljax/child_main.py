"""The program for a parent process: its config is the first line of standard input, and it ends when that input does.

Standard input ends when the parent dies, and what it carries stands in no file and in no list of processes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from rljax.config.load import from_plain
from rljax.config.schema import Config
from rljax.main import run


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _load() -> Config:
    config = from_plain(json.loads(sys.stdin.readline()))
    threading.Thread(target=_end_with_parent, name="lifeline", daemon=True).start()
    return config


if __name__ == "__main__":
    sys.exit(run(_load))
