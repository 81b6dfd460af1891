"""The budget of a step: its parts add up to the step, whatever spans do, and are those of examples by hand."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljax.observe import parts
from rljax.observe.budget import (
    AGAIN,
    BOOKS,
    COMPUTING,
    ENGINES,
    EXPLORERS,
    LEARNER,
    LOADING,
    PACKING,
    PUBLISHING,
    PYTHON,
    TRANSFER,
    VALIDATING,
    WAITING,
    Budget,
    Part,
    account,
    budgets,
    removals,
)
from rljax.observe.busy import MOMENT, Gathered, TimedSelector
from rljax.observe.metrics import MetricsLog
from rljax.observe.report.budget import section
from rljax.observe.report.data import RunData
from rljax.observe.steps import Cover
from rljax.observe.trace import Trace, part_path
from rljax.observe.trace_read import Span
from tests.observe.report_pages import checked, figure, numbers, written

TICKS = 40
intervals = st.lists(st.tuples(st.integers(-5, TICKS + 5), st.integers(-5, TICKS + 5)), max_size=12)
windows = st.lists(st.integers(0, TICKS), unique=True, max_size=8).map(
    lambda cuts: list(zip(sorted(cuts)[::2], sorted(cuts)[1::2], strict=False))
)


def ticks(spans: list[tuple[int, int]]) -> set[int]:
    return {tick for begin, end in spans for tick in range(begin, end)}


@given(st.lists(intervals, max_size=5), windows)
def test_parts_add_up_to_the_windows_and_each_tick_is_the_first_layers_that_covers_it(
    layers: list[list[tuple[int, int]]], cuts: list[tuple[int, int]]
) -> None:
    named = [(str(place), WAITING, Cover(spans)) for place, spans in enumerate(layers)]
    found = account(cuts, named, ("rest", PYTHON))
    assert sum(part.seconds for part in found) == pytest.approx(len(ticks(cuts)))
    left = ticks(cuts)
    for part, spans in zip(found, layers, strict=False):
        assert part.seconds == pytest.approx(len(left & ticks(spans)))
        left -= ticks(spans)
    assert found[-1].seconds == pytest.approx(len(left))


@given(intervals, intervals, windows)
def test_a_cover_is_a_set_of_times(
    one: list[tuple[int, int]], other: list[tuple[int, int]], cuts: list[tuple[int, int]]
) -> None:
    assert (Cover(one) & Cover(other)).within(cuts) == pytest.approx(len(ticks(one) & ticks(other) & ticks(cuts)))
    assert (Cover(one) - Cover(other)).within(cuts) == pytest.approx(len((ticks(one) - ticks(other)) & ticks(cuts)))
    both = Cover(one) | Cover(other)
    assert both.within(cuts) == pytest.approx(len((ticks(one) | ticks(other)) & ticks(cuts)))
    assert ticks([(int(a), int(b)) for a, b in both.intervals()]) == ticks(one) | ticks(other)
    assert both.until(np.array([[5.0, 20.0]])).shape == (1, 2)


def row(step: int, end: float, seconds: float, **more: float) -> dict[str, float]:
    return {"step": step, "timestamp": end, "time/step": seconds, **more}


def spans_of(track: str, *named: tuple[str, float, float], **args: float) -> list[Span]:
    return [Span(track, name, begin, end, args) for name, begin, end in named]


# A step of 10 s, from 100 to 110, of a learner, an engine and their explorer.
LEARNER_SPANS = spans_of(
    "learner",
    ("wait for a batch", 100.0, 103.0),
    ("wait for generation", 100.0, 102.0),
    ("wait for stragglers", 102.0, 103.0),
    ("ledger", 102.75, 103.0),
    ("train step 7", 103.0, 107.0),
    ("train", 103.0, 106.9),
    ("pack", 103.0, 103.5),
    ("advantages", 103.5, 103.75),
    ("place", 103.75, 104.0),
    ("update", 104.0, 106.5),
    ("publish version 8", 107.0, 109.0),
    ("write a version", 107.0, 108.5),
    ("gather weights", 107.0, 107.5),
    ("checksum", 107.5, 107.75),
    ("score the probe", 108.5, 108.75),
    ("report", 109.0, 109.5),
    ("checkpoint", 109.5, 109.75),
)
ENGINE_SPANS = [
    *spans_of("explorer engine 0 · computation", ("prefill", 100.0, 101.0), tokens=100.0, again=25.0),
    *spans_of("explorer engine 0 · computation", ("decode", 101.0, 104.0), ("receive", 103.0, 105.0)),
    *spans_of("explorer engine 0 · computation", ("load", 105.0, 105.25), ("swap", 105.25, 105.5)),
    *spans_of("explorer engine 0 · requests", ("a", 99.0, 104.0), ("b", 105.0, 106.0), tokens=3.0),
    *spans_of("explorer · versions", ("load version 7", 103.0, 106.25)),
    *spans_of("explorer · attempts", ("a", 99.0, 104.0), ("b", 105.0, 107.0)),
    *spans_of("explorer · waits", ("credit", 105.0, 109.0), ("its engines, which have", 99.0, 104.0)),
    *spans_of("explorer · ledger", ("transactions", 104.0, 104.5)),
    *spans_of(
        "explorer · loop",
        ("Python", 100.0, 100.5),
        ("Python", 104.25, 104.75),
        ("Python", 105.75, 106.0),
        ("held up", 106.0, 107.0),
        ("Python", 109.5, 109.75),
    ),
]
BEFORE = spans_of("learner", ("publish version 0", 90.0, 91.0))
HAND = [*BEFORE, *LEARNER_SPANS, *ENGINE_SPANS]


def seconds_of(budget: Budget) -> dict[str, tuple[str, float]]:
    return {part.name: (part.kind, round(part.seconds, 9)) for part in budget.parts}


def test_a_step_by_hand() -> None:
    learner, engine, explorer = budgets([row(8, 110.0, 10.0)], HAND)
    assert (learner.process, engine.process, explorer.process) == (LEARNER, ENGINES, EXPLORERS)
    assert seconds_of(learner) == {
        "updates": (COMPUTING, 2.5),
        "packing": (PACKING, 0.5),
        "advantages": (PACKING, 0.25),
        "placing on the devices": (TRANSFER, 0.25),
        "weights to the host": (TRANSFER, 0.5),
        "checksums of a version": (PUBLISHING, 0.25),
        "writing a version": (PUBLISHING, 0.75),
        "scoring the probe": (PUBLISHING, 0.25),
        "the rest of publishing": (PUBLISHING, 0.25),
        "ledger": (BOOKS, 0.25),
        "metrics, samples and report": (BOOKS, 0.5),
        "checkpoint": (BOOKS, 0.25),
        "Python beside the update": (PYTHON, 0.5),
        "Python between the parts": (PYTHON, 0.25),
        "waiting for generation: too few groups were ready": (WAITING, 2.0),
        "waiting for stragglers": (WAITING, 0.75),
    }
    assert seconds_of(engine) == {
        "prefill after an update": (AGAIN, 0.25),
        "prefill": (COMPUTING, 0.75),
        "decoding": (COMPUTING, 3.0),
        "reading a version, nothing computed": (LOADING, 1.0),
        "placing a version, nothing computed": (LOADING, 0.25),
        "standing still while weights are exchanged": (LOADING, 0.25),
        "the rest of a load": (LOADING, 0.25),
        "requests in flight, none computed": (PYTHON, 0.25),
        "waiting for the explorer's event loop, requests in flight": (WAITING, 0.25),
        "waiting for environments and rewards": (WAITING, 0.75),
        "waiting for the learner: no credit": (WAITING, 2.0),
        "waiting for the explorer's event loop, none in flight": (WAITING, 0.25),
        "waiting for the explorer": (WAITING, 0.75),
    }
    assert seconds_of(explorer) == {
        "Python of its event loop": (PYTHON, 1.5),
        "waiting for the interpreter or a core": (WAITING, 1.0),
        "ledger": (BOOKS, 0.25),
        "a version is loaded": (LOADING, 2.0),
        "waiting for engines": (WAITING, 2.5),
        "waiting for the learner: no credit": (WAITING, 2.0),
        "Python, and what no span says": (PYTHON, 0.75),
    }
    for budget in (learner, engine, explorer):
        assert sum(part.seconds for part in budget.parts) == pytest.approx(budget.step) == pytest.approx(10.0)


def test_what_a_step_would_take_without_a_part() -> None:
    learner = Budget(
        LEARNER,
        1,
        10.0,
        (Part("updates", COMPUTING, 4.0), Part("writing", PUBLISHING, 2.0), Part("waiting", WAITING, 4.0)),
    )
    engine = Budget(
        ENGINES, 1, 10.0, (Part("decoding", COMPUTING, 4.0), Part("swap", LOADING, 1.0), Part("idle", WAITING, 5.0))
    )
    found = [(row.process, row.part and row.part.name, row.least, row.bound) for row in removals([learner, engine])]
    assert found == [
        ("", None, 6.0, pytest.approx(11 / 6)),
        (LEARNER, "updates", 5.0, pytest.approx(7 / 5)),
        (LEARNER, "writing", 5.0, pytest.approx(9 / 5)),
        (ENGINES, "decoding", 6.0, pytest.approx(7 / 6)),
        (ENGINES, "swap", 6.0, pytest.approx(10 / 6)),
    ]
    assert removals([learner]) == []


def test_steps_beside_a_validation_or_before_the_trace_begins_do_not_count() -> None:
    validated = spans_of("explorer · versions", ("validate version 9", 115.0, 118.0))
    rows = [
        row(7, 92.0, 10.0),
        row(8, 110.0, 10.0),
        row(9, 120.0, 10.0),
        row(10, 130.0, 10.0, **{"compile/programs": 1}),
    ]
    later = spans_of("learner", ("update", 125.0, 130.0))  # it lives on: no step is left out for that
    (learner, *_) = budgets(rows, [*HAND, *validated, *later])
    assert learner == budgets([rows[1]], HAND)[0]
    trained = spans_of("learner", ("update", 111.0, 112.0))
    engine = budgets([rows[2]], [*HAND, *validated, *trained])[1]
    assert ("validating", VALIDATING, 3.0) in [(part.name, part.kind, part.seconds) for part in engine.parts]
    assert budgets(rows, spans_of("explorer · loop", ("Python", 90.0, 91.0))) == ()
    assert budgets([], HAND) == ()


def test_steps_of_a_life_whose_end_the_trace_has_lost_do_not_count() -> None:
    """A trace keeps the newest events of each process, but whoever resumes a run writes one of its own beside it."""
    rows = [row(step, 110.0 + 10.0 * (step - 8), 10.0) for step in (8, 9, 10)]
    again = [replace(span, start=span.start + 20.0, end=span.end + 20.0) for span in (*LEARNER_SPANS, *ENGINE_SPANS)]
    found = budgets(rows, [*HAND, *again])
    assert [budget.step for budget in found] == pytest.approx([10.0] * 3)
    assert [seconds_of(budget) for budget in found] == [seconds_of(budget) for budget in budgets(rows[:1], HAND)]


def test_engines_are_a_mean_and_one_waits_for_what_another_has() -> None:
    second = spans_of("explorer engine 1 · requests", ("z", 99.0, 99.5), ("a", 100.0, 102.0))
    _, engine, _ = budgets([row(8, 110.0, 10.0)], [*HAND, *second])
    assert engine.count == 2
    assert engine.step == pytest.approx(10.0)
    found = seconds_of(engine)
    # Engine 1 says nothing of itself: what it has to do is what it computes. From 102 to 103 engine 0 has the rest.
    assert found["requests in flight"] == (COMPUTING, 1.0)
    assert found["waiting for requests that other engines have"] == (WAITING, 0.5)
    assert found["decoding"] == (COMPUTING, 1.5)


def test_of_a_process_that_joins_or_leaves_its_own_steps_count() -> None:
    rows = [row(8, 110.0, 10.0)]
    late = spans_of("late · attempts", ("g", 105.0, 130.0))
    left = spans_of("left · attempts", ("g", 50.0, 95.0))
    assert budgets(rows, [*HAND, *late, *left]) == budgets(rows, HAND)
    later = spans_of("learner", ("update", 110.0, 120.0))
    (_, _, explorers) = budgets([*rows, row(9, 120.0, 10.0)], [*HAND, *later, *late])
    assert explorers.count == 2
    assert explorers.step == pytest.approx(10.0)


def test_the_report_has_bars_and_a_table(tmp_path: Path) -> None:
    trace = Trace(part_path(tmp_path, "learner"), 1000)
    for span in HAND:
        (trace.in_flight if span.track.endswith("requests") else trace.span)(
            span.track, span.name, span.start, span.end, **span.args
        )
    trace.close()
    log = MetricsLog(tmp_path)
    log.write(8, {"time/step": 10.0, "time/train": 4.0})
    log.close()
    text = (tmp_path / "metrics.jsonl").read_text()
    stamp = text.split('"timestamp"')[1].split(",")[0].strip(": }\n")
    (tmp_path / "metrics.jsonl").write_text(text.replace(stamp, "110.0"))
    page = checked(written(tmp_path, {}, None))
    drawn = {trace["name"]: numbers(trace["x"]) for trace in figure(page, "Budget of a step")["data"]}
    assert drawn[COMPUTING] == pytest.approx([0.0, 3.75, 2.5])  # from the bottom up: explorer, engine, learner
    assert [sum(spent) for spent in zip(*drawn.values(), strict=True)] == pytest.approx([10.0, 10.0, 10.0])
    for said in ("The budget of a step", "standing still while weights are exchanged", "A step takes 10 s"):
        assert said in page
    assert "<h3>Budget of a step</h3>" not in checked(written(tmp_path, {}, None, running=True))


def test_a_run_without_a_trace_has_no_budget() -> None:
    assert section(RunData("run", [row(1, 10.0, 1.0)], {}, None, [])) == {"tables": [], "verdict": ""}


def test_pieces_of_a_moment_are_one_span_of_their_seconds() -> None:
    found: list[tuple[float, float, float]] = []
    gathered = Gathered(lambda *piece: found.append(piece))
    for begin, end in ((10.0, 10.01), (10.02, 10.05), (10.05 + MOMENT, 10.5), (10.6, 10.7)):
        gathered.add(begin, end, (end - begin) / 2)
    gathered.flush()
    gathered.flush()
    expected = ((10.0, 10.04, 0.02), (10.05 + MOMENT, 10.5, 0.225 - MOMENT / 2), (10.6, 10.7, 0.05))
    assert [pytest.approx(one) for one in expected] == found


def test_an_event_loop_says_how_long_it_ran_and_how_long_it_computed() -> None:
    found: list[tuple[float, float, float]] = []

    def computed_and_held_up() -> None:
        used = time.thread_time()
        while time.thread_time() - used < 0.05:
            pass
        time.sleep(0.05)

    async def main() -> tuple[float, float]:
        began = time.time()
        computed_and_held_up()
        between = began, time.time()
        await asyncio.sleep(0.05)
        return between

    selector = TimedSelector(lambda *piece: found.append(piece))
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        between = runner.run(main())
    assert all(begin <= end for begin, end, _ in found)
    assert all(end <= begin for (_, end, _), (begin, *_) in itertools.pairwise(found))
    assert Cover((begin, end) for begin, end, _ in found).within([between]) == pytest.approx(between[1] - between[0])
    begin, end, used = max(found, key=lambda piece: piece[1] - piece[0])
    assert used >= 0.05
    assert end - begin - used >= 0.04


def test_parts_are_for_who_asked_in_this_thread_and_for_now() -> None:
    found: list[str] = []
    with parts.part("nobody asked"):
        pass
    with parts.recorded(lambda name, begin, end: found.append(name)):
        with parts.part("outer"), parts.part("inner"):
            parts.note("noted", time.time())
        with pytest.raises(ValueError, match="failed"), parts.part("failing"):
            raise ValueError("failed")
    parts.note("later", time.time())
    assert found == ["noted", "inner", "outer", "failing"]
