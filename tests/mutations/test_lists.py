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


def collected(items: list[pytest.Item]) -> set[str]:
    """Ids of a session's tests, without the group that xdist writes behind each."""
    groups = ((item, item.get_closest_marker("xdist_group")) for item in items)
    return {item.nodeid.removesuffix(f"@{group.args[0]}" if group else "").lower() for item, group in groups}


def collect(files: set[str]) -> set[str]:
    """Ids of the tests of these files."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *sorted(files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.lower() for line in done.stdout.splitlines() if "::" in line}


def files_of(selection: str) -> set[str]:
    return {part for part in shlex.split(selection) if part.endswith(".py")}


def is_there(selection: str, tests: set[str]) -> bool:
    """Whether a test is selected."""
    *chosen, expression = [*shlex.split(selection), ""] if " -k " not in selection else shlex.split(selection)
    of_files = (test for test in tests if test.startswith(tuple(chosen)))
    return any(not expression or selects(expression, test) for test in of_files)


def test_every_planted_bug_has_its_place_and_tests_that_are_there(request: pytest.FixtureRequest) -> None:
    """This session has collected most tests, or all; what it has not is looked for."""
    selections = {mutation.tests for mutation in read(None)}  # refuses what is not there to be changed
    tests = collected(request.session.items)
    known = {test.partition("::")[0] for test in tests}
    unsure = {part for one in selections if not is_there(one, tests) for part in files_of(one)}
    unsure |= {part for one in selections for part in files_of(one) if part.lower() not in known}
    if unsure:
        tests |= collect(unsure)
    assert [one for one in sorted(selections) if not is_there(one, tests)] == [], "no test of these is there"
