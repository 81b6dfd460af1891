"""Queue of the requests that wait for a slot or for a version."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from sidecar.stepping.jobs import Job


class WaitingLine:
    """Queues jobs by priority, then arrival; those that need newer weights are kept aside until `version_changed`.

    A job whose `done` is set is skipped, so that leaving the queue costs nothing.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Job]] = []
        self._aside: list[Job] = []

    def push(self, jobs: Iterable[Job]) -> None:
        """Adds jobs to the queue."""
        for job in jobs:
            heapq.heappush(self._heap, (job.request.priority, job.order, job))

    def first(self, version: int) -> Job | None:
        """Returns the first job that weights `version` may serve; it stays in the queue."""
        while self.ready():
            job = self._heap[0][2]
            if job.request.min_version <= version:
                return job
            heapq.heappop(self._heap)
            self._aside.append(job)
        return None

    def take(self, count: int, version: int) -> list[Job]:
        """Removes and returns up to `count` jobs, the first ones that weights `version` may serve."""
        taken: list[Job] = []
        while len(taken) < count and (job := self.first(version)) is not None:
            heapq.heappop(self._heap)
            taken.append(job)
        return taken

    def version_changed(self) -> None:
        """Puts the jobs that were kept aside back into the queue."""
        aside, self._aside = self._aside, []
        self.push(aside)

    def ready(self) -> bool:
        """Returns whether `take` may return something."""
        while self._heap and self._heap[0][2].done:
            heapq.heappop(self._heap)
        return bool(self._heap)

    def empty(self) -> bool:
        """Returns whether no request waits, for a slot or for a version."""
        self._aside = [job for job in self._aside if not job.done]
        return not self.ready() and not self._aside
