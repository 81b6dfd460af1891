"""Porter's stemmer: Porter 1980, "An algorithm for suffix stripping", with its author's two later changes to step 2."""

from __future__ import annotations

import re
from functools import lru_cache

_STEP_2 = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble", "alli": "al",
    "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al",
    "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble", "logi": "log",
}  # fmt: skip
_STEP_3 = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
_CUT = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ou", "ism", "ate", "iti", "ous",
    "ive", "ize",
)  # fmt: skip
_STEP_4 = {**dict.fromkeys(_CUT, ""), "sion": "s", "tion": "t"}


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """Returns the stem of a lower-case English word; words of one or two letters are their own."""
    if len(word) < 3:
        return word
    word = _participles(_plural(word))
    if word.endswith("y") and "v" in _shape(word[:-1]):
        word = f"{word[:-1]}i"
    word = _replace(word, _STEP_2, 0)
    word = _replace(word, _STEP_3, 0)
    word = _replace(word, _STEP_4, 1)
    return _last_letter(word)


def _shape(word: str) -> str:
    """Returns the word with c for each consonant and v for each vowel; y is a vowel after a consonant."""
    shape = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and shape.endswith("c"))
        shape += "v" if vowel else "c"
    return shape


def _measure(word: str) -> int:
    """Counts how often a vowel is followed by a consonant."""
    return len(re.findall("vc", _shape(word)))


def _doubled(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _shape(word)[-1] == "c"


def _short(word: str) -> bool:
    """Returns whether the word ends consonant, vowel, consonant, the last of which is not w, x or y."""
    return _shape(word)[-3:] == "cvc" and word[-1] not in "wxy"


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _participles(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    ending = next((ending for ending in ("ed", "ing") if word.endswith(ending)), None)
    if ending is None or "v" not in _shape(word.removesuffix(ending)):
        return word
    word = word.removesuffix(ending)
    if word.endswith(("at", "bl", "iz")):
        return f"{word}e"
    if _doubled(word) and word[-1] not in "lsz":
        return word[:-1]
    return f"{word}e" if _measure(word) == 1 and _short(word) else word


def _replace(word: str, endings: dict[str, str], above: int) -> str:
    """Replaces the longest matching ending, where the part before it measures more than ``above``."""
    found = max((ending for ending in endings if word.endswith(ending)), key=len, default=None)
    if found is None:
        return word
    changed = word.removesuffix(found) + endings[found]
    before = changed if found in ("sion", "tion") and above else word.removesuffix(found)
    return changed if _measure(before) > above else word


def _last_letter(word: str) -> str:
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _short(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word
