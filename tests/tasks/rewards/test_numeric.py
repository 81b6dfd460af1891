r"""Each case was judged by a person: would a maths teacher accept the response, given the reference?"""

import pytest

from rljax.tasks.rewards.numeric import marked_answer, numeric
from rljax.tasks.task import Task
from rljax.trajectory import TaskId

RIGHT = [
    # As GSM8K writes it, and as models write it.
    ("18", "16 - 3 - 4 = 9 eggs, 9 * 2 = 18.\n#### 18"),
    ("18", "#### $18.00"),
    ("18", r"#### \$18"),
    ("18", "#### **18**"),
    ("18", "#### 18 eggs"),
    ("18", "**Answer:** #### 18."),
    ("18", "#### 17, no:\n#### 18"),
    ("18", "#### 18\nThat is 3 more than 15."),
    ("18", "#### Step 1: count\n#### Step 2: add\nThe answer is 18"),
    ("18", "#### Final answer\n18"),
    ("18", r"\boxed{18}"),
    ("18", r"First \boxed{17}, no: \boxed{18}, 2 times 9."),
    ("18", r"\boxed{18 \text{ dollars}}"),
    ("18", r"\boxed{\$18}"),
    ("18", r"\boxed{x = 18}"),
    ("18", r"So the answer is \(18\)."),
    ("18", "<think>7</think><answer>18</answer>"),
    ("18", "<answer>The total is $18 dollars.</answer>"),
    ("18", r"<answer>\boxed{18}</answer>"),
    ("18", "<answer>#### 18</answer>"),
    ("18", "18"),
    ("18", "18.0"),
    ("18", "She makes $18 every day"),
    ("18", r"$5 on Monday and $13 on Tuesday make \$18"),
    ("18", "The answer is 18. Therefore 3 eggs are left."),
    # Thousands.
    ("70,000", "70000"),
    ("70000", "$70,000"),
    ("2,125", "#### 2125."),
    ("1234567", "1,234,567 people"),
    # Fractions, decimals, signs, percent.
    ("1/2", "0.5"),
    ("0.5", r"\boxed{\frac{1}{2}}"),
    ("0.5", r"#### \frac{1}{2}"),
    ("3/4", "It is 3/4"),
    ("-5", "The answer is -5 degrees"),
    ("-5", r"\boxed{-5}"),
    ("50%", "0.5"),
    ("50", "#### 50%"),
    ("50", "#### 50 percent"),
    ("1000000", r"\boxed{10^6}"),
    ("7", r"<think>first \boxed{5}</think>The answer is 7."),
]

WRONG = [
    ("18", ""),
    ("18", "eighteen, I think"),
    ("18", "19"),
    ("18", "180"),
    ("18", "118"),
    ("18", "1.8"),
    ("18", "-18"),
    ("-5", "#### 5"),
    ("50", "0.5"),
    ("18", "18 is what I had, now it is 20"),
    ("18", "The answer is 18.\n#### 20"),
    ("18", r"It is 18: \boxed{81}"),
    ("18", r"It is 18: \boxed{18"),
    ("18", r"\boxed{}"),
    ("18", "<answer></answer>"),
    ("18", "#### 18 or 19"),
    ("18", r"\boxed{18, 19}"),
    ("70,000", "70"),
    ("1/2", "1/3"),
    ("7", r"<think>so \boxed{7}</think>The answer is 9."),
]


def task(answer: str) -> Task:
    return Task(TaskId("gsm8k", 0, 0), (), answer)


@pytest.mark.parametrize(("answer", "response"), RIGHT)
def test_right(answer: str, response: str) -> None:
    assert numeric(task(f"She has <<3+4=7>>7 of 99.\n#### {answer}"), response) == 1


@pytest.mark.parametrize(("answer", "response"), WRONG)
def test_wrong(answer: str, response: str) -> None:
    assert numeric(task(f"She has <<3+4=7>>7 of 99.\n#### {answer}"), response) == 0


@pytest.mark.parametrize(
    ("answer", "response"),
    [
        ("18", "#### 18"),
        (r"We find $x=2$, so it is \boxed{\frac{3}{4}}.", "0.75"),
        (r"\frac{3}{4}", r"\boxed{\dfrac{3}{4}}"),
        ("$x^2+1$", r"\boxed{1+x^2}"),
    ],
)
def test_references_of_other_data_sets(answer: str, response: str) -> None:
    assert numeric(task(answer), response) == 1


def test_a_reference_that_is_no_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="reference answer '' is neither number nor formula; use the reward 'exact'"):
        numeric(task("unknown ####"), "18")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("no marker", None),
        (r"\boxed{\frac{1}{2}} and more", r"\frac{1}{2}"),
        (r"\boxed {7}", "7"),
        ("#### 5\n6", "5"),
        ("####5", "5"),
        ("#### heading", None),
        (r"\boxed{" * 3, ""),
    ],
)
def test_marked_answer(text: str, answer: str | None) -> None:
    assert marked_answer(text) == answer
