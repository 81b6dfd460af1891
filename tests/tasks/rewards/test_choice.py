import pytest

from rljax.tasks.rewards.choice import check_letter, choice, chosen_letter
from rljax.tasks.task import Task
from rljax.trajectory import TaskId


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("B", "B"),
        ("(B)", "B"),
        ("**B**", "B"),
        ("B) Paris", "B"),
        ("B. Paris, which A is not", "B"),
        ("The answer is C.", "C"),
        ("A looks right at first, but the correct answer is (D) because of gravity", "D"),
        ("Answer: **A**", "A"),
        ("First I said the answer is A. Now the answer is B.", "B"),
        (r"so \boxed{C}", "C"),
        (r"so \boxed{\text{(C) Rome}}", "C"),
        ("<answer>D</answer>", "D"),
        ("<think>the answer is A</think> The answer is B", "B"),
        ("#### E", "E"),
        ("The answer is I think unclear", None),
        ("The answer is I", "I"),
        ("A cat sat on the mat", None),
        ("Bravo", None),
        ("The answer is Paris", None),
        ("42", None),
        ("", None),
        ("Answer: (b)", "B"),
        ("The answer is a", "A"),
        ("The answer is b.", "B"),
        (r"so \boxed{b}", "B"),
        ("<answer>c</answer>", "C"),
        ("#### d", "D"),
        ("(b)", "B"),
        ("The answer is a cat", None),
        ("an option a day", None),
        ("The answer is C because option A is wrong", "C"),
        ("The answer is option B", "B"),
        ("I choose option (c) now", "C"),
    ],
)
def test_the_letter_that_a_response_chooses(response: str, letter: str | None) -> None:
    assert chosen_letter(response) == letter


@pytest.mark.parametrize("answer", ["B", "(B)", "b", "B. Paris", " B) x"])
def test_the_letter_of_the_reference(answer: str) -> None:
    task = Task(TaskId("mine", 0, 0), (), answer)
    assert choice(task, "The answer is B") == 1
    assert choice(task, "The answer is C") == 0
    assert choice(task, "I do not know") == 0


def test_a_reference_without_a_letter_is_refused() -> None:
    check_letter("C")
    for answer in ("Paris", "42", ""):
        with pytest.raises(ValueError, match="begins with no letter"):
            check_letter(answer)
