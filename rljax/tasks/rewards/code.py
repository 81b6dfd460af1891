"""Reward of a program: whether it passes the tests of its row, in a sandbox."""

from __future__ import annotations

import ast
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from rljax.tasks.cells import optional
from rljax.tasks.rewards.reward import TIMED_OUT, Reward
from rljax.tasks.rewards.scorer import Place, built_in
from rljax.tasks.rows import Row, column
from rljax.tasks.sandbox.asserts import run_asserts
from rljax.tasks.sandbox.sandbox import Limits, run
from rljax.tasks.task import Task

_FENCE = re.compile(r"^[ \t]*```[ \t]*([^`\n]*?)[ \t]*$", re.MULTILINE)
_PYTHON = re.compile(r"(?i)[{.]*py(thon3?)?\b")
_INPUT, _OUTPUT = ("input", "stdin", "inputs"), ("output", "stdout", "expected_stdout", "outputs")
_CANDIDATE = re.compile(r"^check\(candidate\)", re.MULTILINE)
_USUAL = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json", "typing", "builtins"),
)
IMPORTS = "".join(f"from {name} import *\n" for name in _USUAL) + f"import {', '.join(_USUAL)}\n"
"""Imports that ROLL and LiveCodeBench put before every program and its tests."""


@dataclass(frozen=True)
class Tests:
    """Tests of a row: texts to read and to write, or statements; never both.

    Attributes:
        texts: standard input, and what standard output must be.
        statements: such as ``assert f(2) == 4``.
        prefix: statements that the program begins with.
        candidate: function of the program that statements may call by this name; empty for none.
    """

    texts: tuple[tuple[str, str], ...] = ()
    statements: tuple[str, ...] = ()
    prefix: str = ""
    candidate: str = ""


def check_tests(
    row: Row, *, tests: str, setup: str | None, entry_point: str | None, case_type: str | None, **_: Any
) -> None:
    """Checks that a row has tests that can be run.

    Raises:
        ValueError: it has none; see `code`.
    """
    _asked(row, tests, setup, entry_point, case_type)


@built_in(
    "code",
    Place.PROCESS,
    score_on_timeout=0.0,
    reads_answer=False,
    check_row=check_tests,
    columns=("tests", "setup", "entry_point", "case_type"),
    time_limit="total_timeout",
)
def code(
    task: Task,
    response: str,
    *,
    tests: str = "tests",
    setup: str | None = None,
    entry_point: str | None = None,
    case_type: str | None = None,
    imports: bool = False,
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
        entry_point: column that names the function which such tests call ``candidate``, and which tests that are texts
            are the arguments and the result of, in JSON. A row may have nothing there.
        case_type: column of ROLL's kind of tests. What a test is shows by itself; ``text``, tests of the response and
            not of a program, is refused.
        imports: the standard library's usual names are there without an import (`IMPORTS`).
        partial: the score is the share of tests passed.
        timeout: seconds for each text, and for all statements together.
        total_timeout: seconds for all texts together; those not reached have failed, and the part ``timed_out`` is 1.
            Below `rollout.reward_timeout`.
        memory_mb: memory of the program, in MiB.

    Raises:
        ValueError: the row has no tests, or they cannot be read.
        SandboxUnavailable: this machine lets no program be shut in.
    """
    _try_sandbox()
    asked, before = _asked(task, tests, setup, entry_point, case_type)
    program = extract_program(response)
    if program is None:
        return Reward(0.0, {"program": 0.0, "passed": 0.0, TIMED_OUT: 0.0})
    program, usual = asked.prefix + program, IMPORTS if imports else ""
    limits = Limits(seconds=timeout, memory_bytes=memory_mb << 20)
    late = False
    if asked.statements:
        verdicts = run_asserts(
            program, asked.statements, limits, setup=before, entry_point=asked.candidate, prelude=usual
        )
    else:
        verdicts, late = _run_texts(usual + program, asked.texts, limits, total_timeout, partial)
    share = sum(verdicts) / len(verdicts)
    return Reward(share if partial else float(share == 1), {"program": 1.0, "passed": share, TIMED_OUT: float(late)})


def _asked(
    row: Row, tests: str, setup: str | None, entry_point: str | None, case_type: str | None
) -> tuple[Tests, str]:
    """Returns the tests of a row, and the statements before them."""
    before = str(column(row, setup)) if setup else ""
    name, kind = (str(optional(row.metadata, key) or "").strip() if key else "" for key in (entry_point, case_type))
    name = "" if name == "None" else name  # as ROLL's rows may have it
    if kind == "text":
        raise ValueError(f"{case_type} is text: tests of the response itself; write a reward of your own for them")
    asked = parse_tests(row.answer if tests == "answer" else column(row, tests), name)
    if not name and any(_CANDIDATE.search(test) and "candidate =" not in test for test in asked.statements):
        raise ValueError("the tests call candidate; write entry_point, the column of the function's name, or fill it")
    return asked, before


def extract_program(response: str) -> str | None:
    """Returns the last fenced block of Python of what follows any ``</think>``, else the last without a language; None
    where there is none, or it is empty.
    """
    blocks = list(_fenced(response.rpartition("</think>")[2]))
    of_python = [block for language, block in blocks if _PYTHON.match(language)]
    of_none = [block for language, block in blocks if not language]
    last = next((found[-1] for found in (of_python, of_none) if found), "")
    return last if last.strip() else None


def _fenced(text: str) -> Iterator[tuple[str, str]]:
    """Yields the closed blocks of a text: what stands behind their first fence, and what they hold. A fence with a
    language behind it always begins a block: the one before was not closed.
    """
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None or fence[1]:
            opened = fence
        else:
            yield opened[1], text[opened.end() + 1 : fence.start()]
            opened = None


def parse_tests(value: Any, function: str = "") -> Tests:
    """Reads tests in the forms in which data sets have them.

    A list of texts are statements (MBPP's ``test_list``), as is a text that is no JSON (HumanEval's ``test``, whose
    ``check`` is called; KodCode's, whose ``test_...`` are). A list of mappings are inputs and outputs
    (``input``/``output``, ``stdin``/``stdout``), as is a mapping of two lists (``inputs``/``outputs``), or statements
    (ROLL's ``assert_code``, with ``entry_point`` and ``import_prefix``). All may be JSON.

    Args:
        value: the tests.
        function: the candidate of statements. Inputs are its arguments, a line of JSON each, and outputs what it
            returns; empty: they are what a program reads and writes.

    Raises:
        ValueError: it is none of these, or there is no test.
    """
    value = _decoded(value)
    if isinstance(value, Mapping):
        inputs, outputs = _one_of(value, _INPUT), _one_of(value, _OUTPUT)
        if isinstance(inputs, str) or not isinstance(inputs, Sequence) or value.get("fn_name"):
            raise ValueError("tests that are a mapping need lists of inputs and outputs, as texts; or write statements")
        value = [{"input": given, "output": wanted} for given, wanted in zip(inputs, outputs, strict=True)]
    rows = list(value) if isinstance(value, Sequence) or hasattr(value, "tolist") else []
    if not rows:
        raise ValueError("there are no tests")
    if all(isinstance(row, str) for row in rows):
        return Tests(statements=tuple(test for row in rows for test in _tests_in(row)), candidate=function)
    if all(isinstance(row, Mapping) and "assert_code" in row for row in rows):
        statements = [test for row in rows for test in _tests_in(str(row["assert_code"]), row.get("entry_point"))]
        before = dict.fromkeys(f"{row['import_prefix']}\n" for row in rows if row.get("import_prefix"))
        return Tests(statements=tuple(statements), prefix="".join(before), candidate=function)
    if all(isinstance(row, Mapping) for row in rows):
        texts = tuple((_text(_one_of(row, _INPUT)), _text(_one_of(row, _OUTPUT))) for row in rows)
        return Tests(statements=tuple(_call(function, *text) for text in texts)) if function else Tests(texts=texts)
    raise ValueError("tests must all be statements, or all have an input and an output")


def same_output(written: str, wanted: str) -> bool:
    """Returns whether two outputs have the same words in the same lines; white space at the ends does not count."""
    return [line.split() for line in written.strip().splitlines()] == [
        line.split() for line in wanted.strip().splitlines()
    ]


def _run_texts(
    program: str, texts: Sequence[tuple[str, str]], limits: Limits, total_timeout: float, partial: bool
) -> tuple[list[bool], bool]:
    """Returns which texts the program passes, and whether ``total_timeout`` ended it before it had seen them all."""
    deadline = time.monotonic() + total_timeout
    verdicts = [False] * len(texts)
    for number, (given, wanted) in enumerate(texts):
        left = deadline - time.monotonic()
        if left <= 0:
            return verdicts, True
        outcome = run(program, given, replace(limits, seconds=min(limits.seconds, left)))
        verdicts[number] = not outcome.reason and same_output(outcome.stdout.decode(errors="replace"), wanted)
        if outcome.reason == "time" and left < limits.seconds:
            return verdicts, True
        if not (verdicts[number] or partial):
            break
    return verdicts, False


def _decoded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value.lstrip()[:1] not in ("[", "{"):
        return [value] if value.strip() else []
    try:
        return json.loads(value, strict=False)  # line breaks in its texts may stand as they are
    except ValueError:
        return [value]


def _one_of(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    for name in names:
        if name in row:
            return row[name]
    raise ValueError(f"a test has none of {', '.join(names)}; it has {', '.join(map(str, row)) or 'nothing'}")


def _text(value: Any) -> str:
    if isinstance(value, list):  # the lines
        return "\n".join(map(str, value))
    return str(value)


def _tests_in(statements: str, function: str | None = None) -> list[str]:
    """Returns the tests in statements: of functions that they define and do not call, a call of each."""
    try:
        body = ast.parse(statements).body
    except (SyntaxError, RecursionError) as error:
        raise ValueError(f"a test is no Python: {error}") from error
    calls = [node.value for node in body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    called = {ast.unparse(call.func) for call in calls}
    if "check" in _functions(body) and "check" not in called:
        asks = f"\nfrom solution import {function}" if function and function.isidentifier() else ""
        return [f"{statements}{asks}\ncheck({function or 'candidate'})"]
    _check_plain(body)
    names = [name for name in _functions(body) if name.startswith("test_") and name not in called]
    # the first call comes with the definitions, so that defining them is no test
    return [f"{statements}\n{names[0]}()", *(f"{name}()" for name in names[1:])] if names else [statements]


def _functions(body: Sequence[ast.stmt]) -> list[str]:
    return [node.name for node in body if isinstance(node, ast.FunctionDef)]


def _check_plain(body: Sequence[ast.stmt]) -> None:
    """Refuses tests that nobody but pytest can run: in the sandbox there is the standard library alone."""
    for node in (inner for one in body for inner in ast.walk(one)):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if any(module.partition(".")[0] == "pytest" for module in modules):
            raise ValueError("a test imports pytest, which is not in the sandbox; write test_...() with assert alone")
    for one in body:
        fixtures = isinstance(one, ast.FunctionDef) and len(one.args.args) > len(one.args.defaults)
        if isinstance(one, ast.FunctionDef) and one.name.startswith("test_") and fixtures:
            raise ValueError(f"{one.name} has parameters, which only pytest fills; write it without")
        if isinstance(one, ast.ClassDef | ast.AsyncFunctionDef) and one.name.lower().startswith("test"):
            raise ValueError(f"{one.name} is a class or async, which is not called; write def test_...()")


def _call(function: str, given: str, wanted: str) -> str:
    """Returns the statement that a function returns what is wanted; tuples are lists, as in JSON."""
    lines = [line for line in given.split("\n") if line.strip()]
    for text in (*lines, wanted):
        try:
            json.loads(text)
        except ValueError as error:
            raise ValueError(
                f"tests of {function}: {text[:40]!r} is no JSON; write arguments and results so"
            ) from error
    called = f"getattr(solution, 'Solution', lambda: solution)().{function}(*map(json.loads, {lines!r}))"
    return f"import json, solution; assert json.loads(json.dumps({called})) == json.loads({wanted!r})"


@cache
def _try_sandbox() -> None:
    """Finds out, once in a process, whether there can be a sandbox: a response without a program would not tell."""
    run("")
