"""A server in a thread of the tests, the run that it follows, and the learner of each of its versions."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from openai import AsyncOpenAI, OpenAI

import rljax
from rljax.config.schema import Config
from rljax.launch.engine_launchers import ENGINE_LAUNCHERS
from rljax.learner.learner import Learner
from rljax.ledger import versions
from rljax.models.files import stored_tensors
from rljax.pipeline.assemble.run import Model, open_ledger, open_model
from rljax.pipeline.run_dir import RunDir
from rljax.pipeline.serve.key import open_key
from rljax.pipeline.serve.service import Service
from rljax.weights.publisher import OrbaxPublisher
from sidecar.protocol import Engine
from tests.waiting import HANGS

CONTEXT = 600
SLOTS = 16
SMALLEST = Path(__file__).parents[2] / "e2e" / "smallest.py"
T = TypeVar("T")


def config_of(run_dir: Path, **keys: Any) -> Config:
    given = {
        "mode": "serve",
        "run_dir": str(run_dir),
        "model.tiny.characters": None,
        "sidecar.max_model_len": CONTEXT,
        "sidecar.max_concurrency": SLOTS,
        "serve.port": 0,
        "serve.model_name": "tiny",
    }
    return rljax.load_config(str(SMALLEST), **(given | keys))


class Versions:
    """A run without a learner: what it announces, and who scores it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.run = RunDir.create(config)
        self.model: Model = open_model(config, self.run)
        self.db = open_ledger(config, self.run)
        self.learners: list[Learner] = []

    def announce(self) -> None:
        """Announces the next version: sharper weights than those that the model came with, others each time."""
        version = len(self.learners)
        scale = np.float32(3.0 + version)
        tensors = {
            name: np.asarray(tensor) * (scale if len(tensor.shape) > 1 else 1)
            for name, tensor in stored_tensors(self.model.directory).items()
        }
        path = OrbaxPublisher(self.run.weights).publish(version, 0, tensors, model="tiny", dtype="fp32")
        learner = Learner(self.config, self.model.architecture)
        learner.load(tensors)
        self.learners.append(learner)
        versions.announce(self.db, 0, version, self.run.announced_path(path))

    def scores(self, prompt: list[int], tokens: list[int], version: int = 0) -> np.ndarray:
        """The learner's log-probabilities of these tokens behind the prompt."""
        return self.learners[version].score(np.asarray([*prompt, *tokens], np.int32))[len(prompt) - 1 :]


class Served:
    """A server, on an event loop in a thread."""

    def __init__(self, config: Config, run: Versions) -> None:
        self.run = run
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._launcher = ENGINE_LAUNCHERS[config.launcher](config)
        self.service = Service(config, run.run, run.model, self._launcher, open_key(config, run.run.root / "serve"))
        self.do(self.service.open())
        self.key = Path(self.service.key.place).read_text().strip()
        self.host, self.port = "127.0.0.1", int(self.service.url.rpartition(":")[2].partition("/")[0])

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(HANGS)

    @property
    def engine(self) -> Engine:
        return self.service.pool._slots[0].engine

    def client(self, **options: Any) -> OpenAI:
        return OpenAI(base_url=self.service.url, **({"api_key": self.key, "max_retries": 0} | options))

    def async_client(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self.service.url, api_key=self.key, max_retries=0, timeout=HANGS)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + HANGS
        while not condition():
            assert time.monotonic() < end, f"waited too long for {what}"
            time.sleep(0.005)

    def busy(self) -> int:
        status = self.do(self.engine.status())
        return status.running + status.waiting

    def close(self) -> None:
        self.do(self.service.close())
        self._launcher.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(HANGS)


@contextlib.contextmanager
def serving(run_dir: Path, **keys: Any) -> Iterator[Served]:
    """Follows a run that has announced version 0."""
    config = config_of(run_dir, **({"serve.follow": True} | keys))
    run = Versions(config)
    run.announce()
    served = Served(config, run)
    try:
        yield served
    finally:
        served.close()
        run.db.close()
