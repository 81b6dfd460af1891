"""Reward of a multiple-choice question: whether the response names the right letter."""

from __future__ import annotations

import re

from rljax.tasks.rewards.numeric import marked_answer
from rljax.tasks.rewards.scorer import Place, built_in
from rljax.tasks.task import Task

# A capital letter by itself; an I before a word in small letters is a pronoun. A small one between brackets, or at the
# end of a sentence.
_CAPITAL = r"[A-HJ-Z](?![A-Za-z'’])|I(?! [a-z])(?![A-Za-z'’])"
_LETTER = rf"({_CAPITAL}|(?<=[(\[{{])[a-z](?=\s*[)\]}}])|[a-z](?=[ *_)\]}}$]*(?:\.|\n|\Z)))"
_REFERENCE = re.compile(r"\W*([A-Za-z])(?![A-Za-z])")
_MARKED = re.compile(rf"[\W_]*(?:\\text\w*\{{)?[\W_]*{_LETTER}")
_BEFORE = r"(?i:\s+is)?\s*[:=]?[\s*_(\[$]*(?:\\boxed\{)?"
_SAID = tuple(re.compile(rf"(?i:\b(?:{words})){_BEFORE}{_LETTER}") for words in ("answer", "choice|option"))
_ALONE = re.compile(rf"[\s*_(\[]*{_LETTER}(?:[\s*_)\].:]*|[).:]\s.*)", re.DOTALL)
_HASHES = re.compile(rf"####\s*\(?{_LETTER}")


def check_letter(answer: str) -> None:
    """Checks that a reference answer begins with a letter.

    Raises:
        ValueError: it does not: every response would be wrong.
    """
    _letter(answer)


@built_in("choice", Place.INLINE, check_answer=check_letter)
def choice(task: Task, response: str) -> float:
    r"""Returns 1 if the response chooses the letter of the reference answer, else 0.

    The reference begins with the letter: ``B``, ``(B)``, ``B. Paris``. The response's choice is what its last
    ``\boxed{}``, ``<answer>`` or ``####`` holds, else the last "answer is B", else the last "option B", else the letter
    that it begins with by itself: ``B``, ``(B)``, ``B) Paris``. A small letter counts between brackets and at a
    sentence's end. What comes before ``</think>`` does not count.
    """
    return float(chosen_letter(response) == _letter(task.answer))


def chosen_letter(response: str) -> str | None:
    """Returns the letter that a response chooses, as a capital; None where it chooses none."""
    text = response.rpartition("</think>")[2].strip()
    if hashes := _HASHES.findall(text):
        return str(hashes[-1]).upper()
    marked = marked_answer(text)
    if marked is not None:
        found = _MARKED.match(marked)
        return found[1].upper() if found else None
    for said in _SAID:
        if letters := said.findall(text):
            return str(letters[-1]).upper()
    alone = _ALONE.fullmatch(text)
    return alone[1].upper() if alone else None


def _letter(answer: str) -> str:
    found = _REFERENCE.match(answer)
    if not found:
        raise ValueError(f"the reference answer {answer!r} begins with no letter; use the reward 'exact'")
    return found[1].upper()
