"""The report of a run that goes on: written beside training, as often as asked and as its share of the time allows."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from rljax.observe.report.background import ReportThread


class Writing:
    """Writes when it may, and says how often it has begun."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.began = threading.Semaphore(0)
        self.may = threading.Semaphore(0)
        self.count = 0
        self._seconds = seconds

    def __call__(self) -> None:
        self.count += 1
        self.began.release()
        assert self.may.acquire(timeout=60)
        time.sleep(self._seconds)  # as long as a report takes


def test_who_asks_does_not_wait_and_what_is_asked_meanwhile_is_one_report() -> None:
    write = Writing()
    thread = ReportThread(write, share=1.0)
    thread.ask()
    assert write.began.acquire(timeout=60)
    for _ in range(5):
        thread.ask()  # while the first is under way
    assert write.count == 1
    write.may.release(2)
    assert write.began.acquire(timeout=60)
    write.may.release()
    assert not write.began.acquire(timeout=0.3), "nobody asked for a third"
    thread.close()
    assert write.count == 2


def test_what_has_been_written_rests_so_that_reports_take_their_share() -> None:
    write = Writing(0.05)
    write.may.release(2)
    thread = ReportThread(write, share=0.1)
    began = time.monotonic()
    for _ in range(2):
        thread.ask()
        assert write.began.acquire(timeout=60)
    assert time.monotonic() - began >= 0.5, "0.05 s of writing and 0.45 of rest"
    thread.close()


def test_closing_waits_for_what_is_written_and_writes_no_more(caplog: pytest.LogCaptureFixture) -> None:
    write = Writing()
    thread = ReportThread(write)
    thread.ask()
    assert write.began.acquire(timeout=60)
    thread.ask()
    closing = threading.Thread(target=thread.close)
    closing.start()
    assert closing.is_alive()
    write.may.release(2)
    closing.join(60)
    assert not closing.is_alive()
    assert write.count == 1


def test_a_report_that_fails_is_said_once_and_the_next_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    tried = threading.Semaphore(0)

    def write() -> None:
        tried.release()
        raise RuntimeError("no page")

    thread = ReportThread(write, share=1.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            thread.ask()
            assert tried.acquire(timeout=60)
        thread.close()
    assert [record.getMessage() for record in caplog.records] == [
        "RuntimeError: no page; report.html is as it was before (said once)"
    ]


def test_a_thread_that_was_never_asked_closes_at_once() -> None:
    ReportThread(lambda: None).close()
