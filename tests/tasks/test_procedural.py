import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljax.config.validate import ConfigError
from rljax.tasks.procedural import AddNumbers, ProceduralRows, ReverseDigits, procedural_rows

KEY = "tasks.train.mine"


def prompts(name: str, side: str, **args: Any) -> list[str]:
    rows = procedural_rows(name, side, args, KEY)
    return [rows.problem(i).prompt for i in range(len(rows))]


@pytest.mark.parametrize(("name", "digits", "size"), [("reverse_digits", 3, 1000), ("add_numbers", 2, 4095)])
def test_the_sides_share_no_problem_and_miss_none(name: str, digits: int, size: int) -> None:
    train, held_out = (prompts(name, side, digits=digits) for side in ("train", "validation"))
    assert not set(train) & set(held_out)
    assert len(set(train) | set(held_out)) == len(train) + len(held_out) == size
    assert len(held_out) == size // 10


def test_a_sum_is_not_held_out_in_the_other_order() -> None:
    pairs = [
        {tuple(sorted(map(int, prompt.split(" + ")))) for prompt in prompts("add_numbers", side)}
        for side in ("train", "validation")
    ]
    assert not pairs[0] & pairs[1]
    # 90 two-digit numbers: 90 * 91 / 2 unordered pairs.
    assert pairs[0] | pairs[1] == {(a, b) for a in range(10, 100) for b in range(a, 100)}


def test_both_orders_of_sums_occur() -> None:
    ascending = [int(p.split(" + ")[0]) < int(p.split(" + ")[1]) for p in prompts("add_numbers", "train")]
    assert 0.4 < sum(ascending) / len(ascending) < 0.6


@given(st.integers(1, 18), st.data())
def test_answers_of_reversed_digits(digits: int, data: st.DataObject) -> None:
    rows = ProceduralRows(ReverseDigits(digits, separator=" "), data.draw(st.sampled_from(["train", "validation"])))
    problem = rows.problem(data.draw(st.integers(0, len(rows) - 1)))
    assert problem.answer == problem.prompt[::-1]
    assert re.fullmatch(rf"\d( \d){{{digits - 1}}}", problem.prompt)


@given(st.integers(1, 9), st.data())
def test_answers_of_sums(digits: int, data: st.DataObject) -> None:
    rows = ProceduralRows(AddNumbers(digits), "train")
    problem = rows.problem(data.draw(st.integers(0, len(rows) - 1)))
    assert int(problem.answer) == sum(map(int, problem.prompt.split(" + ")))
    assert all(len(number) == digits for number in problem.prompt.split(" + "))


def test_the_problems_are_golden() -> None:
    """What is held out must stay so in later versions, or old checkpoints are measured on what they trained on."""
    assert prompts("reverse_digits", "validation", count=3) == ["4364", "0484", "3084"]
    assert prompts("add_numbers", "validation", count=3) == ["56 + 87", "95 + 14", "64 + 52"]


def test_count_takes_the_first_of_the_side() -> None:
    assert prompts("reverse_digits", "train", count=7) == prompts("reverse_digits", "train")[:7]


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        (
            "reverse_digits",
            {"digit": 4},
            "tasks.train.mine.args.digit: no such argument of reverse_digits; nearest: digits",
        ),
        ("reverse_digits", {"zzz": 4}, "there are: count, digits, separator"),
        ("add_numbers", {"separator": ","}, "no such argument of add_numbers"),
        ("reverse_digits", {"digits": "4"}, "args.digits='4': must be int, not str"),
        ("reverse_digits", {"digits": True}, "must be int, not bool"),
        ("reverse_digits", {"digits": 0}, "args.digits=0: must be 1 to 18"),
        ("reverse_digits", {"digits": 19}, "args.digits=19: must be 1 to 18"),
        ("add_numbers", {"digits": 10}, "args.digits=10: must be 1 to 9"),
        ("reverse_digits", {"separator": 1}, "args.separator=1: must be str, not int"),
        ("reverse_digits", {"count": 0}, "args.count=0: must be 1 to"),
        ("reverse_digits", {"digits": 1, "count": 10}, "args.count=10: the train side has 9 problems"),
    ],
)
def test_bad_arguments_are_named_in_one_line(name: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        procedural_rows(name, "train", args, KEY)
    assert "\n" not in str(caught.value)
