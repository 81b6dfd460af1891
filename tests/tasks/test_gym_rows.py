import re
from typing import Any

import pytest

from rljax.config.validate import ConfigError
from rljax.tasks.gym_rows import ENTRY, ReasoningGymRows
from rljax.tasks.task import BadRow

pytest.importorskip("reasoning_gym")
KEY = "tasks.train.mine"


def rows(side: str, name: str = "chain_sum", **args: Any) -> ReasoningGymRows:
    return ReasoningGymRows(name, side, args, KEY)


def test_a_question_is_a_function_of_its_place() -> None:
    first, second = rows("train", size=20), rows("train", size=20)
    assert [first.problem(i) for i in range(20)] == [second.problem(i) for i in reversed(range(20))][::-1]
    assert len(first) == 20


def test_the_sides_share_no_question_even_in_a_small_space() -> None:
    args = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1, "size": 100}
    train, held_out = rows("train", **args), rows("validation", **args)
    questions = [{r.problem(i).prompt for i in range(100)} for r in (train, held_out)]
    assert not questions[0] & questions[1]
    assert len(questions[1]) > 3


def test_the_entry_travels_with_the_problem() -> None:
    problem = rows("train", seed=3, size=5).problem(0)
    scored = problem.metadata[ENTRY]
    assert scored["dataset"] == "chain_sum"
    assert scored["args"] == {"seed": 3, "size": 5}
    assert scored["entry"]["answer"] == problem.answer


def test_a_space_too_small_to_hold_out_says_so() -> None:
    # One question only: 1 + 1. It belongs to one side, so the other has none.
    args = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1, "size": 1, "seed": 0}
    made = []
    for side in ("train", "validation"):
        problems = rows(side, **args)
        problems._entry = lambda index, attempt: {"question": "1 + 1", "answer": "2"}  # type: ignore[method-assign]
        try:
            made.append(problems.problem(0).prompt)
        except BadRow as error:
            made.append(str(error))
    assert sum("problem space is too small" in text for text in made) == 1


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("chainsum", {}, "tasks.train.mine.source='reasoning_gym:chainsum': no such data set; nearest: chain_sum"),
        (
            "chain_sum",
            {"min_term": 3},
            "tasks.train.mine.args.min_term: no such argument of chain_sum; nearest: min_terms",
        ),
        ("chain_sum", {"min_terms": 9, "max_terms": 2}, "tasks.train.mine.args={'min_terms': 9, 'max_terms': 2}"),
    ],
)
def test_what_reasoning_gym_refuses_is_one_line(name: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        rows("train", name, **args)
    assert "\n" not in str(caught.value)
