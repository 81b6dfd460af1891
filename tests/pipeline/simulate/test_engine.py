"""The simulated engine against a loop over small steps of time, and what every engine promises of versions, aborts and
slots.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljax.pipeline.simulate.clock import VirtualLoop, run_virtual
from rljax.pipeline.simulate.engine import SimulatedEngine
from sidecar.protocol import Completion, GenerateRequest, SamplingParams, WeightUpdate

Arrival = tuple[float, int]
"""When a request comes, and its tokens."""


def request(name: object, tokens: int, min_version: int = 0, priority: int = 0) -> GenerateRequest:
    return GenerateRequest(
        str(name), np.zeros(1, np.int32), SamplingParams(max_new_tokens=tokens), min_version, priority=priority
    )


def rate(running: int) -> float:
    """One decoding step takes 0.5 s and 0.25 s more for each request in it."""
    return running / (0.5 + 0.25 * running)


def by_small_steps(arrivals: list[Arrival], slots: int, load: tuple[float, float], dt: float) -> list[float]:
    """When each request ends, by a loop over time: first come first served, nothing while a version loads."""
    left = {index: float(tokens) for index, (_, tokens) in enumerate(arrivals)}
    ends, now = [0.0] * len(arrivals), 0.0
    order = sorted(left, key=lambda index: (arrivals[index][0], index))
    while left:
        running = [index for index in order if index in left and arrivals[index][0] <= now][:slots]
        if running and not load[0] <= now < load[0] + load[1]:
            each = rate(len(running)) / len(running) * dt
            for index in running:
                left[index] -= each
                if left[index] <= 0:
                    ends[index] = now + dt
                    del left[index]
        now += dt
    return ends


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 20).map(float), st.integers(1, 8)), min_size=1, max_size=8, unique_by=lambda a: a[0]
    ),
    st.integers(1, 4),
    st.integers(0, 20).map(lambda seconds: seconds + 0.137),  # no request ends just then: it might be on either side
)
def test_requests_end_when_a_loop_over_small_steps_says(arrivals: list[Arrival], slots: int, loads_at: float) -> None:
    ends = [0.0] * len(arrivals)
    busy, tokens = [], []

    async def main(loop: VirtualLoop) -> None:
        engine = SimulatedEngine(rate, slots, load_seconds=0.0)
        await engine.update_weights(WeightUpdate(0, 1, ""))
        engine._load_seconds = 2.0

        async def ask(index: int, at: float, count: int) -> None:
            await asyncio.sleep(at)
            got = await engine.generate(request(index, count))
            ends[index] = loop.time()
            assert len(got.token_ids) == count

        async def load() -> None:
            await asyncio.sleep(loads_at)
            await engine.update_weights(WeightUpdate(1, 1, ""))

        async with asyncio.TaskGroup() as group:
            group.create_task(load())
            for index in sorted(range(len(arrivals)), key=lambda i: (arrivals[i][0], i)):
                group.create_task(ask(index, *arrivals[index]))
        status = await engine.status()
        busy.append(status.busy_seconds)
        tokens.append(status.tokens)

    run_virtual(main)
    dt = 1 / 256
    # a request that begins a step too late moves others by a step
    assert ends == pytest.approx(by_small_steps(arrivals, slots, (loads_at, 2.0), dt), abs=dt * 4 * len(arrivals))
    assert tokens == [sum(count for _, count in arrivals)]
    assert busy[0] <= max(ends) + 1e-9


def test_tokens_carry_the_version_that_served_when_they_were_begun() -> None:
    """One token a second; version 1 is there after 2.5 s and halts it for 1: the third token was begun before."""

    async def main(loop: VirtualLoop) -> None:
        engine = SimulatedEngine(lambda running: float(running), 4, load_seconds=1.0)
        await engine.update_weights(WeightUpdate(0, 1, ""))
        assert loop.time() == 1.0
        asked = asyncio.ensure_future(engine.generate(request("a", 5)))
        late = asyncio.ensure_future(engine.generate(request("b", 1, min_version=1)))
        await asyncio.sleep(2.5)
        await engine.update_weights(WeightUpdate(1, 1, ""))
        got = await asked
        assert got.versions.tolist() == [0, 0, 0, 1, 1]
        assert loop.time() == pytest.approx(1.0 + 5.0 + 1.0)
        assert (await late).versions.tolist() == [1]

    run_virtual(main)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 9), st.lists(st.floats(0.1, 4.0), max_size=4), st.lists(st.floats(0.1, 4.0), max_size=4))
def test_whatever_is_cut_short_goes_on_to_the_whole_budget(
    budget: int, aborts: list[float], loads: list[float]
) -> None:
    async def main(loop: VirtualLoop) -> None:
        engine = SimulatedEngine(rate, 2, load_seconds=0.3)
        await engine.update_weights(WeightUpdate(0, 1, ""))

        async def ask() -> list[Completion]:
            parts: list[Completion] = []
            while (made := sum(len(part.token_ids) for part in parts)) < budget:
                parts.append(await engine.generate(request("a", budget - made)))
            return parts

        async def disturb() -> None:
            for seconds in aborts:
                await asyncio.sleep(seconds)
                await engine.abort(["a"])
            for version, seconds in enumerate(loads, 1):
                await asyncio.sleep(seconds)
                await engine.update_weights(WeightUpdate(version, 1, ""))

        asked, disturbing = asyncio.ensure_future(ask()), asyncio.ensure_future(disturb())
        parts = await asked
        versions = np.concatenate([part.versions for part in parts])
        assert len(versions) == budget
        assert (np.diff(versions) >= 0).all()
        assert versions.min() >= 0
        assert [part.finish_reason for part in parts[:-1]] == ["abort"] * (len(parts) - 1)
        await disturbing

    run_virtual(main)


def test_of_those_that_wait_the_most_urgent_begins_first() -> None:
    ended: list[str] = []

    async def main(_: VirtualLoop) -> None:
        engine = SimulatedEngine(lambda running: 1.0, 1)
        await engine.update_weights(WeightUpdate(0, 1, ""))

        async def ask(name: str, priority: int) -> None:
            await engine.generate(request(name, 1, priority=priority))
            ended.append(name)

        async with asyncio.TaskGroup() as group:
            for name, priority in (("first", 9), ("idle", 3), ("urgent", 1), ("idle too", 3)):
                group.create_task(ask(name, priority))

    run_virtual(main)
    assert ended == ["first", "urgent", "idle", "idle too"]


def test_a_caller_that_leaves_frees_its_slot() -> None:
    async def main(loop: VirtualLoop) -> None:
        engine = SimulatedEngine(lambda running: 1.0, 1)
        await engine.update_weights(WeightUpdate(0, 1, ""))
        gone = asyncio.ensure_future(engine.generate(request("gone", 100)))
        kept = asyncio.ensure_future(engine.generate(request("kept", 2)))
        await asyncio.sleep(10.0)
        gone.cancel()
        assert len((await kept).token_ids) == 2
        assert loop.time() == pytest.approx(12.0)

    run_virtual(main)


@pytest.mark.parametrize(("at", "old"), [(1.0, 0), (3.5, 3), (3.75, 4)])
def test_a_version_that_comes_after_the_prompt_has_the_tokens_from_there(at: float, old: int) -> None:
    """The prompt takes 4 tokens of 0.5 s; a token that was begun keeps its version."""

    async def main(loop: VirtualLoop) -> None:
        engine = SimulatedEngine(lambda running: 2.0 * running, 4, prompt_cost=4.0)
        await engine.update_weights(WeightUpdate(0, 1, ""))
        asked = asyncio.ensure_future(engine.generate(request("one", 10)))
        await asyncio.sleep(at)
        await engine.update_weights(WeightUpdate(1, 1, ""))
        versions = (await asked).versions.tolist()
        assert loop.time() == pytest.approx(7.0)
        assert versions == [0] * old + [1] * (10 - old)

    run_virtual(main)


def test_a_request_that_is_cut_short_in_its_prompt_has_no_token() -> None:
    async def main(loop: VirtualLoop) -> None:
        engine = SimulatedEngine(lambda running: 2.0 * running, 4, prompt_cost=4.0)
        asked = asyncio.ensure_future(engine.generate(request("one", 10)))
        await asyncio.sleep(1.0)
        await engine.abort(["one"])
        found = await asked
        assert (found.finish_reason, len(found.versions)) == ("abort", 0)

    run_virtual(main)
