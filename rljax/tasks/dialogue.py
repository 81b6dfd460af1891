"""Tokenizes dialogues of many turns: the tokens that a chat template puts between two replies of the model.

The model's own tokens are never rendered, decoded or tokenised again. Only what comes between them is text: the end of
the model's turn, the environment's message, and the opening of the next turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from rljax.tasks.task import Message
from rljax.tasks.templates import render_messages, special_tokens, tokenized

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_REPLY = "the reply stands here"
"""Rendered in place of a reply, to find where replies end; no template has it in its own text."""


class TemplateError(ValueError):
    """The chat template cannot carry a dialogue: one line."""


def end_of_turn(tokenizer: PreTrainedTokenizerBase, stop_token_ids: Sequence[int]) -> tuple[int, ...]:
    """Returns the token that ends the model's turn: the one that the chat template puts behind a reply, where that is
    one of those that end turns; else the tokenizer's end token, where it has one.
    """
    try:
        after = ChatTurns(tokenizer, stop_token_ids).between(np.zeros(0, np.int32), "")
    except TemplateError:
        after = np.zeros(0, np.int32)
    if len(after) and int(after[0]) in stop_token_ids:
        return (int(after[0]),)
    return () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),)


class ChatTurns:
    """Renders the messages between the model's replies as tokens.

    Canonical turns decode to what the chat template renders. Two things differ, because tokens are kept as sampled:
    thinking that a template leaves out of earlier turns (Qwen3) stays, and so does text that is not canonical.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop_token_ids: Sequence[int]) -> None:
        """Checks the chat template; ``stop_token_ids`` are those that end the model's turns.

        Raises:
            TemplateError: the chat template does not keep replies as they are.
        """
        self._tokenizer = tokenizer
        self._stop = frozenset(stop_token_ids)
        special = special_tokens(tokenizer)
        self._special = {token: f"{token[0]} {token[1:]}" for token in special if len(token) > 1}
        self.between(np.zeros(0, np.int32), "")

    def opening(self, messages: Sequence[Message]) -> Int[np.ndarray, " time"]:
        """Returns token ids, int32, of the first messages, up to where the model's first reply begins."""
        return render_messages(self._tokenizer, [self._break_special_tokens(message) for message in messages])

    def between(self, reply: Int[np.ndarray, " reply"], text: str) -> Int[np.ndarray, " time"]:
        """Returns token ids, int32, from the end of a reply to the beginning of the next, around a user's message.

        They begin with the token that ends turns where the reply does not end with it: it was cut short, or ended
        otherwise.

        Args:
            reply: the tokens that the model sampled.
            text: the message. Special tokens in it are broken up: no environment can open or end a turn.
        """
        ids = self._ids(self._after_reply(self._break_special_tokens({"role": "user", "content": text})))
        opened = len(ids) > 0 and int(ids[0]) in self._stop
        ended = opened and len(reply) > 0 and reply[-1] == ids[0]
        return ids[1:] if ended else ids

    def _after_reply(self, message: Message) -> str:
        if not self._tokenizer.chat_template:
            return f"\n{message['content']}\n"
        messages: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _REPLY}, message]
        plain = [dict(one) for one in messages]
        text = str(self._tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=True))
        _, found, after = text.partition(_REPLY)
        if not found:
            raise TemplateError("the tokenizer's chat template does not show what the assistant said before")
        return after

    def _ids(self, text: str) -> Int[np.ndarray, " time"]:
        return tokenized(self._tokenizer, text)

    def _break_special_tokens(self, message: Message) -> dict[str, Any]:
        content = message["content"]
        for token, broken in self._special.items():
            content = content.replace(token, broken)
        return {**message, "content": content}
