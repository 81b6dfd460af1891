import json
from typing import Any

import pytest

from rljax.tasks.rewards import Reward
from rljax.tasks.rewards.ifeval import CHECKS, count_sentences, followed, ifeval
from rljax.tasks.task import Task
from rljax.trajectory import TaskId

FOLLOWS: list[tuple[str, dict[str, Any], str, str]] = [  # instruction, its arguments, a text that follows, one that not
    ("keywords:existence", {"keywords": ["cat", "a+b"]}, "Cats and a+b", "cats and aab"),
    ("keywords:frequency", {"keyword": "ha", "frequency": 3, "relation": "at least"}, "ha Ha hat", "ha ha"),
    ("keywords:frequency", {"keyword": "ha", "frequency": 2, "relation": "less than"}, "ha", "ha ha"),
    ("keywords:forbidden_words", {"forbidden_words": ["cat"]}, "category", "a CAT"),
    ("keywords:letter_frequency", {"letter": "e", "let_frequency": 2, "let_relation": "at least"}, "Eel", "elk"),
    ("language:response_language", {"language": "ko"}, "안녕하세요 x", "hello"),
    ("language:response_language", {"language": "th"}, "สวัสดี", "안녕"),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"}, "One. Two!", "One, two."),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"}, "Dr. No came.", "A b. C d."),
    ("length_constraints:number_words", {"num_words": 3, "relation": "at least"}, "a b, c", "a b"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a\n***\nb\n***\nc"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "***a***b***", "a*** ***b"),
    ("length_constraints:nth_paragraph_first_word", {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "so"},
     "x\n\n\"So, y", "so\n\nx"),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] [b]", "[a] (b)"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "x\np. s. y", "x\npost"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "x\nP.P.S y", "P.S. x"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a\n** b"),
    ("detectable_format:constrained_response", {}, "My answer is no.", "No."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* *b*", "*a* * *"),
    ("detectable_format:multiple_sections", {"section_spliter": "Part", "num_sections": 2}, "Part 1 Part 2", "Part 1"),
    ("detectable_format:json_format", {}, "```json\n{\"a\": 1}\n```", "{a: 1}"),
    ("detectable_format:title", {}, "<<Ode>>\nx", "<Ode>"),
    ("combination:two_responses", {}, "a\n******\nb", "a******a"),
    ("combination:two_responses", {}, "a******b", "a******b******c"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say hi"}, "say hi. Hi", "Hi"),
    ("startend:end_checker", {"end_phrase": "The end."}, "x the end. ", "The end. x"),
    ("startend:quotation", {}, ' "x" ', '"x'),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"}, "AN OX", "AN ox"),
    ("change_case:english_capital", {}, "ALL OF IT", "All of it"),
    ("change_case:english_lowercase", {}, "all of it", "ALL of it"),
    ("punctuation:no_comma", {}, "a b", "a, b"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "follows", "not_so"), FOLLOWS)
def test_each_check_takes_one_text_and_refuses_another(
    name: str, arguments: dict[str, Any], follows: str, not_so: str
) -> None:
    others = {"num_words": None, "keywords": None, "relation": None, "keyword": None}  # as a table has them
    assert followed(name, {**others, **arguments}, follows)
    assert not followed(name, arguments, not_so)


def test_every_check_is_tested() -> None:
    assert {name for name, *_ in FOLLOWS} == set(CHECKS)
    assert len(CHECKS) == 25, "the paper has 25"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("One", 1),
        ("One. Two? Three!", 3),
        ('He said "no." She left.', 2),
        ("It costs 3.50 dollars. Mr. Smith, e.g. a friend, pays.", 2),
        ("First line\nstill the first. Second...", 2),
    ],
)
def test_sentences(text: str, count: int) -> None:
    assert count_sentences(text) == count


def row(*names: str, arguments: Any = None) -> Task:
    kwargs = [{}] * len(names) if arguments is None else arguments
    return Task(TaskId("mine", 0, 0), (), "", metadata={"instruction_id_list": list(names), "kwargs": kwargs})


def test_all_instructions_or_the_share_that_is_followed() -> None:
    both = row("punctuation:no_comma", "startend:quotation")
    assert ifeval(both, '<think>a, b</think> "x"') == Reward(1.0, {"followed": 1.0})
    assert ifeval(both, "x") == Reward(0.0, {"followed": 0.5})
    assert ifeval(both, "x", partial=True).score == 0.5
    assert ifeval(both, " ", partial=True).score == 0
    named = Task(TaskId("mine", 0, 0), (), "", metadata={"ids": json.dumps(["punctuation:no_comma"]), "args": "[null]"})
    assert ifeval(named, "x", instructions="ids", arguments="args").score == 1


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (row("punctuation:no_colon"), "no such instruction: 'punctuation:no_colon'; there are change_case"),
        (row("startend:end_checker"), "startend:end_checker: .*missing 1 required positional argument: 'end_phrase'"),
        (row("punctuation:no_comma", arguments=[]), "1 instructions in 'instruction_id_list' and 0 mappings"),
        (row(), "0 instructions"),
        (Task(TaskId("mine", 0, 0), (), "", metadata={"tests": 1}), "no column 'instruction_id_list'; it has tests"),
        (
            row("length_constraints:number_words", arguments=[{"num_words": 3, "relation": "around"}]),
            "relation 'around': it is 'less than' or 'at least'",
        ),
    ],
)
def test_a_row_that_asks_for_nothing_known(task: Task, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ifeval(task, "x")
