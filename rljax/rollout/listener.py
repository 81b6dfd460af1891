"""Hands the tokens of a request on while an engine samples them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from rljax.rollout.routes import join_routes
from rljax.tasks.seeds import stable_hash
from sidecar.protocol import Completion, Engine, GenerateRequest

Tell = Callable[[Completion], None]
"""Is called with the next tokens of a request; those of all calls together are its completion's."""


class Listener:
    """Listens to one engine while it runs a request."""

    def __init__(self, tell: Tell) -> None:
        """Takes ``tell``, which is called on the event loop of `generate`."""
        self._tell = tell
        self._heard: list[Completion] = []
        self._count = 0
        self._stop_token_ids: tuple[int, ...] = ()

    async def generate(self, engine: Engine, request: GenerateRequest) -> Completion:
        """Continues a prompt, as `Engine.generate`; what is not heard by its end is told then."""
        self._stop_token_ids = request.sampling.stop_token_ids
        whole = asyncio.ensure_future(engine.generate(request))
        try:
            while not whole.done() and await self._listen(engine, request.id, whole):
                pass
            done = await whole
        finally:
            await _cancel(whole)
        if len(done.token_ids) > self._count:
            self._take(_part(done, self._count))
        return done

    def heard(self) -> Completion | None:
        """Returns the tokens that were told, as of an aborted request unless they end it: for where the engine is lost.
        None if there are none.
        """
        if not self._heard:
            return None
        told = join(self._heard)
        ended = int(told.token_ids[-1]) in self._stop_token_ids
        return replace(told, finish_reason="stop" if ended else "abort")

    async def _listen(self, engine: Engine, request_id: str, whole: asyncio.Future[Completion]) -> bool:
        """Waits for more tokens or the end; returns whether there may be more tokens."""
        asked = asyncio.ensure_future(engine.progress(request_id, self._count))
        try:
            await asyncio.wait([whole, asked], return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                return False
            part = asked.result()
        finally:
            await _cancel(asked)
        if len(part.token_ids):
            self._take(part)
        return len(part.token_ids) > 0

    def _take(self, part: Completion) -> None:
        self._heard.append(part)
        self._count += len(part.token_ids)
        self._tell(part)


def remaining(request: GenerateRequest, parts: Sequence[Completion], name: str) -> GenerateRequest:
    """Returns the request for the tokens still to be generated after these parts. Its id is ``name``, new each time: an
    engine may still be ending the old one.
    """
    fresh = replace(request, id=name)
    tokens = np.concatenate([request.prompt_ids[:0], *(p.token_ids for p in parts)])
    if not len(tokens):
        return fresh
    rest = request.sampling.max_new_tokens - len(tokens)
    seed = stable_hash(request.sampling.seed, "resumed", *tokens.tolist())
    sampling = replace(request.sampling, max_new_tokens=rest, seed=seed)
    prompt = np.concatenate([request.prompt_ids, tokens]).astype(np.int32)
    resumed = request.resumed_tokens + len(tokens)
    return replace(fresh, prompt_ids=prompt, sampling=sampling, resumed_tokens=resumed)


def join(parts: list[Completion]) -> Completion:
    """Concatenates the pieces of an interrupted completion."""
    if len(parts) == 1:
        return parts[0]
    return Completion(
        np.concatenate([p.token_ids for p in parts]),
        np.concatenate([p.logprobs for p in parts]),
        np.concatenate([p.versions for p in parts]),
        parts[-1].finish_reason,
        _joined_routes(parts),
    )


def _joined_routes(parts: Sequence[Completion]) -> np.ndarray | None:
    made = np.cumsum([len(p.token_ids) for p in parts])
    prompts = [len(p.routes) - end for p, end in zip(parts, made, strict=True) if p.routes is not None]
    if not prompts:
        return None
    ends = (int(prompts[0] + end) for end in made)
    return join_routes([(end, p.routes) for p, end in zip(parts, ends, strict=True) if len(p.token_ids)])


def _part(whole: Completion, begin: int) -> Completion:
    return Completion(whole.token_ids[begin:], whole.logprobs[begin:], whole.versions[begin:], whole.finish_reason)


async def _cancel(task: asyncio.Future[Completion]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
