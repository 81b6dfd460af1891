# ruff: noqa: E501 — each program stands whole
"""Tests that are statements: what programs may do with them, and what hostile ones try."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from rljax.tasks.sandbox.asserts import run_asserts
from rljax.tasks.sandbox.sandbox import Limits

LIMITS = Limits(seconds=60.0, memory_bytes=512 << 20, processes=16)
"""Of what ends by itself: on a busy machine two interpreters may take seconds to begin."""

PROGRAM = """
import collections, dataclasses
def square(x): return x * x
class Box:
    def __init__(self, inside): self.inside = inside
    def both(self, other): return [self.inside, (other,)]
@dataclasses.dataclass
class Point:
    x: int
def sort(numbers): numbers.sort()
def fill(table): table["new"] = {1, 2}
def apply(function, x): return function(x) + 1
def refuse(): raise ValueError("no")
def upto(n): yield from range(n)
def count(word): return collections.Counter(word)
def echo(*args, **named): return args, named
LIMIT = 7
if __name__ == "__main__": input()
"""

PASSING = [
    "assert square(12) == 144 and square(1.5) == 2.25 and square(1j) == -1",
    "assert Box(1).both(2) == [1, (2,)] and Box(3).inside == 3",
    "box = Box(1); box.inside = 5; assert box.inside == 5 and isinstance(box, Box) and not isinstance(3, Box)",
    "assert Point(1) == Point(1) and Point(1) != Point(2)",
    "a = [3, 1, 2]; sort(a); assert a == [1, 2, 3]",
    "d = {}; fill(d); assert d == {'new': {1, 2}}",
    "assert apply(lambda x: x * 2, 4) == 9",
    "try: refuse()\nexcept ValueError as error: assert str(error) == 'no'\nelse: assert False",
    "assert list(upto(3)) == [0, 1, 2] and sum(upto(4)) == 6",
    "assert count('aab') == {'a': 2, 'b': 1}",
    "assert echo(None, b'x', frozenset({1}), range(3), k=[True]) == ((None, b'x', frozenset({1}), range(3)), {'k': [True]})",
    "assert LIMIT == 7 and candidate(3) == 9 and helper(2) == 3",
    "import math; assert math.isclose(square(0.1), 0.01)",
    "assert square(10**40) == 10**80 and square(float('inf')) == float('inf')",
]


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def broken(:", "SyntaxError: "),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_setup_that_raises_by_itself_is_the_row_s_fault(setup: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"the setup of the tests raises {said}"):
        run_asserts("def f(): return 1", ["assert f() == 1"], LIMITS, setup=setup)


@pytest.mark.parametrize(
    ("program", "setup", "entry_point"),
    [
        ("def f(): raise OSError", "x = f()", ""),
        ("def g(): return 1", "x = f()", ""),
        ("def g(): return 1", "import math", "f"),
        ("1 / 0", "import math", ""),
    ],
)
def test_a_setup_that_raises_for_the_program_s_sake_is_its_fault(program: str, setup: str, entry_point: str) -> None:
    assert not any(run_asserts(program, ["assert True"], LIMITS, setup=setup, entry_point=entry_point))


SHADOWS = {"abs": 0, "set": 1, "all": True, "sorted": 2, "len": 3, "isinstance": True, "isclose": True, "math": 4}
HOSTILE = {
    "exits": "import os; os._exit(0)",
    "exits politely": "import sys; sys.exit(0)",
    "exits when called": "import os\ndef f(x): os._exit(0)",
    "equal to all": """
class Yes:
    def __eq__(self, other): return True
    __lt__ = __gt__ = __contains__ = __bool__ = lambda *_: True
    __sub__ = __abs__ = __neg__ = lambda self, *_: self
    def __hash__(self): return hash(4)
    def __len__(self): return 1
    def __iter__(self): return iter([Yes()])
def f(x): return Yes()
""",
    "a number that is equal to all": "class Yes(int):\n    __eq__ = lambda *_: True\ndef f(x): return Yes(0)",
    "a list that has all": "class Yes(list):\n    __contains__ = lambda *_: True\ndef f(x): return Yes()",
    "ends the loops of its tests": "def f(x): raise StopIteration",
    "prints verdicts": "import os\nfor n in (1, 2): os.write(n, b'1' * 100)\ndef f(x): print('1111'); return 0",
    "writes to every descriptor": "import os\nfor n in range(3, 64):\n    try: os.write(n, b'1111\\n{}\\n')\n    except OSError: pass",
    "forges answers": (
        'import os\nfor n in range(3, 64):\n    try: os.write(n, b\'{"value": ["plain", 4], "args": []}\\n\' * 9)\n'
        "    except OSError: pass\ndef f(x): return 0"
    ),
    "changes the builtins": (
        "import builtins\nbuiltins.AssertionError = None\nbuiltins.exec = lambda *_: None\nbuiltins.compile = print\n"
        "def f(x): return 0"
    ),
    "asks the tests for their own": (
        "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n        for v in frame.f_locals.values():\n"
        "            if isinstance(v, str) and 'assert' in v: raise SystemExit\n        frame = frame.f_back\n    return 0"
    ),
    "takes abs, set, all and sorted from the tests": (
        "def f(x): return [5.0]\n"
        + "".join(f"def {name}(*x): return {value}\n" for name, value in SHADOWS.items())
        + "__all__ = ['f', *"
        + repr(list(SHADOWS))
        + "]"
    ),
    "hangs": "def f(x):\n    while True: pass",
    "hangs at once": "while True: pass",
    "answers without end": "def f(x): return [0] * 10**8",
    "answers too deep": "def f(x):\n    a = []\n    for _ in range(10**5): a = [a]\n    return a",
}


def test_what_tests_may_do_with_a_program() -> None:
    setup = "def helper(x): return x + 1"
    assert run_asserts(PROGRAM, PASSING, LIMITS, setup=setup, entry_point="square") == [True] * len(PASSING)
    failing = ["assert square(2) == 5", "assert nothing(2)", "square(", "raise SystemExit", "assert square(2) == 4"]
    assert run_asserts(PROGRAM, failing, LIMITS) == [False, False, False, False, True]


@pytest.mark.slow
def test_no_hostile_program_passes() -> None:
    tests = [
        "assert f(2) == 4",
        "assert all(map(lambda x: f(x) == 4, [2]))",
        "assert abs(f(2) - 4) < 1e-6",
        "assert 4 in f(2)",
        "assert [f(2)] == [4]",
        "assert {f(2)} == {4}",
        "assert set(f(2)) == set((4, 5))",
        "assert f(2) and all(one == 4 for one in f(2))",
    ]
    limits = replace(LIMITS, seconds=3.0)  # some of them hang
    with ThreadPoolExecutor(6) as pool:
        found = dict(zip(HOSTILE, pool.map(lambda one: run_asserts(HOSTILE[one], tests, limits), HOSTILE), strict=True))
    assert found == dict.fromkeys(HOSTILE, [False] * len(tests))


TAKEN = [
    "assert abs(f(2) - 4) < 1e-6",
    "assert set([f(2)]) == set((4, 5))",
    "assert sorted([f(2)]) == sorted([4])",
    "assert all(f(x) == 4 for x in (1, 2))",
    "assert len([f(2), 1, 1]) == 3 and not isinstance(f(2), str) and f(2) == 4",
    "from solution import *; assert abs(f(2) - 4) < 1e-6",
]


def test_a_program_cannot_take_what_its_tests_are_written_with() -> None:
    shadows = "".join(f"def {name}(*x): return {value}\n" for name, value in SHADOWS.items())
    wrong, right = f"{shadows}def f(x): return 5.0", f"{shadows}def f(x): return 4"
    usual = "import math\nfrom math import *\n"
    tests = [*TAKEN, "assert isclose(f(2), 4)", "assert math.isclose(f(2), 4)"]
    assert run_asserts(wrong, tests, LIMITS, prelude=usual) == [False] * len(tests)
    assert run_asserts(right, tests, LIMITS, prelude=usual) == [True, False, *[True] * 6]


def test_a_program_cannot_be_a_module_that_its_tests_read_and_do_not_import() -> None:
    shadow = "class math:\n    isclose = lambda *a, **k: True\n"
    tests = ["assert math.isclose(f(2), 4)", "assert math.isclose(f(2), 4, rel_tol=0.5)"]
    assert run_asserts(f"{shadow}def f(x): return 0", tests, LIMITS) == [False, False]
    assert run_asserts(f"{shadow}def f(x): return 4.0", tests, LIMITS) == [True, True]
    bound = ["queue = make(); queue.put(3); assert queue.held == [3]"]  # a name that the tests bind is theirs
    held = "class Queue:\n    def __init__(self): self.held = []\n    def put(self, x): self.held.append(x)\n"
    assert run_asserts(f"{held}def make(): return Queue()", bound, LIMITS) == [True]
    pushes = "class Calendar:\n    def push(self, x): return x\ncalendar = Calendar()\n"
    assert run_asserts(pushes, ["assert calendar.push(3) == 3"], LIMITS) == [True]  # the module has no `push`


def test_a_function_that_is_called_as_a_builtin_is_asked_for_by_name() -> None:
    program = "def sum(a, b): return a * b"
    tests = ["assert sum(2, 3) == 6", "import solution; assert solution.sum(2, 3) == 6"]
    assert run_asserts(program, tests, LIMITS) == [False, True]
    assert run_asserts(program, [*tests, "assert candidate(2, 3) == 6"], LIMITS, entry_point="sum") == [True] * 3
    assert run_asserts(program, ["from solution import sum; assert sum(2, 3) == 6"], LIMITS) == [True]


def test_tests_after_one_that_hangs_have_failed() -> None:
    program = "def f(x):\n    while x == 2: pass\n    return x"
    tests = ["assert f(1) == 1", "assert f(2) == 2", "assert f(1) == 1"]
    assert run_asserts(program, tests, replace(LIMITS, seconds=6.0)) == [True, False, False]


def test_a_program_that_is_handed_a_function_may_call_it_and_nothing_else() -> None:
    program = (
        "def apply(g):\n    try: return g() + g.__globals__['secret']\n    except TypeError as error: return str(error)"
    )
    handed = "secret = 40; assert apply(lambda: 2) == 'getattr is not for the other end'"
    assert run_asserts(program, [handed], LIMITS) == [True]
