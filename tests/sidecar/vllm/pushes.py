"""Run in a process of its own, by `test_pushes`: ``python -m tests.sidecar.vllm.pushes JOBS.json``.

Each job pushes versions into an engine and starts another one on a directory that holds the last one's weights. It
leaves both engines' log-probabilities of the same tokens. The first push and the roll back find the engine idle,
and are loaded in place; the others are loaded beside what it computes with, a tensor at a time, after one that is given
up half way.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
import weakref
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from sidecar.channels.versions import receive
from sidecar.protocol import GenerateRequest, SamplingParams, WeightUpdate
from sidecar.stepping.jobs import Trace
from sidecar.vllm import reloading, stepped, twin, weights
from sidecar.vllm.settings import VllmSettings
from sidecar.vllm.stepped import SteppedVllm, open_engine


def opened(model: str, load_format: str, trace: Trace | None = None) -> SteppedVllm:
    settings = VllmSettings(
        model, max_length=64, slots=2, dtype="fp32", kv_cache_bytes=2**24, enforce_eager=True, load_format=load_format
    )
    return open_engine(name="engine", settings=asdict(settings), trace=trace)


def stopping(model: str) -> tuple[SteppedVllm, list[str]]:
    """Returns an engine that is paused after each step, so that who runs does not end before the next update; and what
    it traces.
    """
    spans: list[str] = []

    def trace(name: str, *_: Any) -> None:
        spans.append(name)
        if name == "step":
            engine._stepper.paused = True

    engine = opened(model, "dummy", trace)
    return engine, spans


async def pushed(model: str, updates: list[WeightUpdate], tokens: np.ndarray) -> dict[str, Any]:
    engine, spans = stopping(model)
    first, second, third, back, last = updates
    await engine.update_weights(first)
    assert "stage" not in spans
    await update_while_one_runs(engine, tokens, second, third)
    await engine.update_weights(back)
    rolled_back = await engine.score(tokens)
    given_up = engine._place(receive(second.path))
    engine._batch.stage(given_up, 0.0)
    engine._batch.stage(given_up, 0.0)
    assert (await engine.score(tokens)).tolist() == rolled_back.tolist(), "it computes with what is half loaded"
    await update_while_one_runs(engine, tokens, last)
    scores = await engine.score(tokens)
    (packed,) = engine._batch._engine.collective_rpc(packed_lookups)
    await engine.close()
    return {
        "pushed": scores.tolist(),
        "packed lookups": packed,
        "rolled back": rolled_back.tolist(),
        "parts": spans.count("stage") - 2,
        "tensors": len(given_up),
    }


async def update_while_one_runs(engine: SteppedVllm, tokens: np.ndarray, *updates: WeightUpdate) -> None:
    await engine.resume()
    running = asyncio.ensure_future(engine.generate(GenerateRequest("running", tokens, SamplingParams())))
    await asyncio.sleep(0)  # it is submitted
    await engine.progress("running", 0)
    for update in updates:
        await engine.update_weights(update)
    await engine.abort(["running"])
    assert (await running).finish_reason == "abort"


async def unstaged(model: str, updates: list[WeightUpdate], tokens: np.ndarray) -> dict[str, Any]:
    """Has a second set of weights fail in the middle of a version."""
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())
    weights.log.addHandler(handler)
    engine, spans = stopping(model)
    await engine.update_weights(updates[0])
    (parts,) = engine._batch._engine.collective_rpc(parts_of, args=(engine._place(receive(updates[0].path)),))
    (lookups,) = engine._batch._engine.collective_rpc(lookups_of)
    sets, left = [], []
    load, pack = twin.Twin.load, reloading.have_experts_packed

    def fails(self: twin.Twin, version: Any, seconds: float) -> bool:
        if self._left:
            sets.append(weakref.ref(self._model))
            raise MemoryError("no room for the second set")
        return load(self, version, seconds)

    def in_place(model: Any) -> None:
        left.extend(made() is not None for made in sets)
        pack(model)

    with mock.patch.object(twin.Twin, "load", fails), mock.patch.object(reloading, "have_experts_packed", in_place):
        await update_while_one_runs(engine, tokens, updates[1])
    tried = spans.count("stage")
    await update_while_one_runs(engine, tokens, updates[-1])
    scores = await engine.score(tokens)
    await engine.close()
    return {
        "pushed": scores.tolist(),
        "warnings": warnings,
        "tried": [tried, spans.count("stage") - tried],
        "left": left,
        "parts": parts,
        "lookups": lookups,
    }


def parts_of(worker: Any, version: Any) -> list[int]:
    """Returns how many tensors two parts of three seconds have, before the second of which the engine was away for
    five; each tensor takes a second.
    """
    now = [0.0]

    def slow(array: np.ndarray) -> Any:
        now[0] += 1
        return as_torch(array)

    as_torch, second = reloading.as_torch, twin.Twin(worker.model_runner.get_model(), worker.model_config)
    with (
        mock.patch.object(reloading, "as_torch", slow),
        mock.patch.object(twin, "time", SimpleNamespace(perf_counter=lambda: now[0])),
    ):
        left = [len(version)]
        for away in (0.0, 5.0):
            now[0] += away
            second.load(version, 3.0)
            left.append(len(second._left))
    second.close()
    return [before - after for before, after in pairwise(left)]


def lookups_of(worker: Any) -> list[list[str]]:
    """Returns the names of the embeddings that only look up, in a model and in its body, where none is known to."""
    model = worker.model_runner.get_model()
    names = {module: name for name, module in model.named_modules()}
    return [[names[module] for module in reloading.lookups(one)] for one in (model, model.model)]


def packed_lookups(worker: Any) -> int:
    """Returns how many embeddings that only look up have a packed copy."""
    return sum(hasattr(module, "cpu_linear") for module in reloading.lookups(worker.model_runner.get_model()))


async def fresh(directory: str, tokens: np.ndarray) -> np.ndarray:
    engine = opened(directory, "auto")
    engine._stepper.batch.version = 0  # it serves what it was started on
    scores = await engine.score(tokens)
    await engine.close()
    return scores


def main(jobs: list[dict[str, Any]]) -> None:
    gc.freeze()
    stepped.STAGE_SECONDS, twin.time = 0.0, SimpleNamespace(perf_counter=lambda: 0.0)  # a part is over at once
    gc.unfreeze = lambda: None  # as an engine ends it thaws all modules, which the next would go through five times
    for job in jobs:
        tokens = np.asarray(job["tokens"], np.int32)
        updates = [WeightUpdate(*update) for update in job["updates"]]
        found = asyncio.run(pushed(job["model"], updates, tokens))
        found["fresh"] = asyncio.run(fresh(job["fresh"], tokens)).tolist()
        if job is jobs[0]:
            found["unstaged"] = asyncio.run(unstaged(job["model"], updates, tokens))
        Path(job["out"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
