"""Searches the keys: `rljax --help WORD`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from rljax.config.fields import brief
from rljax.config.foreign_keys import advice
from rljax.config.keys import Key, all_keys

_MOST = 30
_OF_FUNCTIONS = ("algorithm.loss.", "algorithm.advantage.", "algorithm.filter.")


def matching(words: Sequence[str]) -> list[Key]:
    """Returns the keys in whose path, meaning, type and choices all words are; those with all in the path are first."""
    asked = [word.casefold() for word in words]

    def has(text: str) -> bool:
        return all(word in text.casefold() for word in asked)

    found = [key for key in all_keys() if has(" ".join((key.path, key.meaning, key.takes, *key.choices)))]
    return sorted(found, key=lambda key: not has(key.path))


def found_lines(words: Sequence[str], keys: Sequence[Key]) -> list[str]:
    """Returns what is printed of the keys in which the words were found: of many the first ones; and what to write for
    a word that is a key of another program's, where that is none of them.
    """
    lines = []
    for key in keys[:_MOST]:
        choices = f": {', '.join(key.choices)}" if key.choices else ""
        lines += [f"  --config.{key.path}={key.default}", f"      {key.meaning} ({key.takes}{choices})"]
    if len(keys) > _MOST:
        lines.append(f"  and {len(keys) - _MOST} more: add a word, as in --help WORD WORD, or list all by --help")
    # a loss may call its own key, which few know, as others do one that everybody has
    ours = {name for key in all_keys() if not key.path.startswith(_OF_FUNCTIONS) for name in key.path.split(".")}
    said = _foreign(words) if ours.isdisjoint(words) else ""
    if said and not any(key.path in said for key in keys):
        lines.append(f"{brief(words[0])}: {said}")
    return lines


def nothing_found(words: Sequence[str]) -> str:
    """Returns the line for words that no key has: what to write for a key of another program's, or the closest keys."""
    asked, paths = " ".join(words), [key.path for key in all_keys()]
    if said := _foreign(words):
        return f"{brief(asked)}: no key of ours; {said}"
    last = {path.rpartition(".")[2]: path for path in reversed(paths)}
    near = difflib.get_close_matches(asked, [*last, *paths], 3)
    closest = ", ".join(dict.fromkeys(last.get(name, name) for name in near))
    return f"{brief(asked)}: no key has it; " + (f"closest: {closest}" if near else "rljax --help lists all")


def _foreign(words: Sequence[str]) -> str:
    """Returns what to write for a word that is a key of another program's; empty for any other, and for several."""
    word, *more = words
    return "" if more else advice(word, word.partition(".")[0], "", [key.path for key in all_keys()])
