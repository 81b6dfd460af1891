"""Reward of a program: whether it passes the tests of its row, in a sandbox."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from rljax.tasks.rewards.reward import Reward
from rljax.tasks.sandbox.asserts import run_asserts
from rljax.tasks.sandbox.sandbox import Limits, run
from rljax.tasks.task import Task

_BLOCK = re.compile(r"(?ims)^[ \t]*```[ \t]*(?:python3?|py)?[ \t]*\n(.*?)^[ \t]*```")
_INPUT, _OUTPUT = ("input", "stdin", "inputs"), ("output", "stdout", "expected_stdout", "outputs")


@dataclass(frozen=True)
class Tests:
    """Tests of a row: texts to read and to write, or statements; never both.

    Attributes:
        texts: standard input, and what standard output must be.
        statements: such as ``assert f(2) == 4``.
    """

    texts: tuple[tuple[str, str], ...] = ()
    statements: tuple[str, ...] = ()


def code(
    task: Task,
    response: str,
    *,
    tests: str = "tests",
    setup: str | None = None,
    entry_point: str | None = None,
    partial: bool = False,
    timeout: float = 6.0,
    total_timeout: float = 25.0,
    memory_mb: int = 1024,
) -> Reward:
    """Returns 1 if the program passes all tests, else 0; with ``partial`` the share that it passes.

    The program is the last fenced block of Python behind any thinking; a response without one has none.

    Args:
        task: its row has the tests.
        response: text with the program.
        tests: column of the tests; see `parse_tests`. ``answer`` is the reference answer.
        setup: column of statements to run before tests that are statements.
        entry_point: column that names the function which such tests call ``candidate``.
        partial: the score is the share of tests passed.
        timeout: seconds for each text, and for all statements together.
        total_timeout: seconds for all texts together; those not reached have failed. Below `rollout.reward_timeout`.
        memory_mb: memory of the program, in MiB.

    Raises:
        ValueError: the row has no tests, or they cannot be read.
        SandboxUnavailable: this machine lets no program be shut in.
    """
    _try_sandbox()
    asked = parse_tests(_column(task, tests))
    before, name = (str(_column(task, key)) if key else "" for key in (setup, entry_point))
    program = extract_program(response)
    if program is None:
        return Reward(0.0, {"program": 0.0, "passed": 0.0})
    limits = Limits(seconds=timeout, memory_bytes=memory_mb << 20)
    if asked.statements:
        verdicts = run_asserts(program, asked.statements, limits, setup=before, entry_point=name)
    else:
        verdicts = _run_texts(program, asked.texts, limits, total_timeout, partial)
    share = sum(verdicts) / len(verdicts)
    return Reward(share if partial else float(share == 1), {"program": 1.0, "passed": share})


def extract_program(response: str) -> str | None:
    """Returns the last fenced block of Python, of what follows any ``</think>``; None where there is none."""
    blocks = _BLOCK.findall(response.rpartition("</think>")[2])
    return blocks[-1] if blocks and blocks[-1].strip() else None


def parse_tests(value: Any) -> Tests:
    """Reads tests in the forms in which data sets have them.

    A list of texts are statements (MBPP's ``test_list``), as is a text that is no JSON (HumanEval's ``test``, whose
    ``check`` is called). A list of mappings are inputs and outputs (``input``/``output``, ``stdin``/``stdout``), as is
    a mapping of two lists (``inputs``/``outputs``). All may be JSON.

    Raises:
        ValueError: it is none of these, or there is no test.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.lstrip()[:1] in ("[", "{") else [value]
        except ValueError:
            value = [value]
    if isinstance(value, Mapping):
        inputs, outputs = _one_of(value, _INPUT), _one_of(value, _OUTPUT)
        if isinstance(inputs, str) or not isinstance(inputs, Sequence) or value.get("fn_name"):
            raise ValueError("tests that are a mapping need lists of inputs and outputs, as texts; or write statements")
        value = [{"input": given, "output": wanted} for given, wanted in zip(inputs, outputs, strict=True)]
    rows = list(value) if isinstance(value, Sequence) or hasattr(value, "tolist") else []
    if not rows:
        raise ValueError("there are no tests")
    if all(isinstance(row, str) for row in rows):
        calls = [f"{row}\ncheck(candidate)" if _defines_check(row) else row for row in rows]
        return Tests(statements=tuple(calls))
    if all(isinstance(row, Mapping) for row in rows):
        return Tests(texts=tuple((_text(_one_of(row, _INPUT)), _text(_one_of(row, _OUTPUT))) for row in rows))
    raise ValueError("tests must all be statements, or all have an input and an output")


def same_output(written: str, wanted: str) -> bool:
    """Returns whether two outputs have the same words in the same lines; white space at the ends does not count."""
    return [line.split() for line in written.strip().splitlines()] == [
        line.split() for line in wanted.strip().splitlines()
    ]


def _run_texts(
    program: str, texts: Sequence[tuple[str, str]], limits: Limits, total_timeout: float, partial: bool
) -> list[bool]:
    deadline = time.monotonic() + total_timeout
    verdicts = [False] * len(texts)
    for number, (given, wanted) in enumerate(texts):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        outcome = run(program, given, replace(limits, seconds=min(limits.seconds, left)))
        verdicts[number] = not outcome.reason and same_output(outcome.stdout.decode(errors="replace"), wanted)
        if not (verdicts[number] or partial):
            break
    return verdicts


def _column(task: Task, name: str) -> Any:
    if name == "answer":
        return task.answer
    if name not in task.metadata:
        raise ValueError(f"the row has no column {name!r}; it has {', '.join(map(str, task.metadata)) or 'no other'}")
    return task.metadata[name]


def _one_of(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    for name in names:
        if name in row:
            return row[name]
    raise ValueError(f"a test has none of {', '.join(names)}; it has {', '.join(map(str, row)) or 'nothing'}")


def _text(value: Any) -> str:
    if isinstance(value, list):  # the lines
        return "\n".join(map(str, value))
    return str(value)


def _defines_check(statements: str) -> bool:
    defines = re.search(r"^def check\(candidate\)", statements, re.MULTILINE)
    return bool(defines) and not re.search(r"^check\(", statements, re.MULTILINE)


@cache
def _try_sandbox() -> None:
    """Finds out, once in a process, whether there can be a sandbox: a response without a program would not tell."""
    run("")
