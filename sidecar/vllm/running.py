"""A request in flight at ``AsyncLLM``."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from vllm.lora.request import LoRARequest

from sidecar.stepping.jobs import Job


@dataclass(eq=False)
class Running:
    """A request in flight; vLLM knows it by ``name``, which is empty until it was submitted.

    Attributes:
        job: the request; its tokens come with its last output, which alone says what weights sampled them.
        version: that it began with.
        adapter: of that version, of an engine that holds several.
        tokens: those that have come, all of them part of the answer.
        logprobs: of `tokens`.
        more: is set, and replaced, when there are more of them, or no more will come.
    """

    job: Job
    name: str = ""
    version: int = -1
    adapter: LoRARequest | None = None
    aborted: bool = False
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    more: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self) -> None:
        """Wakes who waits for more tokens."""
        self.more.set()
        self.more = asyncio.Event()

    def take(self, tokens: list[int], logprobs: list[float], sampled: Any) -> None:
        """Gives the job what has come of the answer, as vLLM's last output says what sampled it."""
        if sampled.routed_experts is not None:
            # of the pass that sampled: after an update vLLM returns none but the last of what it reads again
            self.job.extend_routes(sampled.routed_experts.astype(np.int16), 0)
        if self.adapter is not None:
            self.job.extend(tokens, logprobs, self.version)
            return
        for span in sampled.weight_versions or ():
            part = slice(span.start, min(span.end, len(tokens)))
            self.job.extend(tokens[part], logprobs[part], int(span.version))
