"""The trace: parts of several processes become one file in Chrome's Trace Event Format."""

from __future__ import annotations

import itertools
import json
import logging
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljax.observe.trace import NullTrace, Trace, part_path
from rljax.observe.trace_merge import merge_traces

T = 1_700_000_000.0


def load(path: Path | None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    assert path is not None
    found = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    return found["traceEvents"], found["otherData"]


def tracks(events: list[dict[str, Any]]) -> dict[tuple[int, int], tuple[str, str]]:
    """Names of process and thread by (pid, tid), as a viewer resolves them."""
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    return {key: (processes[key[0]], name) for key, name in threads.items()}


def test_parts_of_two_processes_become_one_trace(tmp_path: Path) -> None:
    trainer = Trace(part_path(tmp_path, "trainer"), 100)
    explorer = Trace(part_path(tmp_path, "explorer b/1"), 100, role="explorer b/1")
    trainer.span("learner", "train", T + 1, T + 1.5, step=3)
    trainer.instant("learner", "checkpoint", T + 1.25)
    explorer.in_flight("b/1 · attempts", "digits/0/7", T, T + 2, reward=0.5)
    explorer.span("engine-0", "decode", T + 0.5, T + 0.75)
    explorer.counter("queue", T + 1, waiting=4.0)
    trainer.close()
    explorer.close()
    events, other = load(merge_traces(tmp_path))
    names = tracks(events)
    assert set(names.values()) == {
        ("trainer", "learner"),
        ("b/1", "attempts"),
        ("explorer b/1", "engine-0"),
        ("explorer b/1", "queue"),
    }
    spans = {e["name"]: e for e in events if e["ph"] == "X"}
    assert (spans["train"]["ts"], spans["train"]["dur"]) == (1e6, 5e5)
    assert (spans["digits/0/7"]["ts"], spans["digits/0/7"]["dur"]) == (0, 2e6)
    assert names[spans["train"]["pid"], spans["train"]["tid"]] == ("trainer", "learner")
    assert spans["train"]["args"] == {"step": 3}
    assert next(e for e in events if e["ph"] == "i")["ts"] == 1.25e6
    assert next(e for e in events if e["ph"] == "C")["args"] == {"waiting": 4.0}
    assert other["dropped_events"] == 0
    assert other["first_event_unix_seconds"] == T


def test_a_resumed_process_adds_to_its_tracks(tmp_path: Path) -> None:
    for life in range(2):
        trace = Trace(part_path(tmp_path, "trainer"), 100)
        trace.span("learner", f"life {life}", T + life, T + life + 0.5)
        trace.close()
    events, _ = load(merge_traces(tmp_path))
    assert set(tracks(events).values()) == {("trainer", "learner")}
    assert [e["name"] for e in events if e["ph"] == "X"] == ["life 0", "life 1"]


def test_the_newest_events_are_kept_and_the_dropped_counted(tmp_path: Path) -> None:
    trace = Trace(part_path(tmp_path, "trainer"), 100)
    for i in range(1000):
        trace.span("learner", str(i), T + i, T + i + 1)
        if i % 50 == 49:
            trace.flush()
    trace.close()
    events, other = load(merge_traces(tmp_path))
    kept = [int(e["name"]) for e in events if e["ph"] == "X"]
    assert 50 <= len(kept) <= 100
    assert kept == list(range(1000 - len(kept), 1000))
    assert other["dropped_events"] == 1000 - len(kept)
    events, other = load(merge_traces(tmp_path, limit=10))
    assert [int(e["name"]) for e in events if e["ph"] == "X"] == list(range(990, 1000))
    assert other["dropped_events"] == 990


def test_a_burst_between_two_writings_is_bounded(tmp_path: Path) -> None:
    trace = Trace(part_path(tmp_path, "trainer"), 10, flush_seconds=60)
    for i in range(25):
        trace.instant("learner", str(i), T + i)
    trace.close()
    events, other = load(merge_traces(tmp_path))
    assert len([e for e in events if e["ph"] == "i"]) + other["dropped_events"] == 25
    assert other["dropped_events"] >= 15


def test_spans_that_overlap_get_lanes(tmp_path: Path) -> None:
    trace = Trace(part_path(tmp_path, "e"), 100)
    trace.span("t", "outer", T, T + 10)
    trace.span("t", "inner", T + 1, T + 2)
    trace.span("t", "crossing", T + 5, T + 12)
    trace.span("t", "after", T + 10, T + 11)
    trace.close()
    events, _ = load(merge_traces(tmp_path))
    names = tracks(events)
    lane = {e["name"]: names[e["pid"], e["tid"]][1] for e in events if e["ph"] == "X"}
    assert lane == {"outer": "t", "inner": "t", "crossing": "t (2)", "after": "t"}


def test_odd_arguments_are_still_json(tmp_path: Path) -> None:
    trace = Trace(part_path(tmp_path, "e"), 100)
    trace.span("t", "odd “name”\n", T, T - 1, nan=float("nan"), path=Path("x"), number=1)
    trace.close()
    events, _ = load(merge_traces(tmp_path))
    (span,) = [e for e in events if e["ph"] == "X"]
    assert span["name"] == "odd “name”\n"
    assert span["dur"] == 0
    assert span["args"]["nan"] == "nan"
    assert span["args"]["path"] == "x"


def test_what_a_killed_process_left_is_read(tmp_path: Path) -> None:
    trace = Trace(part_path(tmp_path, "e"), 100)
    trace.span("t", "whole", T, T + 1)
    trace.close()
    (part,) = (tmp_path / "trace").iterdir()
    part.write_text(part.read_text() + '["X","t","torn",17000')
    events, _ = load(merge_traces(tmp_path))
    assert [e["name"] for e in events if e["ph"] == "X"] == ["whole"]


def test_engines_are_ordered_by_number(tmp_path: Path) -> None:
    trace = Trace(part_path(tmp_path, "learner"), 100)
    for name in ("explorer engine 10 · requests", "explorer engine 9 · requests", "explorer · versions", "learner"):
        trace.instant(name, "x", T)
    trace.close()
    events, _ = load(merge_traces(tmp_path))
    ordered = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert ordered == ["explorer", "explorer engine 9", "explorer engine 10", "learner"]


def lanes_of(path: Path | None) -> dict[str, list[tuple[str, float, float]]]:
    """Name, start and end in seconds of the spans of each lane."""
    events, _ = load(path)
    names = tracks(events)
    found: dict[str, list[tuple[str, float, float]]] = {}
    for e in events:
        if e["ph"] == "X":
            lane = names[e["pid"], e["tid"]][1]
            found.setdefault(lane, []).append((e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6))
    return found


def test_what_is_in_flight_has_as_many_lanes_as_there_are_at_once(tmp_path: Path) -> None:
    trace = Trace(part_path(tmp_path, "e"), 100)
    trace.in_flight("engine 0 · requests", "a", T, T + 10)
    trace.in_flight("engine 0 · requests", "b", T + 1, T + 2)  # inside a, and yet beside it
    trace.in_flight("engine 0 · requests", "c", T + 2, T + 12)
    trace.in_flight("engine 0 · requests", "d", T + 10, T + 11)
    trace.close()
    assert lanes_of(merge_traces(tmp_path)) == {
        "requests": [("a", 0, 10), ("d", 10, 11)],
        "requests (2)": [("b", 1, 2), ("c", 2, 12)],
    }


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=60))
def test_lanes_are_the_fewest_and_none_overlaps(flights: list[tuple[int, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        trace = Trace(part_path(Path(directory), "e"), 1000)
        for number, (start, seconds) in enumerate(flights):
            trace.in_flight("requests", f"{number}", T + start, T + start + seconds)
        trace.close()
        lanes = lanes_of(merge_traces(Path(directory)))
    first = min(start for start, _ in flights)
    at_once = [sum(s <= moment < s + seconds for s, seconds in flights) for moment in range(80)]
    assert len(lanes) == max(at_once)
    for lane in lanes.values():
        ordered = sorted(lane, key=lambda flight: flight[1])
        assert all(before[2] <= after[1] for before, after in itertools.pairwise(ordered))
    drawn = sorted((int(name), start + first) for lane in lanes.values() for name, start, _ in lane)
    assert drawn == [(number, start) for number, (start, _) in enumerate(flights)]


def test_members_of_a_group_that_begin_and_end_together_are_one_span(tmp_path: Path) -> None:
    trace = Trace(part_path(tmp_path, "e"), 100)
    for member in range(4):
        trace.in_flight("requests", "digits/0/7", T + member / 100, T + 1 + member / 100, tokens=member)
    trace.in_flight("requests", "digits/0/7", T, T + 3, tokens=300)  # the straggler among them
    trace.in_flight("requests", "digits/0/8", T, T + 1, tokens=5)
    trace.close()
    events, _ = load(merge_traces(tmp_path))
    spans = [(e["name"], e["ts"], e["dur"], e["args"]) for e in events if e["ph"] == "X"]
    assert sorted(spans, key=lambda span: (span[0], span[2])) == [
        ("digits/0/7", 0, 1.03e6, {"count": 4, "tokens": 1.5}),
        ("digits/0/7", 0, 3e6, {"count": 1, "tokens": 300}),
        ("digits/0/8", 0, 1e6, {"count": 1, "tokens": 5}),
    ]


def test_the_requests_of_a_quickstart_take_little_room(tmp_path: Path) -> None:
    # 160 steps of 32 groups of 16, which an engine answers group by group: 81,920 attempts and as many requests
    trace = Trace(part_path(tmp_path, "learner"), 200_000)
    for group in range(5120):
        begin = T + group / 80
        for member in range(16):
            for track in ("explorer · attempts", "explorer engine 0 · requests"):
                ends = begin + 0.4 + member / 1000
                trace.in_flight(track, f"reverse_digits/0/{group}", begin, ends, tokens=3, reward=0.5)
    trace.close()
    path = merge_traces(tmp_path)
    events, _ = load(path)
    assert len({e["pid"] for e in events}) == 2
    assert path is not None
    assert path.stat().st_size < 5e6


def test_a_disk_that_fails_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "trace").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        trace = Trace(part_path(tmp_path, "e"), 100)
        for _ in range(3):
            trace.instant("t", "x", T)
            trace.flush()
        trace.close()
    assert len(caplog.records) == 1
    assert "trace.json" in caplog.text


def test_a_trace_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace = Trace(part_path(tmp_path, "e"), 100)
    trace.instant("t", "x", T)
    trace.close()
    (tmp_path / "trace.json").mkdir()
    with caplog.at_level(logging.WARNING):
        assert merge_traces(tmp_path) is None
    assert "trace.json was not written" in caplog.text


def test_many_threads_lose_nothing(tmp_path: Path) -> None:
    trace = Trace(part_path(tmp_path, "e"), 100_000, flush_seconds=0.01)

    def record(thread: int) -> None:
        for i in range(2000):
            trace.span(f"t{thread}", "x", T + i, T + i + 0.5)

    threads = [threading.Thread(target=record, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trace.close()
    events, other = load(merge_traces(tmp_path))
    assert len([e for e in events if e["ph"] == "X"]) == 8000
    assert other["dropped_events"] == 0


def test_without_parts_there_is_no_trace(tmp_path: Path) -> None:
    assert merge_traces(tmp_path) is None
    NullTrace().span("t", "x", T, T)
