"""Has the engines answer a request: all its prompts, as often as it asks."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rljax.pipeline.serve.parameters import Asked
from rljax.rollout.async_utils import all_or_none
from rljax.rollout.engine_pool import EnginePool
from rljax.tasks.seeds import stable_hash
from sidecar.protocol import Completion, GenerateRequest

Told = Callable[[int, Completion, bool], None]
"""Is called with the number of an answer, its next tokens and False; at its end with all of it and True."""


async def answers(
    pool: EnginePool, asked: Asked, name: str, seconds: float, told: Told | None = None
) -> list[Completion]:
    """Returns the answers to a request, prompt by prompt; cancelling this ends them on the engines.

    Args:
        pool: the engines.
        asked: the request.
        name: unique among the requests under way.
        seconds: that all answers may take.
        told: is told them as they are sampled; of a prompt that is scored nothing is.

    Raises:
        TimeoutError: it took too long.
        RequestError, EngineError: as `EnginePool.generate`.
    """
    if asked.echo:
        async with asyncio.timeout(seconds):
            return await all_or_none(_scored(pool, prompt) for prompt in asked.prompts)
    seed = secrets.randbits(62) if asked.seed is None else asked.seed

    async def one(index: int) -> Completion:
        place, choice = divmod(index, asked.n)
        sampling = replace(asked.sampling, seed=stable_hash("serve", seed, place, choice))
        request = GenerateRequest(f"{name}/{index}", asked.prompts[place], sampling, affinity=f"{name}/{place}")
        tell = None if told is None else lambda part: told(index, part, False)
        whole = await pool.generate(request, 0, tell=tell)
        pool.forgive()
        if told is not None:
            told(index, whole, True)
        return whole

    async with asyncio.timeout(seconds):
        return await all_or_none(one(index) for index in range(len(asked.prompts) * asked.n))


async def _scored(pool: EnginePool, prompt: np.ndarray) -> Completion:
    """Returns a prompt as an answer, with its log-probabilities; that of its first token nobody knows (NaN)."""
    (one,) = await pool.score(prompt, most=1)
    pool.forgive()
    logprobs = np.concatenate([np.full(1, np.nan, np.float32), one.logprobs])
    return Completion(prompt, logprobs, np.full(len(prompt), one.version, np.int32), "length")
