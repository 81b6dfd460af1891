"""Writes replies as OpenAI's endpoints do: whole ones, and the chunks of a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np

from rljax.pipeline.serve.parameters import Asked
from rljax.pipeline.serve.texts import AnswerText, token_texts
from sidecar.protocol import Completion


class Reply:
    """Writes the reply to one request: a chat's, or a completion's.

    Attributes:
        id: of the reply.
    """

    def __init__(self, asked: Asked, tokenizer: Any, model_name: str, *, chat: bool) -> None:
        self.id = f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._asked = asked
        self._tokenizer = tokenizer
        self._chat = chat
        self._name = model_name
        self._created = int(time.time())
        sampling = asked.sampling
        stops: Any = ((), ()) if asked.echo else (sampling.stop_token_ids, sampling.stop_strings)
        self._texts = [AnswerText(tokenizer, *stops) for _ in range(len(asked.prompts) * asked.n)]
        self._offsets = [0] * len(self._texts)

    @property
    def choices(self) -> int:
        """Answers that the request asks for."""
        return len(self._texts)

    def whole(self, answers: Sequence[Completion]) -> dict[str, Any]:
        """Returns the reply with all answers."""
        choices = []
        for index, answer in enumerate(answers):
            text = self._texts[index].add(answer.token_ids) + self._texts[index].end()
            shown = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
            choices.append(self._choice(index, answer, shown, answer.finish_reason))
        return self._head(answers, "chat.completion" if self._chat else "text_completion") | {
            "choices": choices,
            "usage": self.usage(answers),
        }

    def opening(self) -> list[dict[str, Any]]:
        """Returns the chunks with which a stream begins."""
        if not self._chat:
            return []
        delta = {"role": "assistant", "content": ""}
        empty = {"logprobs": None, "finish_reason": None}
        return [self._chunk([], [{"index": index, "delta": delta, **empty}]) for index in range(self.choices)]

    def piece(self, index: int, part: Completion) -> dict[str, Any]:
        """Returns the chunk of the next tokens of an answer."""
        return self._chunk([part], [self._delta(index, self._texts[index].add(part.token_ids), part, None)])

    def closing(self, index: int, answer: Completion) -> dict[str, Any]:
        """Returns the last chunk of an answer, whose tokens have all been sent."""
        return self._chunk([answer], [self._delta(index, self._texts[index].end(), None, answer.finish_reason)])

    def usage_chunk(self, answers: Sequence[Completion]) -> dict[str, Any]:
        """Returns the chunk that ends a stream with the number of tokens."""
        return self._chunk(answers, []) | {"usage": self.usage(answers)}

    def usage(self, answers: Sequence[Completion]) -> dict[str, int]:
        """Returns the tokens of prompts and answers."""
        prompts = sum(map(len, self._asked.prompts))
        made = 0 if self._asked.echo else sum(len(answer.token_ids) for answer in answers)
        return {"prompt_tokens": prompts, "completion_tokens": made, "total_tokens": prompts + made}

    def _delta(self, index: int, text: str, part: Completion | None, reason: str | None) -> dict[str, Any]:
        shown = {"delta": {"content": text} if text else {}} if self._chat else {"text": text}
        return self._choice(index, part, shown, reason)

    def _choice(self, index: int, part: Completion | None, shown: dict[str, Any], reason: str | None) -> dict[str, Any]:
        choice = {"index": index, **shown, "logprobs": None, "finish_reason": reason}
        if part is None:
            return choice
        if self._asked.logprobs:
            choice["logprobs"] = self._logprobs(index, part)
        if self._asked.token_ids:
            choice["token_ids"] = part.token_ids.tolist()
            choice["prompt_token_ids"] = self._asked.prompts[index // self._asked.n].tolist()
        return choice

    def _logprobs(self, index: int, part: Completion) -> dict[str, Any]:
        texts = token_texts(self._tokenizer, part.token_ids)
        logprobs = [None if np.isnan(one) else float(one) for one in part.logprobs]  # nothing predicts a first token
        if self._chat:
            content = [
                {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
                for text, logprob in zip(texts, logprobs, strict=True)
            ]
            return {"content": content, "refusal": None}
        ends = self._offsets[index] + np.cumsum([0, *map(len, texts)])
        self._offsets[index] = int(ends[-1])
        return {"tokens": texts, "token_logprobs": logprobs, "top_logprobs": None, "text_offset": ends[:-1].tolist()}

    def _chunk(self, parts: Sequence[Completion], choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = self._head(parts, "chat.completion.chunk" if self._chat else "text_completion")
        return head | {"choices": choices} | ({"usage": None} if self._asked.usage else {})

    def _head(self, parts: Sequence[Completion], kind: str) -> dict[str, Any]:
        head = {"id": self.id, "object": kind, "created": self._created, "model": self._name}
        return head | {"system_fingerprint": fingerprint(parts)}


def fingerprint(parts: Sequence[Completion]) -> str | None:
    """Returns what OpenAI calls the system's fingerprint: the versions of the weights that sampled these tokens."""
    versions = np.concatenate([np.zeros(0, np.int32), *(part.versions for part in parts)])
    if not len(versions):
        return None
    oldest, newest = int(versions.min()), int(versions.max())
    return f"version-{oldest}" if oldest == newest else f"version-{oldest}..{newest}"
