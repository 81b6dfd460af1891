"""Runs tests such as ``assert f(2) == 4`` on a hostile program: each in a sandbox of its own, connected to it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from rljax.tasks.sandbox import peer
from rljax.tasks.sandbox.sandbox import Limits, started, watch

_SHOWN = 200


def run_asserts(
    program: str, tests: Sequence[str], limits: Limits, *, setup: str = "", entry_point: str = "", prelude: str = ""
) -> list[bool]:
    """Returns which of the tests pass; those that are not reached in time do not.

    Args:
        program: defines what the tests call.
        tests: statements, each a test; what one defines, those after it have too.
        limits: of the program, and of the tests; the time is that of all of them.
        setup: runs before the tests, such as imports.
        entry_point: name in the program that the tests may call ``candidate``.
        prelude: runs before the program, and before the tests; its names are those of each, and none of the program's.

    Raises:
        ValueError: the setup raises by itself, before it has asked for anything of the program.
        SandboxUnavailable: this machine lets no program be shut in.
    """
    serving = f"{_peer()}\nserve({program!r}, {prelude!r})\n"
    checking = f"{_peer()}\ncheck({setup!r}, {list(tests)!r}, {entry_point!r}, {prelude!r})\n"
    with contextlib.ExitStack() as connections, contextlib.ExitStack() as running:
        to_program, from_tests = _pipe(connections)
        to_tests, from_program = _pipe(connections)
        served = running.enter_context(started(serving, limits, stdin=to_program, stdout=from_program, name="program "))
        checked = running.enter_context(started(checking, limits, stdin=to_tests, stdout=from_tests, name="tests "))
        connections.close()  # so that the end of one is seen by the other
        _, outputs = watch([served, checked], limits, until="tests stderr")
        for one in (checked, served):
            one.end()
            one.raise_if_refused()
    written = outputs["tests stderr"].decode(errors="replace")
    if written.startswith(peer.SETUP_FAILS):
        raise ValueError(f"the setup of the tests raises {written.removeprefix(peer.SETUP_FAILS)[:_SHOWN]}")
    said = re.match("[01]*", written)
    passed = [verdict == "1" for verdict in said.group()] if said else []
    return (passed + [False] * len(tests))[: len(tests)]


def _pipe(opened: contextlib.ExitStack) -> tuple[int, int]:
    reads, writes = os.pipe()
    opened.callback(os.close, reads)
    opened.callback(os.close, writes)
    return reads, writes


@cache
def _peer() -> str:
    return Path(peer.__file__).read_text()
