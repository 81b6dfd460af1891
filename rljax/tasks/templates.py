"""Renders prompts as chat messages, and messages as the token ids that a model reads."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from rljax.tasks.task import BadRow, Message, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LOG = logging.getLogger(__name__)
_complained: set[str] = set()
_QUOTED = 80
_KEPT = 64
"""Prompts that are kept as token ids. All members of a group have the same one."""

NO_TOKEN = "<|no_token|>"
"""Text of `decoded` for an id that the tokenizer does not have. It holds no digit that a reward could read."""


def chat_messages(
    template: str, system_prompt: str | None, prompt: str, examples: Sequence[str] = ()
) -> tuple[Message, ...]:
    """Returns the messages of a task. ``{prompt}`` alone is replaced: other braces of a template are text.

    Args:
        template: user message around a prompt.
        system_prompt: goes first; None: the chat template's own, if it has one.
        prompt: of the task.
        examples: prompts and answers by turns, shown before the task in the same template.
    """
    messages = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
    for shown, answer in zip(examples[::2], examples[1::2], strict=True):
        messages.append({"role": "user", "content": template.replace("{prompt}", shown)})
        messages.append({"role": "assistant", "content": answer})
    return (*messages, {"role": "user", "content": template.replace("{prompt}", prompt)})


def render_messages(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], *, replied: bool = False
) -> Int[np.ndarray, " time"]:
    """Returns token ids, int32, up to where the model's reply begins; ``replied``: the last message is that reply.

    The tokenizer's chat template writes the turns; where it refuses a system message, that goes before the first user
    message. Without a template the contents follow one another, a line each, with the tokenizer's own special tokens.

    Raises:
        jinja2.TemplateError: the chat template refuses the messages.
    """
    if not tokenizer.chat_template:
        text = "\n".join(message["content"] for message in messages)
        return tokenized(tokenizer, text, special=True)
    return tokenized(tokenizer, _apply_template(tokenizer, messages, replied))


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Returns the texts that the tokenizer reads as special tokens, those that open and end turns among them.

    Llama 3 names only a few of its special tokens; the others are special all the same.
    """
    added = (str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
    return list(dict.fromkeys([*map(str, tokenizer.all_special_tokens), *added]))


def tokenized(tokenizer: PreTrainedTokenizerBase, text: str, *, special: bool = False) -> Int[np.ndarray, " time"]:
    """Returns the token ids of a text, int32; with the tokenizer's own special tokens around it if ``special``.

    A text that the tokenizer cannot spell is warned of, once for each tokenizer: the model would see nothing of it.
    """
    ids = np.asarray(tokenizer(text, add_special_tokens=special)["input_ids"], np.int32)
    unknown, name = tokenizer.unk_token_id, str(tokenizer.name_or_path)
    if unknown is not None and unknown in ids and str(tokenizer.unk_token) not in text and name not in _complained:
        _complained.add(name)
        strange = "".join(sorted({c for c in text if unknown in tokenizer(c, add_special_tokens=False)["input_ids"]}))
        _LOG.warning(
            "the tokenizer has no tokens for %r, and the model reads %s instead, for instance in %r; a tiny model's "
            "are model.tiny.characters",
            strange,
            tokenizer.unk_token,
            text[:200],
        )
    return ids


def quoted(task: Task) -> str:
    """Returns the beginning of what a task asks last, for our messages: its number tells no line of a shuffled file."""
    asked = next(one for one in reversed(task.messages) if one["role"] != "assistant")
    return f"it asks {asked['content'][:_QUOTED]!r}"


def render_prompt(tokenizer: PreTrainedTokenizerBase, task: Task, max_prompt_tokens: int) -> Int[np.ndarray, " time"]:
    """Returns the token ids of a task's prompt, int32.

    Raises:
        BadRow: it is empty, or longer than ``max_prompt_tokens``, or the chat template refuses its messages.
    """
    from jinja2 import TemplateError

    try:
        token_ids = _prompt_ids(tokenizer, task.messages)
    except TemplateError as error:
        raise BadRow(f"task {task.id}: the chat template refuses its messages ({error}); {quoted(task)}") from error
    if not 0 < len(token_ids) <= max_prompt_tokens:
        raise BadRow(
            f"task {task.id}: a prompt of {len(token_ids)} tokens; model.max_prompt_tokens is {max_prompt_tokens}; "
            f"raise it, or shorten the row; {quoted(task)}"
        )
    return token_ids


def _prompt_ids(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> Int[np.ndarray, " time"]:
    """Returns `render_messages` of a prompt, from what is kept where it depends on nothing but texts. A tokenizer may
    get another chat template, and must not change otherwise.
    """
    template, texts = str(tokenizer.chat_template), (text for message in messages for text in message.values())
    if "strftime_now" in template or not all(isinstance(text, str) for text in texts):
        return render_messages(tokenizer, messages)
    return _rendered(tokenizer, template, tuple(tuple(message.items()) for message in messages)).copy()


@functools.lru_cache(_KEPT)
def _rendered(
    tokenizer: PreTrainedTokenizerBase, template: str, messages: tuple[tuple[tuple[str, str], ...], ...]
) -> Int[np.ndarray, " time"]:
    """Returns `render_messages` of a prompt; ``template`` is the tokenizer's."""
    return render_messages(tokenizer, [dict(message) for message in messages])


def response_text(
    tokenizer: PreTrainedTokenizerBase, token_ids: Int[np.ndarray, " time"], stop_token_ids: Sequence[int]
) -> str:
    """Returns the text of a response: of all its tokens but the stop token that ends it.

    Other special tokens are shown. Left out, they would cost nothing, and ``4<|user|>2`` would be a right answer to 42.
    """
    ends = len(token_ids) > 0 and int(token_ids[-1]) in stop_token_ids
    return decoded(tokenizer, (token_ids[:-1] if ends else token_ids).tolist())


def decoded(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """Returns the text of token ids, special tokens shown.

    A model may have more embedding rows than its tokenizer has ids. The tokenizer would pass over such an id; here each
    is `NO_TOKEN`.
    """
    ids = list(token_ids)
    known = [token is not None for token in tokenizer.convert_ids_to_tokens(ids)]
    if all(known):
        return str(tokenizer.decode(ids, skip_special_tokens=False))
    runs = itertools.groupby(zip(known, ids, strict=True), key=lambda pair: pair[0])
    return "".join(
        str(tokenizer.decode([one for _, one in run], skip_special_tokens=False)) if there else NO_TOKEN * len([*run])
        for there, run in runs
    )


def _apply_template(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], replied: bool) -> str:
    from jinja2 import TemplateError

    def apply(chat: Sequence[Message]) -> str:
        plain = [dict(message) for message in chat]
        return str(tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=not replied))

    try:
        return apply(messages)
    except TemplateError:
        if len(messages) < 2 or messages[0]["role"] != "system":
            raise
        system, first, *rest = messages
        merged = {**first, "content": f"{system['content']}\n\n{first['content']}"}
        return apply([merged, *rest])
