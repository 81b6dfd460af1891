"""Mode serve: engines with the weights that were asked for, behind the endpoint, until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from aiohttp import web

from rljax.config.schema import Config
from rljax.config.validate import ConfigError
from rljax.observe.trace import NullTrace
from rljax.pipeline.assemble.engines import make_pool
from rljax.pipeline.assemble.run import Model
from rljax.pipeline.run_dir import RunDir
from rljax.pipeline.serve.app import Endpoint
from rljax.pipeline.serve.key import Key
from rljax.pipeline.serve.parameters import Reader
from rljax.pipeline.serve.weights import CheckpointWeights, PublishedWeights
from rljax.rollout.async_utils import all_or_none
from rljax.rollout.engine_events import FaultLog
from rljax.rollout.engine_pool import EnginePool
from sidecar.hosting.spec import EngineLauncher
from sidecar.protocol import EngineError

log = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "::1", "localhost")
WATCH_SECONDS = 1.0
"""Seconds between looks whether the engines live."""
CUT_SECONDS = 1.0
"""Seconds that answers have to end in once they were told to, before their connections are closed."""


class Service:
    """Engines behind an endpoint.

    Attributes:
        url: of the endpoint, as clients write it.
        name: what requests call the model.
        key: that clients must show.
        pool: the engines.
        endpoint: what answers.
    """

    url: str
    pool: EnginePool
    endpoint: Endpoint

    def __init__(self, config: Config, run: RunDir, model: Model, engine_launcher: EngineLauncher, key: Key) -> None:
        """Takes what `open` needs. Closing ``engine_launcher``, which starts the engines, is the caller's."""
        self.key = key
        self._config = config
        self._run = run
        self._model = model
        self._engine_launcher = engine_launcher
        self.name = config.serve.model_name or run.root.absolute().name
        self._parts = contextlib.AsyncExitStack()
        self._at_work: asyncio.Future[list[None]]

    async def open(self) -> None:
        """Starts the engines, loads the weights, and listens.

        Raises:
            ConfigError: there are no such weights, or the address cannot be listened at.
            PublishError: there is no room for the weights.
            WeightUpdateError, EngineError: the engines do not start, or cannot load the weights.
        """
        async with contextlib.AsyncExitStack() as parts:
            weights = self._weights()
            parts.callback(weights.close)
            self.pool = make_pool(self._config, self._run, self._model, NullTrace(), FaultLog(), self._engine_launcher)
            parts.push_async_callback(self.pool.close)
            await self.pool.start()
            await weights.load(self.pool)
            reader = Reader(self._model, self.name, self._config.context)
            most, seconds = self._config.serve.max_requests, self._config.wait_timeout
            self.endpoint = Endpoint(self.pool, reader, self.key.text, most=most, seconds=seconds)
            self._at_work = asyncio.ensure_future(all_or_none((weights.follow(self.pool), self._watch())))
            parts.push_async_callback(self._stop_work)
            await self._listen(parts)
            self._parts = parts.pop_all()

    async def close(self) -> None:
        """Stops listening, and ends the engines."""
        await self._parts.aclose()

    async def until(self, stop: asyncio.Event) -> None:
        """Waits until ``stop`` is set; then ends what is under way, within the limit of the config.

        Raises:
            EngineError: no engine is left.
            LedgerError: the run that is followed cannot be read any more.
        """
        stopped = asyncio.ensure_future(stop.wait())
        waits: set[asyncio.Future[Any]] = {stopped, self.endpoint.failure, self._at_work}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if self.endpoint.failure.done():
            raise self.endpoint.failure.result()
        if self._at_work.done():
            self._at_work.result()
        await self._drain()

    async def _watch(self) -> None:
        """Looks whether the engines live while nobody asks them anything."""
        while True:
            try:
                await self.pool.check()
            except EngineError as error:
                self.endpoint.fail(error)
                return
            await asyncio.sleep(WATCH_SECONDS)

    async def _drain(self) -> None:
        self.endpoint.draining = True
        await self._site.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.serve.drain_timeout):
                await self.endpoint.idle.wait()
        if self.endpoint.in_flight:
            log.warning("%d answers were cut off after %g s", self.endpoint.in_flight, self._config.serve.drain_timeout)

    def _weights(self) -> CheckpointWeights | PublishedWeights:
        directory = self._run.root / "serve"
        if self._config.serve.published:
            return PublishedWeights(self._config, self._run, self._model, directory)
        return CheckpointWeights(self._config, self._run, self._model, directory)

    async def _listen(self, parts: contextlib.AsyncExitStack) -> None:
        serve = self._config.serve
        runner = web.AppRunner(
            self.endpoint.application,
            access_log=None,
            handler_cancellation=True,  # a client that leaves frees the slots of its answers
            lingering_time=0,  # what is refused is not read to its end
            shutdown_timeout=CUT_SECONDS,
        )
        await runner.setup()
        parts.push_async_callback(runner.cleanup)
        self._site = web.TCPSite(runner, serve.host, serve.port)
        try:
            await self._site.start()
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"serve.host={serve.host!r}, serve.port={serve.port}: cannot be listened at ({reason}); choose another"
            ) from None
        port = runner.addresses[0][1]
        self.url = f"http://{f'[{serve.host}]' if ':' in serve.host else serve.host}:{port}/v1"
        if serve.host not in LOOPBACK:
            log.warning(
                "serve.host=%s: others can reach this address%s; what is said here is not encrypted",
                serve.host,
                "" if self.key.text else ", and no key is required of them",
            )

    async def _stop_work(self) -> None:
        self._at_work.cancel()
        await asyncio.wait([self._at_work])


async def serve(
    config: Config,
    run: RunDir,
    model: Model,
    engine_launcher: EngineLauncher,
    key: Key,
    say: Callable[[str], None],
    on_signals: Callable[[Callable[[], None]], None],
) -> None:
    """Serves until a signal; ``on_signals`` is handed a function that asks for the end.

    Raises:
        ConfigError: something cannot be served, or not there.
        PublishError: there is no room for the weights.
        EngineError: no engine is left.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def end() -> None:
        loop.call_soon_threadsafe(stop.set)

    on_signals(end)
    service = Service(config, run, model, engine_launcher, key)
    opening, stopped = asyncio.ensure_future(service.open()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([opening, stopped], return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            opening.result()
            assert service.pool.serving is not None
            say(f"serving {service.name} at {service.url}, weights after {service.pool.serving.version} batches")
            say(f"key: in {key.place}" if key.place else "no key is required")
            await service.until(stop)
    finally:
        for task in (opening, stopped):
            task.cancel()
        await asyncio.wait([opening, stopped])
        await service.close()
