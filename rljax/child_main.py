"""The command line for a parent process: it ends when its standard input does, and that when the parent dies."""

from __future__ import annotations

import os
import signal
import sys
import threading

from rljax.main import main


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, name="lifeline", daemon=True).start()
    sys.exit(main())
