"""Gauges: means between takes, and sources that raise or hang."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from rljax.observe import resources
from rljax.observe.resources import Resources
from tests.waiting import HANGS, until


def fail() -> dict[str, float]:
    raise RuntimeError("no such device")


def test_host_gauges_are_there(tmp_path: Path) -> None:
    watch = Resources(run_dir=tmp_path, seconds=60)
    watch.sample()
    found = watch.latest()
    watch.close()
    assert {
        f"host/{n}" for n in ("cpu_percent", "process_cpu_percent", "memory_percent", "rss_mib", "disk_free_gib")
    } <= set(found)
    assert 5 < found["host/rss_mib"] < 1e6


def test_take_is_the_mean_since_the_last_take() -> None:
    values = iter([1.0, 2.0, 6.0, 10.0])
    watch = Resources({"queue": lambda: {"waiting": next(values)}}, seconds=60)
    until(lambda: "queue/waiting" in watch.latest())  # the first sample is the thread's own
    watch.sample()
    watch.sample()
    assert watch.take()["queue/waiting"] == 3.0
    assert watch.take()["queue/waiting"] == 6.0
    watch.sample()
    assert watch.take()["queue/waiting"] == 10.0
    watch.close()


def test_a_source_that_raises_is_said_once_and_costs_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        watch = Resources({"device": fail, "queue": lambda: {"ready": 3, "odd": float("nan")}}, seconds=60)
        watch.sample()
        watch.sample()
        found = watch.latest()
        watch.close()
    assert found["queue/ready"] == 3
    assert "queue/odd" not in found
    assert caplog.text.count("no such device") == 1


def test_a_source_that_hangs_is_named(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "STUCK_SECONDS", 0.05)
    release = threading.Event()

    def hang() -> dict[str, float]:
        release.wait(HANGS)
        return {}

    with caplog.at_level(logging.WARNING):
        watch = Resources({"device": hang}, seconds=60)
        until(lambda: watch.latest() is not None and "device" in caplog.text)
        watch.take()
    release.set()
    watch.close()
    assert caplog.text.count("have not answered") == 1
