"""Engine slots: an engine of the pool, the requests that it runs, and its replacement when it dies.

An engine is replaced in a task of its own, because the callers that find it dead may be cancelled at any moment: they
wait for the task and share it. A successor takes the slot once it is ready; until then the slot is empty.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from rljax.ledger.announced import Announced
from rljax.rollout.engine_speed import EngineSpeed
from rljax.timeouts import timeout
from sidecar.protocol import Engine, EngineError, EngineStatus, EngineUnfitError, GenerateRequest

T = TypeVar("T")

EngineFactory = Callable[[int], Awaitable[Engine]]
"""Starts engine number i."""

STARTING = "it to start; where it needs longer, raise wait_timeout"
MAX_RESTARTS = 3
"""Restarts of one engine, successful or not, without a version loaded in between, or as `EnginePool.forgive` says,
before its slot is given up.
"""


class Scored(NamedTuple):
    """Log-probabilities of an engine, float32 ``[n - 1]``, and the version that it reports."""

    logprobs: np.ndarray
    version: int


async def scored(engine: Engine, token_ids: np.ndarray, routes: np.ndarray | None) -> Scored:
    """Returns the log-probabilities of these tokens by one engine, with the version that its status reports; for
    ``routes`` see `Engine.score`.
    """
    logprobs = await engine.score(token_ids, routes)
    return Scored(logprobs, (await engine.status()).version)


def raise_unless(tolerated: type[Exception] | tuple[type[Exception], ...], outcomes: Sequence[Any]) -> list[Any]:
    """Returns the outcomes, None for an EngineError. Raises the first exception among them that is not tolerated."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, tolerated):
            raise outcome
    return [None if isinstance(outcome, EngineError) else outcome for outcome in outcomes]


class SlotEvents(Protocol):
    """Receives the events of an engine slot, in its pool. The slot waits for those that are coroutines."""

    async def start_engine(self, slot: EngineSlot) -> Engine:
        """Starts an engine for an empty slot and returns it."""
        ...

    async def prepare(self, slot: EngineSlot, successor: Engine) -> None:
        """Makes a started successor ready to serve. What this raises ends the successor."""
        ...

    def fault(self, kind: str, message: str) -> None:
        """Reports a fault that the pool survives."""
        ...


class EngineSlot:
    """A place in the engine pool, whose engine is replaced when it dies or hangs.

    Attributes:
        engine: the engine in the slot; dead while ``replacement`` is there.
        requests: the requests that it runs, with the time-out that recalls each.
        affinities: how many of these have which affinity key.
        speed: of the engine, by its answers.
        questions: calls of `score` that run or wait.
        serves: the version that the engine has loaded, or its successor that is being made ready; None before.
        since: the first version that this engine has loaded; None before: of older ones it holds none.
        replacement: the task that starts a successor; None unless the slot is empty.
        failure: why the slot stays empty for good.
        answers: whether the engine has answered a request since it started.
        busy_seconds, tokens: of this engine, when last seen, and of all before it.
    """

    engine: Engine

    def __init__(
        self,
        index: int,
        events: SlotEvents,
        call_timeout: float,
    ) -> None:
        """Creates an empty slot; ``events`` is the pool, and ``call_timeout`` that of `EnginePool`, in seconds."""
        self.index = index
        self.requests: dict[str, asyncio.Timeout] = {}
        self.affinities: Counter[str] = Counter()
        self.speed = EngineSpeed()
        self.questions = 0
        self._question = asyncio.Lock()
        self.serves: Announced | None = None
        self.since: Announced | None = None
        self.replacement: asyncio.Task[None] | None = None
        self.failure: EngineError | None = None
        self.answers = False
        self.busy_seconds, self.tokens = 0.0, 0
        self._events = events
        self._call_timeout = call_timeout
        self._before = (0.0, 0)
        self._restarts = 0
        self._ended = False

    async def start(self) -> None:
        """Starts the first engine.

        Raises:
            EngineError: it did not start in time.
        """
        self.engine = await self.in_time(STARTING, self._events.start_engine(self))

    @property
    def started(self) -> bool:
        """True once there has been an engine."""
        return hasattr(self, "engine")

    def enter(self, request: GenerateRequest, recall: asyncio.Timeout) -> None:
        """Records a request that the engine is given; expiry of ``recall`` takes the request back."""
        self.requests[request.id] = recall
        self.affinities[request.affinity] += 1
        self.speed.begin(request.id, _now())

    def leave(self, request: GenerateRequest) -> None:
        """Removes a request; an affinity is forgotten with its last request."""
        del self.requests[request.id]
        self.speed.end(request.id, _now())
        self.affinities[request.affinity] -= 1
        if not self.affinities[request.affinity]:
            del self.affinities[request.affinity]

    async def close(self) -> None:
        """Ends the engine, and the search for its successor. Callers that still wait get an EngineError."""
        self.failure = self.failure or EngineError(f"engine {self.index} was closed")
        if self.replacement is not None:
            self.replacement.cancel()
            await asyncio.gather(self.replacement, return_exceptions=True)
        await self._end()

    @property
    def alive(self) -> bool:
        """True while there is an engine to be asked."""
        return self.replacement is None and self.failure is None

    async def ask(self, what: str, call: Callable[[Engine], Awaitable[T]]) -> T:
        """Calls the engine and returns its answer.

        Raises:
            EngineError: it died or hangs, and is being replaced.
        """
        engine = self.engine
        try:
            answer = await self.in_time(what, call(engine))
        except EngineError as error:
            self.replace(engine, error)
            raise
        if not self._has_slot(engine):
            raise EngineError(f"engine {self.index} was given up meanwhile")
        return answer

    async def score(self, token_ids: np.ndarray, routes: np.ndarray | None) -> Scored:
        """Returns the log-probabilities of tokens, like `ask`; one such question at a time, so that who gives up waits
        no more and the engine is not taken to hang. See `Engine.score`.
        """
        what = f"the log-probabilities of {len(token_ids)} tokens"
        self.questions += 1
        try:
            async with self._question:
                if not self.alive:
                    raise EngineError(f"engine {self.index} was lost meanwhile")
                found = await self.ask(what, lambda engine: scored(engine, token_ids, routes))
            self.answers = True
            return found
        finally:
            self.questions -= 1

    async def check(self) -> None:
        """Asks the engine for a sign of life, like `ask`."""
        await self.ask("a sign of life", lambda engine: engine.abort([]))  # by the thread that generates
        await self.status()  # of vLLM's end this alone tells

    async def loaded(self, announced: Announced, call: Callable[[Engine], Awaitable[None]]) -> None:
        """Loads a version by ``call``, like `ask`, and records that the slot serves it."""
        await self.ask(f"version {announced.version} to load", call)
        self.serves, self.since = announced, self.since or announced
        self.forgive()

    def answered(self, engine: Engine, request: GenerateRequest, tokens: int) -> None:
        """Records that this engine answered a request by so many tokens, unless it has lost the slot meanwhile."""
        if self._has_slot(engine):
            self.answers = True
            self.speed.answered(request.id, tokens, _now())

    def forgive(self) -> None:
        """Begins anew to count the restarts in a row."""
        self._restarts = 0

    def replace(self, dead: Engine, error: Exception) -> None:
        """Starts to replace a dead engine in a task of its own, unless that has begun or the
        pool is closing. Does not block.
        """
        if self._has_slot(dead) and self.failure is None:
            self.serves = self.since = None
            self.answers = False
            self.speed.forget()
            self.replacement = asyncio.ensure_future(self._replace(error))

    async def status(self) -> EngineStatus | None:
        """Returns the engine's status; None while the slot is empty. An engine that does not answer is replaced."""
        engine = self.engine
        if self.replacement is not None:
            return None
        try:
            status = await self.in_time("its status", engine.status())
        except EngineError as error:
            self.replace(engine, error)
            return None
        if not self._has_slot(engine):
            return None
        self._add_totals(status)
        return status

    async def in_time(self, what: str, answer: Awaitable[T]) -> T:
        """Returns the answer, awaited for at most ``call_timeout`` seconds.

        Raises:
            EngineError: it took too long: the engine hangs.
        """
        try:
            async with timeout(self._call_timeout) as limit:
                return await answer
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"engine {self.index} hangs: waited {self._call_timeout:g} s for {what}"
            raise EngineError(message) from None

    def _has_slot(self, engine: Engine) -> bool:
        return self.engine is engine and self.replacement is None

    def _add_totals(self, status: EngineStatus) -> None:
        self.busy_seconds = self._before[0] + status.busy_seconds
        self.tokens = self._before[1] + status.tokens

    async def _replace(self, error: Exception) -> None:
        try:
            self.engine = await self._successor(error)
        except BaseException as failure:  # whatever it was, present and later callers get it
            lasting = failure if isinstance(failure, EngineError) else EngineError(_describe(failure))
            if self.failure is None:
                self.failure = lasting
                self._events.fault("engine_lost", str(lasting))
            self._recall()
            if not isinstance(failure, Exception):
                raise
        else:
            self._ended = False
            self._before = (self.busy_seconds, self.tokens)
            self.replacement = None

    async def _successor(self, error: Exception) -> Engine:
        while not isinstance(error, EngineUnfitError):
            self._restarts += 1
            self._events.fault("engine_died", f"engine {self.index}: {_describe(error)}")
            if self._restarts > MAX_RESTARTS:
                message = f"engine {self.index} died {self._restarts} times in a row; the last time: {_describe(error)}"
                raise EngineError(message) from error
            if not self._ended:
                with contextlib.suppress(EngineError):  # a dead engine has no newer totals than those last seen
                    self._add_totals(await self.in_time("its status", self.engine.status()))
                await self._end()
                self._recall()
            try:
                return await self._ready()
            except Exception as failed:  # a factory may raise anything; one not ready counts as dead
                error = failed
        await self._end()
        raise error

    async def _ready(self) -> Engine:
        """Starts a new engine, makes it ready to serve and returns it."""
        engine = await self.in_time(STARTING, self._events.start_engine(self))
        try:
            await self._events.prepare(self, engine)
        except BaseException:
            await self._close(engine)
            raise
        return engine

    async def _end(self) -> None:
        if not self._ended:
            await self._close(self.engine)
            self._ended = True

    def _recall(self) -> None:
        for recall in self.requests.values():
            with contextlib.suppress(RuntimeError):  # a dead engine holds its requests no more
                recall.reschedule(_now())

    async def _close(self, engine: Engine) -> None:
        """Closes an engine that is given up; one that does not end is reported and left behind."""
        try:
            await self.in_time("it to end", engine.close())
        except EngineError as error:
            self._events.fault("engine_left_behind", f"engine {self.index}: {error}")


def _now() -> float:
    return asyncio.get_running_loop().time()


def _describe(error: BaseException) -> str:
    return str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
