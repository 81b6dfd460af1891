"""The program: ``rljax``, or ``python -m rljax.main``; `rljax.command_line` says what it takes.

The rest is imported here, once Ctrl-C ends the process with a line: it takes seconds.
"""

from __future__ import annotations

import sys

from rljax import interrupts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def program() -> NoReturn:
    """Runs the command line in a process of its own, and ends that."""
    interrupts.end_on_interrupt()
    from sidecar.workers.lifeline import search_path

    sys.path[:] = search_path()
    from rljax import command_line

    interrupts.end_on_second_interrupt()
    sys.unraisablehook = command_line.without_closed_loops
    interrupts.end_process(command_line.main(sys.argv[1:]))


if __name__ == "__main__":
    program()
