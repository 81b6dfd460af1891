"""Numeric reward: whether the response's final answer equals the reference, by math-verify."""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

from rljax.tasks.rewards.scorer import Place, built_in
from rljax.tasks.task import Task

# Where a final answer may be announced, the last one counting. `#### 18` is GSM8K's; `#### Step 2` is a heading.
_MARKERS = re.compile(r"\\boxed\s*\{|<answer>|####(?=\s*[-+$€£¥(\\.*0-9])")
# What need not be parsed to be known as readable, and what may take for ever to be, which the worker has a limit for.
_PLAIN = re.compile(r"\s*[-+]?\$?[0-9][0-9,]*(?:\.[0-9]+)?\s*")
_LONG = re.compile(r"\^.*\^|\^\W*[0-9]{4}|\*\*|[0-9)}]\s*!|\\(?:sum|prod|int|lim|binom)", re.DOTALL)
_SHORT = 300  # characters of a reference that is parsed where there is no limit
_CURRENCY = str.maketrans("", "", "$€£¥")


@lru_cache(maxsize=65536)
def check_reference(answer: str) -> None:
    """Checks that a reference answer is a number or a formula, as far as that is known without computing at length.

    Raises:
        ValueError: it is neither: every response would be wrong.
    """
    reference = _reference(answer)
    if not (_PLAIN.fullmatch(reference) or len(reference) > _SHORT or _LONG.search(reference)):
        _gold(reference)


@built_in(
    "numeric",
    Place.PROCESS,
    score_on_timeout=0.0,
    check_answer=check_reference,
    imports=("math_verify",),
)
def numeric(task: Task, response: str) -> float:
    r"""Returns 1 if the response's final answer equals the reference answer, else 0.

    The reference is what follows ``####`` (GSM8K), else what its last ``\boxed{}`` holds (MATH), else the whole answer.
    The response's answer is what its last ``\boxed{}``, ``####`` or ``<answer>`` holds; without any of these
    math-verify looks for it: a formula, then "the answer is", then the last number. What comes before ``</think>`` does
    not count.

    Raises:
        ValueError: the reference is neither number nor formula.
    """
    gold, response = _gold(_reference(task.answer)), response.rpartition("</think>")[2]
    marked = marked_answer(response)
    if marked is None:
        return float(_equal(gold, _parse(response.replace(r"\$", "$"))))
    return float(_equal(gold, _parse(_boxed(marked))) or _equal(gold, _parse(marked)))


def marked_answer(text: str) -> str | None:
    r"""Returns what the last answer marker of a text holds; None where there is no marker.

    >>> marked_answer("9 eggs at $2 each make $18.\n#### 18")
    '18'
    """
    markers = list(_MARKERS.finditer(text))
    if not markers:
        return None
    marker, rest = markers[-1].group(), text[markers[-1].end() :]
    if marker == "####":
        # The tag may enclose the whole line: <answer>#### 18</answer>.
        return rest.strip().partition("\n")[0].partition("</answer>")[0].strip()
    if marker == "<answer>":
        return rest.partition("</answer>")[0].strip()
    return _to_closing_brace(rest).strip()


def _gold(reference: str) -> list[Any]:
    gold = _parse(_boxed(reference)) or _parse(reference)
    if not gold:
        raise ValueError(f"the reference answer {reference!r} is neither number nor formula; use the reward 'exact'")
    return gold


def _reference(answer: str) -> str:
    if "####" in answer:
        return answer.rpartition("####")[2].strip()
    marked = marked_answer(answer)
    return answer if marked is None else marked


def _to_closing_brace(text: str) -> str:
    depth = 1
    for place, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[:place]
    return ""  # cut off in the middle of the answer: no answer


def _boxed(text: str) -> str:
    # In a box math-verify reads plain numbers and bare LaTeX alike; a dollar sign there would open an environment.
    return rf"\boxed{{{text.replace(chr(92) + '$', '').translate(_CURRENCY).strip().rstrip('.')}}}"


def _parse(text: str) -> list[Any]:
    _silence_timeout_warning()
    from math_verify import parse

    # math-verify's own time limit is a signal, which works on a main thread only; the worker process has a limit.
    parsed: list[Any] = parse(text, fallback_mode="no_fallback", parsing_timeout=None)
    return parsed


def _equal(gold: list[Any], answers: list[Any]) -> bool:
    from math_verify import verify

    return bool(answers) and bool(verify(gold, answers, timeout_seconds=None))


def _silence_timeout_warning() -> None:
    for name in ("math_verify.parser", "math_verify.grader"):
        logging.getLogger(name).setLevel(logging.ERROR)
