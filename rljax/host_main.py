"""Main program of a host of a learner: its supervisor's process id and a pipe for signs of life are its arguments.

Its config comes through standard input, as in `rljax.child_main`.
"""

from __future__ import annotations

import json
import sys

from rljax import interrupts
from sidecar.workers import lifeline, pulse

if __name__ == "__main__":
    interrupts.end_on_interrupt()
    lifeline.hold(int(sys.argv[1]))
    given = json.load(sys.stdin)
    pulse.begin(int(sys.argv[2]), given["service"])
    from rljax import command_line
    from rljax.config.load import from_plain

    interrupts.end_on_second_interrupt()
    sys.unraisablehook = command_line.without_closed_loops
    interrupts.end_process(command_line.run(lambda: from_plain(given["config"])))
