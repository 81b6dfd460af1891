"""The thread of a stepped engine: when those that wait are answered."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Sequence
from unittest import mock

import numpy as np
import pytest

from sidecar.protocol import Completion, EngineError, GenerateRequest, SamplingParams, UpdatePolicy
from sidecar.stepping.jobs import Job
from sidecar.stepping.stepper import Call, Stepper
from tests.waiting import HANGS


class Slow:
    """A batch of one request, whose every step waits until it may end."""

    slots, version, tokens_sampled = 1, -1, 0

    def __init__(self) -> None:
        self._job: Job | None = None
        self.may_end = threading.Event()

    @property
    def running(self) -> int:
        return int(self._job is not None)

    def holds(self, version: int) -> bool:
        return True

    def load(self, weights: object, version: int, lineage: int, keep_kv: bool = False) -> Sequence[Job]:
        self.version = version
        return []

    def admit(self, jobs: Sequence[Job]) -> None:
        for self._job in jobs:
            pass

    def step(self) -> Sequence[tuple[Job, str]]:
        assert self.may_end.wait(HANGS)
        job, self._job = self._job, None
        return [] if job is None else [(job, "stop")]

    def close(self) -> None:
        pass


def test_an_update_is_answered_before_the_step_behind_it() -> None:
    """That step reads all running requests again: of a model of 135M it was two thirds of a push."""

    async def main() -> str:
        loop, batch = asyncio.get_running_loop(), Slow()
        stepper = Stepper(batch, "engine")  # type: ignore[arg-type]
        request = GenerateRequest("a", np.asarray([7], np.int32), SamplingParams(max_new_tokens=1))
        job = Job(request, 0, loop, loop.create_future())
        stepper.submit(Call(functools.partial(stepper.add, job=job), loop, job.future))
        update = functools.partial(stepper.update, weights={}, version=0, lineage=1, policy=UpdatePolicy.IN_FLIGHT)
        await asyncio.wait_for(stepper.call(update), HANGS / 2)
        batch.may_end.set()
        done = await job.future
        await stepper.call(stepper.close)
        return str(done.finish_reason)

    assert asyncio.run(main()) == "stop"


class Noting(Slow):
    """A batch that notes how many requests it is given at once, and ends them with its next step."""

    slots, version = 8, 0

    def __init__(self) -> None:
        super().__init__()
        self.admitted: list[int] = []
        self._jobs: list[Job] = []

    @property
    def running(self) -> int:
        return len(self._jobs)

    def admit(self, jobs: Sequence[Job]) -> None:
        self._jobs += jobs
        self.admitted.append(len(jobs))

    def step(self) -> Sequence[tuple[Job, str]]:
        jobs, self._jobs = self._jobs, []
        return [(job, "stop") for job in jobs]

    def remove(self, job: Job) -> None:
        self._jobs = [one for one in self._jobs if one is not job]


def asked(stepper: Stepper, name: str) -> asyncio.Future[Completion]:
    loop = asyncio.get_running_loop()
    job = Job(GenerateRequest(name, np.asarray([7], np.int32), SamplingParams()), 0, loop, loop.create_future())
    stepper.submit_together(Call(functools.partial(stepper.add, job=job), loop, job.future))
    return job.future


def test_requests_that_are_made_together_begin_together() -> None:
    """An idle engine began with the first of 64, and the others waited until it had sampled for that alone."""

    async def main() -> list[int]:
        batch = Noting()
        stepper = Stepper(batch, "engine")  # type: ignore[arg-type]
        with mock.patch.object(stepper, "submit", wraps=stepper.submit) as submit:
            await asyncio.wait_for(asyncio.gather(*(asked(stepper, str(i)) for i in range(8))), HANGS)
        await stepper.call(stepper.close)
        return [*(len(call.args) for call in submit.call_args_list), *batch.admitted]

    assert asyncio.run(main()) == [8, 8]


def test_calls_of_a_loop_keep_their_order_and_end_with_the_engine() -> None:
    async def main() -> str:
        loop, stepper = asyncio.get_running_loop(), Stepper(Noting(), "engine")  # type: ignore[arg-type]
        aborted, closed = loop.create_future(), loop.create_future()
        first = asked(stepper, "a")
        stepper.submit_together(Call(lambda _: stepper.abort(["a"]), loop, aborted))
        await asyncio.wait_for(aborted, HANGS)
        stepper.submit_together(Call(stepper.close, loop, closed))
        taken_with_it = asked(stepper, "b")
        await asyncio.wait_for(closed, HANGS)
        for late in (taken_with_it, asked(stepper, "c"), stepper.call(lambda _: None)):
            with pytest.raises(EngineError, match="engine was closed"):
                await asyncio.wait_for(late, HANGS)
        return (await first).finish_reason

    assert asyncio.run(main()) == "abort"


class Draining(Noting):
    """A batch whose requests run until they may end, and which cannot load."""

    def __init__(self) -> None:
        super().__init__()
        self.began = threading.Event()

    def admit(self, jobs: Sequence[Job]) -> None:
        super().admit(jobs)
        self.began.set()

    def step(self) -> Sequence[tuple[Job, str]]:
        return super().step() if self.may_end.is_set() else []

    def load(self, weights: object, version: int, lineage: int, keep_kv: bool = False) -> Sequence[Job]:
        raise MemoryError("no room")


def test_of_two_updates_behind_a_drain_both_end_with_the_engine() -> None:
    async def main() -> None:
        loop, batch = asyncio.get_running_loop(), Draining()
        stepper = Stepper(batch, "engine")  # type: ignore[arg-type]
        running, updates = asked(stepper, "a"), [loop.create_future(), loop.create_future()]
        await asyncio.to_thread(batch.began.wait, HANGS)
        for version, future in enumerate(updates, start=1):
            update = functools.partial(
                stepper.update, weights={}, version=version, lineage=1, policy=UpdatePolicy.DRAIN
            )
            stepper.submit_together(Call(update, loop, future))
        stepper.submit_together(Call(lambda _: batch.may_end.set(), loop, loop.create_future()))
        for future in updates:
            with pytest.raises(EngineError, match="engine died: MemoryError: no room"):
                await asyncio.wait_for(future, HANGS)
        assert (await running).finish_reason == "stop"

    asyncio.run(main())
