import asyncio
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from rljax.tasks.rewards import Reward, RewardRunner
from rljax.tasks.rewards.code import code, extract_program, parse_tests, same_output
from rljax.tasks.task import RewardTerm, Task
from rljax.trajectory import TaskId

DOUBLES = "print(int(input()) * 2)"


def task(**row: Any) -> Task:
    return Task(TaskId("programs", 0, 0), (), "unused", metadata=row)


def fenced(program: str) -> str:
    return f"Here it is:\n```python\n{program}\n```\nDone."


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("a\n```\nfirst\n```\nb\n```py\nlast\n```\nc", "last\n"),
        ("<think>\n```python\nno\n```\n</think>\n```Python\nyes\n```", "yes\n"),
        ("<think>```python\nno\n```</think> nothing", None),
        ("  ```python3\n  x = 1\n  ```", "  x = 1\n"),
        ("```cpp\nint main() {}\n```", None),
        ("```python\nprint(1)", None),
        ("```python\n\n```", None),
        ("print(1)", None),
    ],
)
def test_the_program_is_the_last_block_behind_any_thinking(response: str, program: str | None) -> None:
    assert extract_program(response) == program


@pytest.mark.parametrize(
    "tests",
    [
        [{"input": "1", "output": "2"}, {"input": "2", "output": "4"}],
        [{"stdin": "1", "stdout": "2"}, {"stdin": ["2"], "stdout": ["4"]}],
        {"inputs": ["1", "2"], "outputs": ["2", "4"]},
        json.dumps({"inputs": ["1", "2"], "outputs": ["2", "4"]}),
    ],
)
def test_inputs_and_outputs_in_the_forms_of_data_sets(tests: Any) -> None:
    assert parse_tests(tests).texts == (("1", "2"), ("2", "4"))


def test_statements_in_the_forms_of_data_sets() -> None:
    assert parse_tests(["assert f(1)"]).statements == ("assert f(1)",)
    assert parse_tests('["assert f(1)", "assert f(2)"]').statements == ("assert f(1)", "assert f(2)")
    assert parse_tests("assert f([1])").statements == ("assert f([1])",)
    human_eval = "def check(candidate):\n    assert candidate(1) == 2\n"
    assert parse_tests(human_eval).statements == (f"{human_eval}\ncheck(candidate)",)
    assert parse_tests(f"{human_eval}\ncheck(f)").statements == (f"{human_eval}\ncheck(f)",)


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ([], "there are no tests"),
        ("[]", "there are no tests"),
        (None, "there are no tests"),
        (["assert f(1)", {"input": "1", "output": "2"}], "must all be statements"),
        ([{"input": "1"}], "a test has none of output, stdout, expected_stdout, outputs; it has input"),
        ({"inputs": [1], "outputs": [2], "fn_name": "f"}, "or write statements"),
    ],
)
def test_tests_that_are_none(tests: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_tests(tests)


def test_white_space_at_ends_does_not_count_and_lines_do() -> None:
    assert same_output("1  2\n3 \n\n", "1 2\n3")
    assert not same_output("1\n2\n3", "1 2\n3")
    assert not same_output("12", "1 2")


def test_programs_that_read_and_write() -> None:
    row = task(tests=[{"input": "1", "output": "2"}, {"input": "x", "output": "2"}, {"input": "3", "output": "6\n"}])
    assert code(row, fenced(DOUBLES)) == Reward(0.0, {"program": 1.0, "passed": 1 / 3}), (
        "it ends with the first failure"
    )
    assert code(row, fenced(DOUBLES), partial=True).score == pytest.approx(2 / 3)
    assert code(task(tests=row.metadata["tests"][::2]), fenced(DOUBLES)).score == 1
    assert code(row, DOUBLES) == Reward(0.0, {"program": 0.0, "passed": 0.0})
    ends_badly = fenced(f"{DOUBLES}\nraise SystemExit(1)")
    assert code(task(tests=[{"input": "1", "output": "2"}]), ends_badly).score == 0
    late = code(row, fenced("import time; time.sleep(9)"), timeout=0.5, total_timeout=0.6, partial=True)
    assert late.score == 0


def test_functions_that_are_called() -> None:
    tests = ["assert double(2) == 4", "assert double('a') == 'aa'", "assert isclose(double(0.1), 0.3)"]
    check = "def check(candidate):\n    assert candidate(3) == 6"
    row = task(tests=tests, before="from math import isclose", name="double", check=check)
    answer = fenced("def double(x): return x + x")
    assert code(row, answer, setup="before") == Reward(0.0, {"program": 1.0, "passed": 2 / 3})
    assert code(row, answer, setup="before", partial=True).score == pytest.approx(2 / 3)
    assert code(row, answer, tests="check", entry_point="name").score == 1
    assert code(row, fenced("def double(x): return 5"), tests="check", entry_point="name").score == 0


def test_a_row_without_the_column_is_named() -> None:
    with pytest.raises(ValueError, match="the row has no column 'tests'; it has level"):
        code(task(level=3), fenced(DOUBLES))


def test_it_runs_in_the_workers_of_rewards() -> None:
    async def scores() -> list[float]:
        row = replace(task(tests=[{"input": "2", "output": "4"}]), rewards=(RewardTerm("code", "code"),))
        with RewardRunner(["code"], timeout=30.0, workers=2) as runner:
            responses = [fenced(DOUBLES), fenced("print(5)")] * 2
            return [one.score for one in await asyncio.gather(*(runner.score(row, r) for r in responses))]

    assert asyncio.run(scores()) == [1.0, 0.0, 1.0, 0.0]
