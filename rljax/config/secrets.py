"""Blanks passwords and keys in what is written or printed. Imports nothing of this package."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

VARIABLES = ("_TOKEN", "_KEY", "_SECRET", "_PASSWORD")
"""Suffixes of environment variables that hold a secret."""
BLANK = "***"
_NAMES = r"key|token|secret|passw(?:or)?d|passphrase|pwd|authorization|cookie|credentials?"
_IN_URLS = rf"{_NAMES}|sig|signature|auth|jwt"  # of signed links too
_PASSWORD = re.compile(
    r"((?<=://)[^\s/:@]*:)\S*(?=@)"  # a user's
    r"|((?<=https://)|(?<=http://)|(?<=wss://)|(?<=ws://))[^\s/?#@]+(?=@)"  # a token in the place of a user
    rf"|([?&#](?:\w*pass\w*|[\w-]*(?:{_IN_URLS}))=)[^\s&]*",  # a '#' may stand in a database's password
    re.IGNORECASE,
)
_SECRET = re.compile(rf"(?i)(?:{_NAMES})$|secret|password|api_?key|(?:^|[_-])pass$")
_SLIP = 0.9
"""Likeness of a name that has a letter too many, too few or in another place."""
_PLAIN = ("prompt_key", "messages_key", "response_key", "answer_key", "tag_key", "eos_token", "pad_token", "bos_token")
"""Names of columns and of a tokenizer's tokens, which are for everybody."""


def without_passwords(text: str) -> str:
    """Returns the text with ``***`` in the place of each password of a URL, and of keys and tokens in it."""
    return _PASSWORD.sub(rf"\1\2\3{BLANK}", text)


def blanked(value: Any, name: str = "") -> Any:
    """Returns a value with ``***`` in the place of passwords, and of what stands under the name of a key or password.

    Args:
        value: a scalar, or mappings and sequences of such.
        name: the key that it stands under; of a dotted path the last part counts.
    """
    if isinstance(value, Mapping):
        return {key: blanked(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(blanked(item, name) for item in value)
    last = name.rpartition(".")[2]
    if value not in (None, True, False, "") and _SECRET.search(last) and not _is_plain(last.lower()):
        return BLANK
    return without_passwords(value) if isinstance(value, str) else value


def _is_plain(name: str) -> bool:
    """Returns whether a name is one of `_PLAIN`, or that with a slip of a letter."""
    return bool(difflib.get_close_matches(name, _PLAIN, 1, _SLIP))


def left_out(values: Mapping[str, Any], path: str = "") -> tuple[dict[str, Any], list[str]]:
    """Returns nested mappings without the keys that hold a password or a key, and the dotted paths of those."""
    kept, without = {}, []
    for name, value in values.items():
        if isinstance(value, Mapping):
            kept[name], below = left_out(value, f"{path}{name}.")
            without += below
        elif blanked(value, str(name)) == value:
            kept[name] = value
        else:
            without.append(f"{path}{name}")
    return kept, without
