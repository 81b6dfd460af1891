"""Run in a process of its own, by `test_routes`: ``python -m tests.sidecar.vllm.recorded JOB.json OUT.npz``.

Leaves tokens and routes of requests: alone, in a group, in a crowd, and across an update in flight.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from sidecar.protocol import GenerateRequest, PauseMode, SamplingParams, WeightUpdate
from sidecar.vllm.settings import VllmSettings
from sidecar.vllm.stepped import open_engine
from tests.sidecar.vllm.models import VOCABULARY
from tests.waiting import Gate

NEW = 100
"""Tokens that each of the crowd samples: six of them fill more than the 15 blocks that there are."""


def counting(core: Any, counts: dict[str, int]) -> None:
    """Counts tokens of prompts that were in vLLM's cache, and requests that lost their blocks to others."""
    scheduler, step = core.engine_core.engine_core.scheduler, core.step
    preempt: Callable[..., Any] = scheduler._preempt_request

    def stepped() -> Any:
        outputs = step()
        counts["cached"] += sum(output.num_cached_tokens for output in outputs if output.finished)
        return outputs

    def preempted(*arguments: Any, **options: Any) -> Any:
        counts["preempted"] += 1
        return preempt(*arguments, **options)

    core.step, scheduler._preempt_request = stepped, preempted


async def main(job: dict[str, Any]) -> dict[str, Any]:
    settings = VllmSettings(
        job["model"],
        max_length=256,
        slots=6,
        dtype="fp32",
        kv_cache_bytes=2**19,  # 16 blocks of 32 tokens, one of which vLLM keeps empty
        enforce_eager=True,
        block_size=32,
        record_routes=True,
    )
    gate, counts, found = Gate(0, "step"), {"cached": 0, "preempted": 0}, dict[str, Any]()
    engine = open_engine(name="engine", settings=asdict(settings), trace=gate)
    counting(engine._stepper.batch._engine, counts)
    rng = np.random.default_rng(0)
    prompts = {length: rng.integers(0, VOCABULARY, length).astype(np.int32) for length in (1, 31, 50, 65, 70)}

    async def ask(name: str, prompt: np.ndarray, new: int) -> None:
        sampling = SamplingParams(max_new_tokens=new, seed=len(found))
        done = await engine.generate(GenerateRequest(name, prompt, sampling, 0))
        found[f"{name} tokens"] = np.concatenate([prompt, done.token_ids])
        found[f"{name} routes"], found[f"{name} versions"] = done.routes, done.versions

    await engine.update_weights(WeightUpdate(0, 1, job["paths"][0]))
    for length in (1, 31, 65):
        await ask(f"alone {length}", prompts[length], 9)
    counts["cached"] = 0
    await ask("group 0", prompts[70], 9)
    await asyncio.gather(*(ask(f"group {i}", prompts[70], 9) for i in (1, 2, 3)))
    found["cached"] = counts["cached"]
    await asyncio.gather(*(ask(f"crowd {i}", np.roll(prompts[31], i), NEW) for i in range(6)))
    found["preempted"] = counts["preempted"]

    gate.left = 7
    running = asyncio.create_task(ask("updated", prompts[50], 20))
    await gate.wait()
    pause = asyncio.create_task(engine.pause(PauseMode.KEEP))
    gate.opened.set()
    await pause
    await engine.update_weights(WeightUpdate(1, 1, job["paths"][1]))
    await engine.resume()
    await running
    await engine.close()
    return found


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        made = asyncio.run(main(json.load(file)))
    np.savez(sys.argv[2], **made)
