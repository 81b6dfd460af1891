"""Reward of instruction following: the checks of IFEval (Zhou et al., 2023), by the names of its data set.

No kept package has them without downloads. Two differ from the paper's: sentences are told apart by their marks, where
it has NLTK's trained splitter, and English in capitals or small letters by its script, where it has langdetect.

Rows of RLVR-IFeval (Lambert et al., 2024), which ROLL reads, have one instruction, by the name of a function, as their
reference answer. Where IFEval has the same instruction its check is taken.
"""

from __future__ import annotations

import inspect
import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rljax.tasks.cells import optional
from rljax.tasks.rewards.reward import Reward
from rljax.tasks.rewards.scorer import Place, built_in
from rljax.tasks.rows import Row, column
from rljax.tasks.task import Task
from sidecar.extras import install_command

Check = Callable[..., bool]
"""Takes a response and the keyword arguments of its instruction; returns whether the response follows it."""

_CONSTRAINED = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_ABBREVIATION = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Inc|Ltd|Co|vs|etc|e\.g|i\.e|[A-Z])\.$")


def check_instructions(row: Row, *, instructions: str, arguments: str, **_: Any) -> None:
    """Checks that a row asks for what can be checked.

    Raises:
        ValueError: it does not; see `ifeval`.
    """
    for name, given in _asked(row, instructions, arguments):
        followed(name, given, "x")


@built_in(
    "ifeval",
    Place.PROCESS,
    score_on_timeout=0.0,
    reads_answer=False,
    check_row=check_instructions,
    columns=("instructions", "arguments"),
)
def ifeval(
    task: Task,
    response: str,
    *,
    instructions: str = "instruction_id_list",
    arguments: str = "kwargs",
    partial: bool = False,
) -> Reward:
    """Returns 1 if the response follows all instructions of its row, else 0; with ``partial`` the share followed.

    What comes before ``</think>`` does not count; an empty response follows none.

    Args:
        task: its row has the columns of IFEval; without them its reference answer is JSON with ``func_name`` and the
            arguments of that function, as ROLL's rows have it.
        response: text to check.
        instructions: column of the list of names, such as ``punctuation:no_comma``.
        arguments: column of the list of their arguments, a mapping for each.
        partial: the score is the share of instructions that are followed.

    Raises:
        ValueError: the row lacks a column, or names an instruction or an argument that there is not.
    """
    text = response.rpartition("</think>")[2]
    asked = _asked(task, instructions, arguments)
    verdicts = [bool(text.strip()) and followed(name, given, text) for name, given in asked]
    share = sum(verdicts) / len(verdicts)
    return Reward(share if partial else float(share == 1), {"followed": share})


def _asked(row: Row, instructions: str, arguments: str) -> list[tuple[str, Mapping[str, Any] | None]]:
    if optional(row.metadata, instructions) is None and row.answer.lstrip().startswith("{"):
        return [_constraint(row.answer)]
    names, given = _column(row, instructions), _column(row, arguments)
    if not names or len(names) != len(given):
        raise ValueError(f"{len(names)} instructions in {instructions!r} and {len(given)} mappings in {arguments!r}")
    return [(str(name), one) for name, one in zip(names, given, strict=True)]


def _constraint(answer: str) -> tuple[str, Mapping[str, Any]]:
    """Returns the function that a row of ROLL's names, and those of its values that the function takes."""
    try:
        given = json.loads(answer)
    except ValueError as error:
        raise ValueError(f"the reference answer is no JSON ({error}); write func_name and its arguments") from error
    name = given.get("func_name")
    if name not in CONSTRAINTS:
        raise ValueError(f"func_name: no such function: {name!r}; there are {', '.join(sorted(CONSTRAINTS))}")
    takes = list(inspect.signature(CONSTRAINTS[name]).parameters)[1:]
    return name, {key: given[key] for key in takes if key in given}


def followed(name: str, arguments: Mapping[str, Any] | None, response: str) -> bool:
    """Returns whether a response follows an instruction.

    Raises:
        ValueError: there is no such instruction, or it has other arguments.
    """
    check = CHECKS.get(name) or CONSTRAINTS.get(name)
    if check is None:
        raise ValueError(f"no such instruction: {name!r}; there are {', '.join(sorted(CHECKS))}")
    # Tables have every argument in every row, and null for those of other instructions.
    asked = {key: value for key, value in (arguments or {}).items() if value is not None}
    try:
        return check(response, **asked)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from error


def _column(row: Row, name: str) -> Sequence[Any]:
    value = column(row, name)
    found = json.loads(value) if isinstance(value, str) else value
    return found if isinstance(found, Sequence) else []


def _compared(count: int, relation: str, wanted: float) -> bool:
    if relation not in ("less than", "at least"):
        raise ValueError(f"relation {relation!r}: it is 'less than' or 'at least'")
    return count < wanted if relation == "less than" else count >= wanted


def _existence(text: str, keywords: Sequence[str]) -> bool:
    return all(re.search(re.escape(keyword), text, re.IGNORECASE) for keyword in keywords)


def _frequency(text: str, keyword: str, frequency: int, relation: str) -> bool:
    return _compared(len(re.findall(re.escape(keyword), text, re.IGNORECASE)), relation, frequency)


def _forbidden_words(text: str, forbidden_words: Sequence[str]) -> bool:
    return not any(re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) for word in forbidden_words)


def _letter_frequency(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    return _compared(text.lower().count(letter.lower()), let_relation, let_frequency)


def count_sentences(text: str) -> int:
    """Returns the number of sentences: pieces that end with ``.``, ``!`` or ``?``, but for the usual abbreviations."""
    pieces = re.split(r"(?<=[.!?。！？])[\"'”’)\]]*(?:\s+|$)", " ".join(text.split()))
    whole, begun = 0, ""
    for piece in filter(str.strip, pieces):
        begun = f"{begun} {piece}".strip()
        if not _ABBREVIATION.search(begun):
            whole, begun = whole + 1, ""
    return whole + bool(begun)


def _number_sentences(text: str, num_sentences: int, relation: str) -> bool:
    return _compared(count_sentences(text), relation, num_sentences)


def _number_words(text: str, num_words: int, relation: str) -> bool:
    return _compared(len(re.findall(r"\w+", text)), relation, num_words)


def _number_paragraphs(text: str, num_paragraphs: int) -> bool:
    first, *inner = re.split(r"\s?\*\*\*\s?", text)
    last = [inner.pop()] if inner else []
    if not all(part.strip() for part in inner):
        return False
    return len(inner) + sum(bool(part.strip()) for part in (first, *last)) == num_paragraphs


def _nth_paragraph_first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    paragraphs = text.split("\n\n")
    whole = sum(bool(paragraph.strip()) for paragraph in paragraphs)
    if whole != num_paragraphs or nth_paragraph > whole or not (words := paragraphs[nth_paragraph - 1].split()):
        return False
    return re.split(r"[.,?!'\"]", words[0].lstrip("'\""))[0].lower() == first_word.lower()


def _number_placeholders(text: str, num_placeholders: int) -> bool:
    return len(re.findall(r"\[[^\n\]]*\]", text)) >= num_placeholders


def _postscript(text: str, postscript_marker: str) -> bool:
    spaced = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    return bool(re.search(spaced.get(postscript_marker) or re.escape(postscript_marker.lower()), text.lower()))


def _number_bullet_lists(text: str, num_bullets: int) -> bool:
    return len(re.findall(r"^[ \t]*(?:\*[^*\n]|-).*$", text, re.MULTILINE)) == num_bullets


def _constrained_response(text: str) -> bool:
    return any(answer in text for answer in _CONSTRAINED)


def _number_highlighted_sections(text: str, num_highlights: int) -> bool:
    found = re.findall(r"\*[^\n*]*\*", text) + re.findall(r"\*\*[^\n*]*\*\*", text)
    return sum(bool(one.strip("*").strip()) for one in found) >= num_highlights


def _multiple_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    return len(re.findall(rf"{re.escape(section_spliter)}\s?\d+", text)) >= num_sections


def _json_format(text: str) -> bool:
    fenced = re.fullmatch(r"```(?:json)?(.*?)```", text.strip(), re.DOTALL | re.IGNORECASE)
    try:
        json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        return False
    return True


def _title(text: str) -> bool:
    return any(one.strip("<>").strip() for one in re.findall(r"<<[^\n]+>>", text))


def _two_responses(text: str) -> bool:
    first, *inner = text.split("******")
    last = [inner.pop()] if inner else []
    whole = [part.strip() for part in (first, *inner, *last) if part.strip()]
    return all(part.strip() for part in inner) and len(whole) == 2 and whole[0] != whole[1]


def _repeat_prompt(text: str, prompt_to_repeat: str) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


def _end_checker(text: str, end_phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def _quotation(text: str) -> bool:
    whole = text.strip()
    return len(whole) > 1 and whole[0] == whole[-1] == '"'


def _capital_word_frequency(text: str, capital_frequency: int, capital_relation: str) -> bool:
    words = re.findall(r"[\w'’-]+", text)
    return _compared(sum(word.isupper() for word in words), capital_relation, capital_frequency)


def _capital(text: str) -> bool:
    return text.isupper() and _script(text) == "LATIN"


def _lowercase(text: str) -> bool:
    return text.islower() and _script(text) == "LATIN"


def _no_comma(text: str) -> bool:
    return "," not in text


_SCRIPTS = {"bn": "BENGALI", "gu": "GUJARATI", "kn": "KANNADA", "ko": "HANGUL", "pa": "GURMUKHI", "ta": "TAMIL",
            "te": "TELUGU", "th": "THAI"}  # fmt: skip
"""Languages of IFEval that are written as no other of its languages is."""


def _script(text: str) -> str:
    """Returns the script of most letters, as Unicode names it."""
    names = [unicodedata.name(letter, "?").split()[0] for letter in text if letter.isalpha()]
    return max(set(names), key=lambda name: (names.count(name), name), default="")


def _response_language(text: str, language: str) -> bool:
    if language in _SCRIPTS:
        return _script(text) == _SCRIPTS[language]
    try:
        import langdetect
    except ImportError as error:
        cure = install_command("ifeval")
        raise ValueError(f"language {language!r} is told from others by langdetect: {cure}") from error
    langdetect.DetectorFactory.seed = 0  # else it draws samples anew each time
    try:
        return bool(langdetect.detect(text) == language)
    except langdetect.LangDetectException:
        return True  # as in the paper: a text without letters is in no other language


CHECKS: dict[str, Check] = {
    "keywords:existence": _existence,
    "keywords:frequency": _frequency,
    "keywords:forbidden_words": _forbidden_words,
    "keywords:letter_frequency": _letter_frequency,
    "language:response_language": _response_language,
    "length_constraints:number_sentences": _number_sentences,
    "length_constraints:number_paragraphs": _number_paragraphs,
    "length_constraints:number_words": _number_words,
    "length_constraints:nth_paragraph_first_word": _nth_paragraph_first_word,
    "detectable_content:number_placeholders": _number_placeholders,
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": _number_bullet_lists,
    "detectable_format:constrained_response": _constrained_response,
    "detectable_format:number_highlighted_sections": _number_highlighted_sections,
    "detectable_format:multiple_sections": _multiple_sections,
    "detectable_format:json_format": _json_format,
    "detectable_format:title": _title,
    "combination:two_responses": _two_responses,
    "combination:repeat_prompt": _repeat_prompt,
    "startend:end_checker": _end_checker,
    "startend:quotation": _quotation,
    "change_case:capital_word_frequency": _capital_word_frequency,
    "change_case:english_capital": _capital,
    "change_case:english_lowercase": _lowercase,
    "punctuation:no_comma": _no_comma,
}


def _word_count(text: str, word: str, N: int) -> bool:
    return len(re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE)) == N


def _letter_count(text: str, letter: str, N: int) -> bool:
    if len(letter) != 1:
        raise ValueError(f"letter {letter!r}: it is one letter")
    return text.count(letter) == N


def _divided(text: str, N: int) -> bool:
    parts = text.split("* * *")
    return len(parts) == N and all(part.strip() for part in parts)


def _quantified(count: int, quantifier: str, wanted: int, around: int) -> bool:
    holds = {"at least": count >= wanted, "at most": count <= wanted, "around": abs(count - wanted) <= around}
    if quantifier not in holds:
        raise ValueError(f"quantifier {quantifier!r}: it is one of {', '.join(holds)}")
    return holds[quantifier]


def _words(text: str, N: int, quantifier: str) -> bool:
    return _quantified(len(text.split()), quantifier, N, max(round(N * 0.1), 1))


def _sentences(text: str, N: int, quantifier: str) -> bool:
    return _quantified(count_sentences(text), quantifier, N, 1)


def _capital_words(text: str, N: int, quantifier: str) -> bool:
    return _quantified(len(re.findall(r"\b[A-Z]+\b", text)), quantifier, N, 0)


def _paragraph_begins(text: str, N: int, first_word: str, i: int) -> bool:
    if not 1 <= i <= N:
        raise ValueError(f"i={i}: there are {N} paragraphs, counted from 1")
    paragraphs = text.split("\n\n")
    return len(paragraphs) == N and paragraphs[i - 1].strip().startswith(first_word)


def _added(text: str, postscript_marker: str) -> bool:
    return bool(text.partition(postscript_marker)[2].strip())


def _chosen(text: str, options: Sequence[str]) -> bool:
    if isinstance(options, str):
        raise ValueError("options is a text; write a list of texts")
    return text.strip() in [option.strip() for option in options]


def _sections(text: str, N: int, section_splitter: str) -> bool:
    return text.count(section_splitter) == N


CONSTRAINTS: dict[str, Check] = {
    "verify_keywords": lambda text, keyword_list: _existence(text, keyword_list),
    "verify_keyword_frequency": _word_count,
    "validate_forbidden_words": _forbidden_words,
    "verify_letter_frequency": _letter_count,
    "validate_response_language": _response_language,
    "verify_paragraph_count": _divided,
    "validate_word_constraint": _words,
    "verify_sentence_constraint": _sentences,
    "validate_paragraphs": _paragraph_begins,
    "verify_postscript": _added,
    "validate_placeholders": lambda text, N: _number_placeholders(text, N),
    "verify_bullet_points": lambda text, N: _number_bullet_lists(text, N),
    "validate_title": _title,
    "validate_choice": _chosen,
    "validate_highlighted_sections": lambda text, N: _number_highlighted_sections(text, N),
    "validate_sections": _sections,
    "validate_json_format": _json_format,
    "validate_repeat_prompt": lambda text, original_prompt: _repeat_prompt(text, original_prompt),
    "validate_two_responses": _two_responses,
    "validate_uppercase": _capital,
    "validate_lowercase": _lowercase,
    "validate_frequency_capital_words": _capital_words,
    "validate_end": _end_checker,
    "validate_quotation": _quotation,
    "validate_no_commas": _no_comma,
}
"""By the names and arguments of RLVR-IFeval and ROLL."""
