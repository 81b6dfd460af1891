"""Requests inside the engine, and the search for their stop strings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from sidecar.protocol import UNKNOWN_ROUTE, Completion, GenerateRequest

Trace = Callable[[str, float, float, dict[str, float]], None]
"""Called with the name of what an engine did, its start and end in Unix seconds, and its numbers. From any thread."""


class Tokenizer(Protocol):
    """The methods of a tokenizer that stop strings need."""

    def decode(self, token_ids: list[int], **options: Any) -> Any:
        """Returns the text of these tokens."""
        ...


@dataclass(eq=False, slots=True)
class Job:
    """A request and the tokens that are sampled for it so far.

    Attributes:
        request: the request.
        order: number of arrival.
        loop: the event loop that waits for it.
        future: receives the completion.
        tokens: sampled so far.
        logprobs: of `tokens`.
        spans: (version, number of tokens) in order: which weights sampled how many.
        done: whether the request has been answered.
        routes: experts of the first tokens of prompt and response, in order, each int16 ``[n, layers, picked]``: of
            the pass that sampled from them, whatever weights have read them again since. Empty where none are recorded.
        routed: number of tokens that `routes` has the experts of.
        read: whether an engine has read its prompt before, with older weights.
    """

    request: GenerateRequest
    order: int
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Completion]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    done: bool = False
    routes: list[np.ndarray] = field(default_factory=list)
    routed: int = 0
    read: bool = False

    @property
    def budget(self) -> int:
        """Tokens that may still be sampled."""
        return self.request.sampling.max_new_tokens - len(self.tokens)

    @property
    def length(self) -> int:
        """Tokens of the prompt and those so far."""
        return len(self.request.prompt_ids) + len(self.tokens)

    def sequence(self) -> np.ndarray:
        """Returns int32 ``[n]``: the prompt and the tokens so far."""
        prompt = np.asarray(self.request.prompt_ids, np.int32)
        return np.concatenate([prompt, np.asarray(self.tokens, np.int32)]) if self.tokens else prompt

    def resumed(self) -> list[int]:
        """Returns the tokens of this response that an earlier request sampled; the prompt ends with them."""
        prompt = self.request.prompt_ids
        return np.asarray(prompt[len(prompt) - self.request.resumed_tokens :], np.int32).tolist()

    def extend(self, tokens: list[int], logprobs: list[float], version: int) -> None:
        """Appends tokens that weights `version` sampled."""
        self.tokens += tokens
        self.logprobs += logprobs
        self.spans.append((version, len(tokens)))

    def extend_routes(self, routes: np.ndarray, begin: int) -> None:
        """Appends experts of the tokens of prompt and response from ``begin`` on, without those that are known. Where
        nothing was sampled yet, a pass that reads all again takes the place of those before it.
        """
        if not (begin or self.tokens):
            self.routes.clear()
            self.routed = 0
        known, end = self.routed, begin + len(routes)
        assert begin <= known, f"experts of the tokens from {begin} on, and those before {known} are known"
        if end > known:
            self.routes.append(routes[known - begin :].copy())  # a view would keep what all requests of a step recorded
            self.routed = end

    def completion(self, reason: str, begin: int = 0) -> Completion:
        """Returns the completion with the tokens so far, without the first ``begin``."""
        versions = np.repeat(*np.asarray(self.spans, np.int32).reshape(-1, 2).T)[begin:]
        tokens, logprobs = np.asarray(self.tokens[begin:], np.int32), np.asarray(self.logprobs[begin:], np.float32)
        routes = None
        if self.routes and not begin:
            routes = np.full((self.length, *self.routes[0].shape[1:]), UNKNOWN_ROUTE, np.int16)
            read = np.concatenate(self.routes)[: len(routes) - 1]
            routes[: len(read)] = read
        return Completion(tokens, logprobs, versions, reason, routes)


def end_of_text(tokens: list[int], old: int, stop_strings: tuple[str, ...], tokenizer: Tokenizer) -> int | None:
    """Returns after how many tokens the text contains a stop string; None if it contains none.

    The answer does not depend on how many tokens arrive at once.

    Args:
        tokens: the response so far.
        old: number of leading tokens that are known to contain no stop string.
        stop_strings: not empty strings.
        tokenizer: decodes them.
    """
    # a token adds at least a byte, so a stop string that ends in a new token begins at most this many before it
    begin = max(0, old - max(len(stop.encode()) for stop in stop_strings) - 4)

    def contains(end: int) -> bool:
        text = tokenizer.decode(tokens[begin:end], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return any(stop in text for stop in stop_strings)

    if not contains(len(tokens)):
        return None
    return next(end for end in range(old + 1, len(tokens) + 1) if contains(end))
