from __future__ import annotations

from sidecar.protocol import GenerateRequest, SamplingParams
from sidecar.stepping.jobs import Job
from sidecar.stepping.waiting import WaitingLine


def job(order: int, priority: int = 0, min_version: int = 0) -> Job:
    request = GenerateRequest(str(order), None, SamplingParams(), min_version, priority=priority)
    return Job(request, order, None, None)


def test_priority_then_arrival():
    jobs = [job(0, 1), job(1), job(2), job(3, -1)]
    line = WaitingLine()
    line.push(jobs)
    assert [j.order for j in line.take(3, 0)] == [3, 1, 2]
    assert [j.order for j in line.take(3, 0)] == [0]
    assert line.empty()


def test_those_who_need_newer_weights_stand_aside():
    line = WaitingLine()
    line.push([job(0, min_version=2), job(1), job(2, min_version=1)])
    assert [j.order for j in line.take(9, 0)] == [1]
    assert not line.ready()
    assert not line.empty()
    line.version_changed()
    assert [j.order for j in line.take(9, 1)] == [2]
    line.version_changed()
    assert [j.order for j in line.take(9, 2)] == [0]


def test_answered_jobs_are_skipped():
    jobs = [job(0), job(1), job(2, min_version=5)]
    line = WaitingLine()
    line.push(jobs)
    jobs[0].done = True
    assert [j.order for j in line.take(1, 0)] == [1]
    line.take(1, 0)
    jobs[2].done = True
    assert line.empty()
