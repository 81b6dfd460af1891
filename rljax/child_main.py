"""Main program of a child process: its parent's process id is its argument, and the parent sends it its config.

The config comes through standard input: so it stands in no file and in no list of processes.
"""

from __future__ import annotations

import json
import sys

from rljax.command_line import run
from rljax.config.load import from_plain
from rljax.interrupts import end_process
from sidecar.workers import lifeline

if __name__ == "__main__":
    lifeline.hold(int(sys.argv[1]))
    end_process(run(lambda: from_plain(json.load(sys.stdin))))
