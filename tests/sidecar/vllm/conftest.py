"""One hosted vLLM engine of each body for all tests here: the first start of each costs half a minute."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from transformers import PreTrainedModel

from rljax.models.tokenizer import save_tiny_tokenizer
from sidecar.hosting.local import LocalEngineLauncher, ProcessEngine
from sidecar.hosting.spec import EngineSpec
from sidecar.protocol import WeightUpdate
from sidecar.vllm.settings import VllmSettings, environment
from tests.sidecar.vllm.models import VOCABULARY, publish, random_model, tensors

BODIES = {"vllm": "sidecar.vllm.stepped:open_engine", "vllm_async": "sidecar.vllm.concurrent:open_engine"}
MODEL = "qwen3-tied"
SLOTS = 40
CHARACTERS = "".join(map(chr, range(33, 33 + VOCABULARY - 7)))
"""With seven special tokens in front, a text for each token of the vocabulary."""
T = TypeVar("T")


class Loop:
    """An event loop in a thread, on which an engine outlives a test."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T], seconds: float = 500.0) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(seconds)


@dataclass
class Lab:
    """An engine, two versions for it, and who knows what they say."""

    engine: ProcessEngine
    loop: Loop
    models: list[PreTrainedModel]
    updates: list[WeightUpdate]
    directory: Path

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run(work)


def spec(body: str, model: Path, **settings: Any) -> EngineSpec:
    chosen = {"max_length": 20_000, "slots": SLOTS, "dtype": "fp32", "kv_cache_bytes": 2**27, "enforce_eager": True}
    return EngineSpec(
        name=f"{body} engine",
        index=0,
        factory=BODIES[body],
        arguments={"settings": asdict(VllmSettings(model=str(model), **(chosen | settings)))},
        environment=environment(cpu_threads=1, multiprocessing=False),
        log=str(model.parent / f"{body}.log"),
    )


def run_alone(worker: str, directory: Path, job: Any, *out: str, seconds: float = 300.0) -> None:
    """Runs a module of this folder, and vLLM in it, in a process of its own, which leaves these files there."""
    (directory / "job.json").write_text(json.dumps(job))
    files = [str(directory / name) for name in ("job.json", *out)]
    variables = environment(cpu_threads=1, multiprocessing=False)
    subprocess.run(
        [sys.executable, "-m", f"tests.sidecar.vllm.{worker}", *files],
        env={**os.environ, **variables, "VLLM_LOGGING_LEVEL": "WARNING"},
        check=True,
        timeout=seconds,
    )


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.loop.call_soon_threadsafe(made.loop.stop)


@pytest.fixture(scope="session", params=list(BODIES))
def lab(request: pytest.FixtureRequest, loop: Loop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    directory = tmp_path_factory.mktemp(request.param)
    models = [random_model(MODEL, seed) for seed in (0, 1)]
    save_tiny_tokenizer(directory / "model", CHARACTERS)
    models[0].save_pretrained(directory / "model")
    updates = [publish(directory / "weights", version, tensors(model)) for version, model in enumerate(models)]
    engine_launcher = LocalEngineLauncher()
    engine = loop.run(engine_launcher.start(spec(request.param, directory / "model")))
    yield Lab(engine, loop, models, updates, directory)
    loop.run(engine.close())
    engine_launcher.close()
