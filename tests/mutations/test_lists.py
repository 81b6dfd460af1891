"""The lists of planted bugs still fit the code and the tests; nobody runs them every day."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

from tests.mutations.run import ROOT, read

pytestmark = pytest.mark.slow


def selects(expression: str, test: str) -> bool:
    """Pytest's ``-k``, of the names that a test's id is made of."""
    held = re.sub(
        r"\w+", lambda word: word[0] if word[0] in ("and", "or", "not") else str(word[0].lower() in test), expression
    )
    return bool(eval(held))  # of True, False, and, or, not and parentheses


def test_every_planted_bug_has_its_place_and_tests_that_are_there() -> None:
    selections = {mutation.tests for mutation in read(None)}  # refuses what is not there to be changed
    files = {part for tests in selections for part in shlex.split(tests) if part.endswith(".py")}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *sorted(files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    there = [line.lower() for line in done.stdout.splitlines() if "::" in line]
    for selection in selections:
        *chosen, expression = [*shlex.split(selection), ""] if " -k " not in selection else shlex.split(selection)
        of_files = [test for test in there if test.startswith(tuple(chosen))]
        assert any(not expression or selects(expression, test) for test in of_files), f"no test is there: {selection}"
