"""Makes texts of token ids while they come, and says each token as OpenAI's replies do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rljax.tasks.templates import decoded

_BROKEN = "\N{REPLACEMENT CHARACTER}"


class AnswerText:
    """The text of one answer: without the token that ends it, and up to the stop string that it meets.

    What it gives in pieces is together what it would give at once.
    """

    def __init__(self, tokenizer: Any, stop_token_ids: Sequence[int], stop_strings: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop_token_ids = frozenset(stop_token_ids)
        self._stop_strings = tuple(stop_strings)
        self._ids: list[int] = []
        self._context = 0  # tokens behind which a piece is decoded: a tokenizer may write one by what stands before it
        self._read = 0
        self._held = ""
        self._ended = False

    def add(self, token_ids: np.ndarray) -> str:
        """Takes the next tokens; returns the text that is certain by now."""
        self._ids += [token for token in token_ids.tolist() if token not in self._stop_token_ids]
        return self._release(last=False)

    def end(self) -> str:
        """Returns the rest of the text."""
        return self._release(last=True)

    def _release(self, *, last: bool) -> str:
        if self._ended:
            return ""
        self._held += self._decode(last=last)
        found = [place for place in (self._held.find(stop) for stop in self._stop_strings) if place >= 0]
        if found:
            self._ended = True
            return self._held[: min(found)]
        certain = len(self._held) if last else len(self._held) - self._begun()
        text, self._held = self._held[:certain], self._held[certain:]
        return text

    def _decode(self, *, last: bool) -> str:
        before = decoded(self._tokenizer, self._ids[self._context : self._read])
        text = decoded(self._tokenizer, self._ids[self._context :])
        if text.endswith(_BROKEN) and not last:
            return ""  # the rest of a character is to come
        self._context, self._read = self._read, len(self._ids)
        return text[len(before) :]

    def _begun(self) -> int:
        """Returns how many characters at the end may be the beginning of a stop string."""
        return max(
            (size for stop in self._stop_strings for size in range(1, len(stop)) if self._held.endswith(stop[:size])),
            default=0,
        )


def token_texts(tokenizer: Any, token_ids: np.ndarray) -> list[str]:
    """Returns the text of each token alone."""
    return [decoded(tokenizer, [token]) for token in token_ids.tolist()]
