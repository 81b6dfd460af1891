"""An engine without a model, for runs on a virtual clock: its speed is a function of how many requests run at once."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sidecar.protocol import NOTHING, Completion, EngineStatus, GenerateRequest, PauseMode, WeightUpdate

Rate = Callable[[int], float]
"""Returns the tokens that an engine samples in a second while so many requests run."""
Pace = Callable[[int], float]
"""Returns the share of that speed at which an engine samples with this version."""
ROUNDING = 1e-9
"""Share of a token by which sums of floats may miss a whole one."""


def even(version: int) -> float:
    """Returns 1: the speed is the same whatever the version."""
    return 1.0


@dataclass(eq=False)
class _Running:
    """A request that holds a slot.

    Attributes:
        request: the request.
        done: its completion.
        began, due: `SimulatedEngine._sampled` when its prompt is read, and when it will have its last token.
    """

    request: GenerateRequest
    done: asyncio.Future[Completion]
    began: float = 0.0
    due: float = 0.0


class SimulatedEngine:
    """Samples for each running request an equal share of the tokens that ``rate`` gives, and as many for each as its
    budget says, after ``prompt_cost`` tokens that nobody gets. Slots, ``min_version``, aborts and updates behave as
    `sidecar.protocol.Engine` says; an update takes ``read_seconds``, and then
    ``load_seconds`` in which nothing is sampled.
    """

    def __init__(
        self,
        rate: Rate,
        slots: int,
        load_seconds: float = 0.0,
        pace: Pace = even,
        prompt_cost: float = 0.0,
        read_seconds: float = 0.0,
    ) -> None:
        self._full_rate = rate
        self._pace = pace
        self._slots = slots
        self._load_seconds = load_seconds
        self._prompt_cost = prompt_cost
        self._read_seconds = read_seconds
        self._lineage = -1
        self._halted = 0
        self._sampled, self._at = 0.0, 0.0  # tokens that each request has got that ran all the time, and until when
        self._tokens, self._busy = 0.0, 0.0
        self._versions: list[tuple[float, int]] = []  # which served from which `_sampled` on
        self._running: dict[str, _Running] = {}
        self._waiting: list[tuple[int, int, _Running]] = []  # by priority, then as they came
        self._queue: list[tuple[float, int, _Running]] = []
        self._serial = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    async def generate(self, request: GenerateRequest) -> Completion:
        """Implements `Engine.generate`."""
        entry = _Running(request, asyncio.get_running_loop().create_future())
        self._advance()
        heapq.heappush(self._waiting, (request.priority, next(self._serial), entry))
        self._admit()
        try:
            return await entry.done
        finally:
            if not entry.done.done() or entry.done.cancelled():
                self._remove(entry)

    async def progress(self, request_id: str, seen: int) -> Completion:
        """Implements `Engine.progress`: nobody follows a request that has no text."""
        return NOTHING

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Implements `Engine.abort`."""
        self._advance()
        wanted = set(request_ids)
        found = [self._running[name] for name in request_ids if name in self._running]
        for entry in [*found, *(entry for *_, entry in self._waiting if entry.request.id in wanted)]:
            made = int(self._sampled - entry.began + ROUNDING)
            made = max(min(made, entry.request.sampling.max_new_tokens - 1), 0)
            if not entry.done.done():  # its caller was cancelled in this very moment
                entry.done.set_result(self._completion(entry, made if entry.due else 0, "abort"))
            self._remove(entry)

    async def score(self, token_ids: np.ndarray, routes: np.ndarray | None = None) -> np.ndarray:
        """Implements `Engine.score`: zeros."""
        return np.zeros(len(token_ids) - 1, np.float32)

    async def update_weights(self, update: WeightUpdate) -> None:
        """Implements `Engine.update_weights`, in flight."""
        if self._read_seconds > 0.0:
            await asyncio.sleep(self._read_seconds)
        await self.pause(PauseMode.KEEP)
        await asyncio.sleep(self._load_seconds)
        self._versions.append((self._sampled, update.version))
        self._lineage = update.lineage
        await self.resume()

    async def pause(self, mode: PauseMode) -> None:
        """Implements `Engine.pause`, whose requests keep their slots."""
        self._advance()
        self._halted += 1
        self._schedule()

    async def resume(self) -> None:
        """Implements `Engine.resume`."""
        self._advance()
        self._halted -= 1
        self._admit()

    async def status(self) -> EngineStatus:
        """Implements `Engine.status`."""
        self._advance()
        running, waiting = len(self._running), len(self._waiting)
        version, halted = self._version, self._halted > 0
        busy, tokens = self._busy, round(self._tokens)
        return EngineStatus(version, self._lineage, running, waiting, self._slots, halted, busy, tokens)

    async def close(self) -> None:
        """Implements `Engine.close`."""
        await self.abort([*self._running, *(entry.request.id for *_, entry in self._waiting)])

    @property
    def busy_seconds(self) -> float:
        """Seconds in which it has sampled."""
        self._advance()
        return self._busy

    @property
    def sampled_tokens(self) -> float:
        """Tokens that it has sampled, those of aborted requests included."""
        self._advance()
        return self._tokens

    def _rate(self, running: int) -> float:
        return self._full_rate(running) * self._pace(self._version)

    @property
    def _version(self) -> int:
        return self._versions[-1][1] if self._versions else -1

    def _begin(self, entry: _Running) -> None:
        entry.due = self._sampled + self._work(entry.request)
        entry.began = entry.due - entry.request.sampling.max_new_tokens
        self._running[entry.request.id] = entry
        heapq.heappush(self._queue, (entry.due, next(self._serial), entry))

    def _work(self, request: GenerateRequest) -> float:
        """Returns what a request takes that begins, in tokens."""
        return self._prompt_cost + request.sampling.max_new_tokens

    def _admit(self) -> None:
        """Begins requests that wait, the most urgent first, past those that want a newer version."""
        kept = []
        while self._waiting and len(self._running) < self._slots:
            waiting = heapq.heappop(self._waiting)
            if waiting[2].request.min_version <= self._version:
                self._begin(waiting[2])
            elif not waiting[2].done.done():
                kept.append(waiting)
        for waiting in kept:
            heapq.heappush(self._waiting, waiting)
        self._schedule()

    def _remove(self, entry: _Running) -> None:
        self._advance()
        if self._running.get(entry.request.id) is entry:
            del self._running[entry.request.id]
        else:
            self._waiting = [waiting for waiting in self._waiting if waiting[2] is not entry]
            heapq.heapify(self._waiting)
        self._admit()

    def _advance(self) -> None:
        """Counts what was sampled until now."""
        now = asyncio.get_running_loop().time()
        if (count := len(self._running)) and not self._halted and now > self._at:
            each = (now - self._at) * self._rate(count) / count
            self._sampled += each
            self._tokens += each * count
            self._busy += now - self._at
        self._at = now

    def _schedule(self) -> None:
        """Sets the timer to when the next request will be done. One that comes too early looks, and sets it anew."""
        while self._queue and self._queue[0][2].done.done():
            heapq.heappop(self._queue)
        if not self._queue or self._halted:
            return
        count, loop = len(self._running), asyncio.get_running_loop()
        due = self._at + max(self._queue[0][0] - self._sampled, 0.0) * count / self._rate(count)
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = loop.call_at(due, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._halted:
            self._advance()
            # Time is a float: where the last share of a token takes less than the clock can show, it is there.
            while self._queue and (self._queue[0][2].done.done() or self._queue[0][0] - self._sampled < self._grain()):
                entry = heapq.heappop(self._queue)[2]
                if not entry.done.done():
                    entry.done.set_result(self._completion(entry, entry.request.sampling.max_new_tokens, "length"))
                    del self._running[entry.request.id]
        self._admit()

    def _grain(self) -> float:
        return ROUNDING * max(1.0, self._sampled, self._at * self._rate(1))

    def _completion(self, entry: _Running, count: int, reason: str) -> Completion:
        """Returns so many tokens, each with the version that served when the one before it was there."""
        versions = np.full(count, self._version, np.int32)
        first = max(bisect_right(self._versions, entry.began + ROUNDING, key=lambda served: served[0]) - 1, 0)
        changes = self._versions[first:]
        for since, version in changes if len(changes) > 1 else ():  # a token that was begun keeps its version
            versions[max(int(np.ceil(since - entry.began - ROUNDING)), 0) :] = version
        return Completion(np.zeros(count, np.int32), np.zeros(count, np.float32), versions, reason)
