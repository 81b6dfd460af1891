import asyncio
import json
import re
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest

from rljax.config.fields import ConfigError
from rljax.tasks.rewards import Reward, RewardRunner
from rljax.tasks.rewards import code as in_sandbox
from rljax.tasks.rewards.code import extract_program, parse_tests, same_output
from rljax.tasks.rewards.registry import reward_terms
from rljax.tasks.task import RewardTerm, Task, Taskset
from rljax.trajectory import TaskId

code = partial(in_sandbox.code, timeout=60.0, total_timeout=120.0)  # what ends by itself has time on a busy machine
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
        ("```bash\nls\n```\nHere:\n```python\nf = 1\n```", "f = 1\n"),
        ("```json\n{}\n```\n```python\nf = 1\n```", "f = 1\n"),
        ("```python\nf = 1\n```\nIt prints:\n```text\n2\n```\nas\n```text\n2\n```", "f = 1\n"),
        ("```python\nf = 1\n```\nOutput:\n```\n2\n```", "f = 1\n"),
        ('```python title="a.py"\nf = 1\n```', "f = 1\n"),
        ("```pyret\nf\n```", None),
        ("```python\nunclosed\n```python\nf = 1\n```", "f = 1\n"),
        ("```\nf = 1\n```", "f = 1\n"),
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
    assert code(row, fenced(DOUBLES)) == Reward(0.0, {"program": 1.0, "passed": 1 / 3, "timed_out": 0.0}), (
        "it ends with the first failure"
    )
    assert code(row, fenced(DOUBLES), partial=True).score == pytest.approx(2 / 3)
    assert code(task(tests=row.metadata["tests"][::2]), fenced(DOUBLES)).score == 1
    assert code(row, DOUBLES) == Reward(0.0, {"program": 0.0, "passed": 0.0, "timed_out": 0.0})
    ends_badly = fenced(f"{DOUBLES}\nraise SystemExit(1)")
    assert code(task(tests=[{"input": "1", "output": "2"}]), ends_badly).score == 0
    late = code(row, fenced("import time; time.sleep(9)"), timeout=0.5, total_timeout=0.6, partial=True)
    assert late == Reward(0.0, {"program": 1.0, "passed": 0.0, "timed_out": 1.0})
    slow = code(row, fenced("import time; time.sleep(9)"), timeout=0.3)
    assert slow.parts["timed_out"] == 0, "the first text alone has ended it"


def test_functions_that_are_called() -> None:
    tests = ["assert double(2) == 4", "assert double('a') == 'aa'", "assert isclose(double(0.1), 0.3)"]
    check = "def check(candidate):\n    assert candidate(3) == 6"
    row = task(tests=tests, before="from math import isclose", name="double", check=check)
    answer = fenced("def double(x): return x + x")
    assert code(row, answer, setup="before") == Reward(0.0, {"program": 1.0, "passed": 2 / 3, "timed_out": 0.0})
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


def test_tests_that_are_not_reached_are_said_and_the_time_for_them_is_within_that_of_a_reward(
    caplog: pytest.LogCaptureFixture,
) -> None:
    args = {"total_timeout": 0.1}
    terms = reward_terms(("code",), None, "tasks.train.mine.rewards", {"code": args})
    row = replace(task(tests=[{"input": "2", "output": "4"}]), rewards=terms)

    class One:
        def __len__(self) -> int:
            return 1

        def task(self, epoch: int, index: int) -> Task:
            return row

    async def scored(limit: float) -> list[Reward]:
        with RewardRunner(["code"], timeout=limit, workers=1) as runner:
            await runner.try_out([("tasks.train.mine", cast(Taskset, One()))])
            return [await runner.score(row, fenced("while True: pass")) for _ in range(2)]

    late = asyncio.run(scored(30.0))
    assert [one.parts["code/timed_out"] for one in late] == [1.0, 1.0]
    said = [line for line in caplog.messages if "total_timeout" in line]
    assert said == [
        "task programs/0/0: reward 'code' tries no further tests after total_timeout: they count as failed (1 so far)"
    ]
    with pytest.raises(ConfigError, match=r"mine.reward_args.code.total_timeout=0.1: must be below .*=0.1; lower it"):
        asyncio.run(scored(0.1))


PERMUTED = """

def test_one():
    assert permuted([1]) == [[1]]

def test_two():
    assert sorted(permuted([1, 2])) == [[1, 2], [2, 1]]

def helper():
    raise AssertionError("it is no test")
"""
PERMUTES = "import itertools\ndef permuted(xs): return [list(p) for p in itertools.permutations(xs)]"
ROLL: dict[str, Any] = {"entry_point": "test_case_function", "case_type": "case_type", "imports": True}


def roll(cases: Any, kind: str = "", function: str | None = " ") -> Task:
    """A row of ROLL's code domain; of a table, whose every row has every column."""
    return task(tests=cases, case_type=kind, test_case_function=function)


@pytest.mark.parametrize("raw", [False, True])
def test_rows_of_roll_with_functions_of_pytest(raw: bool) -> None:
    cases = json.dumps([{"assert_code": PERMUTED}])
    if raw:  # line breaks inside a text of JSON, as ROLL's documentation has them
        cases = cases.replace("\\n", "\n")
    row = roll(cases, "pytest")
    assert code(row, fenced(PERMUTES), **ROLL) == Reward(1.0, {"program": 1.0, "passed": 1.0, "timed_out": 0.0})
    half = fenced("def permuted(xs): return [xs] if len(xs) == 1 else []")
    assert code(row, half, **ROLL) == Reward(0.0, {"program": 1.0, "passed": 0.5, "timed_out": 0.0})
    assert code(row, fenced("def permute(xs): return [xs]"), **ROLL) == Reward(
        0.0, {"program": 1.0, "passed": 0.0, "timed_out": 0.0}
    )


def test_tests_of_kodcode_import_the_solution() -> None:
    row = task(tests=f"from solution import permuted\n{PERMUTED}", before="from solution import permuted")
    assert code(row, fenced(PERMUTES), setup="before").score == 1
    assert code(row, fenced("x = 1"), setup="before").score == 0, "the program lacks it, not the row"


@pytest.mark.parametrize(
    ("case", "good", "bad"),
    [
        # Solution has a method, the other a function; of names that nobody imported
        ({"stdin": "[1, 2]\n2\n", "expected_stdout": "[2, 4]"},
         "class Solution:\n    def f(self, xs: List[int], k): return tuple(x * k for x in xs)",
         "def f(xs, k): return xs"),
        ({"stdin": "", "expected_stdout": "6"}, "def f(): return all_of([2, 3])\ndef all_of(xs): return prod(xs)",
         "def f(): return '6'"),
    ],
)  # fmt: skip
def test_rows_of_roll_that_call_a_function(case: dict[str, str], good: str, bad: str) -> None:
    assert code(roll([case], "input", "f"), fenced(good), **ROLL).score == 1
    assert code(roll([case], "input", "f"), fenced(bad), **ROLL).score == 0


def test_rows_of_roll_that_check_assert_or_read() -> None:
    check = "def check(candidate):\n    assert candidate(3) == 6 and isclose(candidate(0.5), 1)"
    checked = [{"assert_code": check, "entry_point": "double", "import_prefix": "import fractions"}]
    doubles = fenced("def double(x): return int(x * fractions.Fraction(2))")
    assert code(roll(checked, "check_based", None), doubles, entry_point="test_case_function").score == 0
    assert code(roll(checked, "check_based", None), doubles, **ROLL).score == 1
    assert code(roll(["assert double(2) == 4"], "assert", "None"), doubles, **ROLL).score == 0  # it has no import
    assert code(roll([{"assert_code": "assert f(2) == 4"}], "assert"), fenced("f = lambda x: x * 2"), **ROLL).score == 1
    texts = [{"stdin": "2\n", "expected_stdout": "4\n"}]
    named = [{"assert_code": "def check(candidate):\n    assert candidate(3) == 6", "entry_point": "sum"}]
    assert code(roll(named), fenced("def sum(x): return 2 * x"), entry_point="test_case_function").score == 1
    asked = roll([{"stdin": "3", "expected_stdout": "6"}], "input", "sum")
    assert code(asked, fenced("def sum(x): return 2 * x"), **ROLL).score == 1
    assert code(roll(texts, "input", "None"), fenced("print(floor(2.5) + int(input()))"), **ROLL).score == 1
    assert code(task(tests=texts), fenced(DOUBLES), **ROLL).score == 1, "the other columns may be left out"


def test_a_program_s_own_name_stands_before_a_usual_one() -> None:
    row = task(tests=["assert product(2, 3) == 6 and list(chain([1], [2])) == [1, 2]"])
    assert code(row, fenced("def product(a, b): return a * b"), imports=True).score == 1
    assert code(row, fenced("def product(a, b): return a * b")).score == 0, "chain is no name of the tests then"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (roll("[]"), "there are no tests"),
        (roll(""), "there are no tests"),
        (roll([{"assert_code": "assert '{response}' != ''"}], "text"), "case_type is text: tests of the response"),
        (roll([{"assert_code": "def test_a(:"}]), "a test is no Python"),
        (roll('[{"assert_code": '), "a test is no Python"),
        (roll([{"assert_code": "import pytest\ndef test_a(): assert f()"}]), "imports pytest, .* with assert alone"),
        (roll([{"assert_code": "from pytest import raises"}]), "imports pytest"),
        (roll([{"assert_code": "def test_a(tmp_path): pass"}]), "test_a has parameters, which only pytest fills"),
        (roll([{"assert_code": "class TestF:\n  def test_a(self): pass"}]), "TestF is a class or async"),
        (roll([{"assert_code": "async def test_a(): pass"}]), "test_a is a class or async"),
        (roll([{"assert_code": "def check(candidate): pass"}]), "the tests call candidate; write entry_point"),
        (roll([{"stdin": "two", "expected_stdout": "4"}], "input", "f"), "tests of f: 'two' is no JSON; write"),
        (roll([{"assert_code": "assert f(1)"}, {"stdin": "1", "stdout": "2"}]), "a test has none of input"),
    ],
)  # fmt: skip
def test_rows_of_roll_that_cannot_be_run(row: Task, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        code(row, fenced(DOUBLES), **ROLL)
