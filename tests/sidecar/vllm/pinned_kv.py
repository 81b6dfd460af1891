"""Run in a process of its own, by `test_pins`: ``python -m tests.sidecar.vllm.pinned_kv JOB.json OUT.json``.

Leaves how many tokens of the same prompt vLLM found in its cache, for requests on either side of an update.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sidecar.protocol import GenerateRequest, SamplingParams, UpdatePolicy, WeightUpdate
from sidecar.vllm.settings import VllmSettings
from sidecar.vllm.stepped import open_engine


async def main(job: dict[str, Any]) -> dict[str, int]:
    settings = VllmSettings(
        job["model"],
        max_length=256,
        slots=2,
        dtype="fp32",
        kv_cache_bytes=2**26,
        enforce_eager=True,
        block_size=32,
        held=2,
        rank=4,
        adapted=job["words"],
    )
    engine = open_engine(name="engine", settings=asdict(settings))
    core, cached = engine._stepper.batch._engine, list[int]()
    step = core.step

    def watched() -> Any:
        outputs = step()
        cached.extend(output.num_cached_tokens for output in outputs if output.finished)
        return outputs

    core.step = watched

    async def ask(name: str, version: int) -> int:
        sampling = SamplingParams(max_new_tokens=4, seed=1)
        await engine.generate(GenerateRequest(name, np.arange(1, 97).repeat(2)[:128], sampling, version, pinned=True))
        return cached[-1]

    found = {}
    await engine.update_weights(WeightUpdate(0, 1, job["paths"][0], UpdatePolicy.PIN))
    found["first"] = await ask("a", 0)
    await engine.update_weights(WeightUpdate(1, 1, job["paths"][1], UpdatePolicy.PIN))
    found["same version, after the update"] = await ask("b", 0)
    found["the new version"] = await ask("c", 1)
    found["the new version again"] = await ask("d", 1)
    await engine.close()
    return found


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))))
