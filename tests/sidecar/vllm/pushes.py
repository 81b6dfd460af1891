"""Run in a process of its own, by `test_pushes`: ``python -m tests.sidecar.vllm.pushes JOBS.json``.

Each job pushes versions into an engine and starts another one on a directory that holds the last one's weights. It
leaves both engines' log-probabilities of the same tokens.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sidecar.protocol import WeightUpdate
from sidecar.vllm.settings import VllmSettings
from sidecar.vllm.stepped import SteppedVllm, open_engine


def opened(model: str, load_format: str) -> SteppedVllm:
    settings = VllmSettings(
        model, max_length=64, slots=2, dtype="fp32", kv_cache_bytes=2**24, enforce_eager=True, load_format=load_format
    )
    return open_engine(name="engine", settings=asdict(settings))


async def pushed(model: str, updates: list[WeightUpdate], tokens: np.ndarray) -> np.ndarray:
    engine = opened(model, "dummy")
    for update in updates:
        await engine.update_weights(update)
    scores = await engine.score(tokens)
    await engine.close()
    return scores


async def fresh(directory: str, tokens: np.ndarray) -> np.ndarray:
    engine = opened(directory, "auto")
    engine._stepper.batch.version = 0  # it serves what it was started on
    scores = await engine.score(tokens)
    await engine.close()
    return scores


def main(jobs: list[dict[str, Any]]) -> None:
    gc.freeze()
    gc.unfreeze = lambda: None  # as an engine ends it thaws all modules, which the next would go through five times
    for job in jobs:
        tokens = np.asarray(job["tokens"], np.int32)
        updates = [WeightUpdate(*update) for update in job["updates"]]
        found = {
            "pushed": asyncio.run(pushed(job["model"], updates, tokens)).tolist(),
            "fresh": asyncio.run(fresh(job["fresh"], tokens)).tolist(),
        }
        Path(job["out"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
