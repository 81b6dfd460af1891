"""Asks an engine, and waits for what it does."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from sidecar.protocol import Completion, GenerateRequest, SamplingParams, UpdatePolicy
from tests.sidecar.vllm.conftest import Lab
from tests.sidecar.vllm.models import token_logprobs

PROMPT = np.arange(5, 45, dtype=np.int32)
LONG = 600
ENDLESS = 16_000
"""More new tokens than the slowest machine samples before a test has aborted the request."""
serial = iter(range(10**6))


def ask(
    lab: Lab,
    *,
    min_version: int = 0,
    prompt: np.ndarray = PROMPT,
    resumed_tokens: int = 0,
    priority: int = 0,
    pinned: bool = False,
    **how: Any,
) -> asyncio.Future[Completion]:
    request = GenerateRequest(
        id=f"r{next(serial)}",
        prompt_ids=prompt,
        sampling=SamplingParams(**how),
        min_version=min_version,
        priority=priority,
        resumed_tokens=resumed_tokens,
        pinned=pinned,
    )
    return asyncio.ensure_future(lab.engine.generate(request))


async def until_running(lab: Lab, enough: Callable[[int], bool]) -> None:
    while True:  # each look is a round trip to the engine's process
        if enough((await lab.engine.status()).running):
            return


async def until_sampled(lab: Lab, *requests: asyncio.Future[Completion]) -> None:
    """Until all of them hold a slot, and something has been sampled since; or one has ended, between two looks."""
    await until_running(lab, lambda running: running >= len(requests) or any(r.done() for r in requests))
    await lab.engine.score(PROMPT)  # it takes steps of the model, and the running requests go along


async def serve(lab: Lab, version: int, policy: UpdatePolicy = UpdatePolicy.IN_FLIGHT) -> None:
    await lab.engine.update_weights(dataclasses.replace(lab.updates[version], policy=policy))


def response_logprobs(lab: Lab, version: int, done: Completion, temperature: float = 1.0) -> np.ndarray:
    whole = np.concatenate([PROMPT, done.token_ids])
    return token_logprobs(lab.models[version], whole, temperature)[len(PROMPT) - 1 :]
