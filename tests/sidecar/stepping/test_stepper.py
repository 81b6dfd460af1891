"""The thread of a stepped engine: when those that wait are answered."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Sequence

import numpy as np

from sidecar.protocol import GenerateRequest, SamplingParams, UpdatePolicy
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
