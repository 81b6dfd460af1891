"""Engines of which one is slow, in a pool under the virtual clock: who gets which request, and for how long."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljax.ledger.versions import Announced
from rljax.pipeline.simulate.clock import run_virtual
from rljax.pipeline.simulate.engine import SimulatedEngine
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.engine_speed import BESIDE, PATIENCE, EngineSpeed, loads
from sidecar.protocol import Completion, EngineError, GenerateRequest, SamplingParams
from tests.rollout.heard import Heard

MEMBERS, TOKENS = 64, 20


@dataclass
class Factor:
    """By how much an engine is slower; may change while it runs."""

    now: float = 1.0


class Counting(SimulatedEngine):
    """Counts the requests that it is given."""

    def __init__(self, factor: Factor, slots: int = 10**6) -> None:
        super().__init__(lambda n: n / (1 + n / 32) / factor.now, slots)
        self.given = 0

    async def generate(self, request: GenerateRequest) -> Completion:
        self.given += 1
        return await super().generate(request)


def play(
    factors: Sequence[Factor],
    bursts: int,
    lengths: Sequence[int] = (TOKENS,),
    *,
    pause: float = 0.0,
    mend: int = -1,
    dies: int = -1,
) -> tuple[list[float], list[list[int]]]:
    """Asks for `MEMBERS` replies at once, and again ``pause`` seconds after all have come; before burst ``mend`` all
    engines become equally fast, and before burst ``dies`` the second is replaced by such a one. Returns the seconds
    and the requests of each engine, of each burst.
    """
    seconds: list[float] = []
    given: list[list[int]] = []
    engines = [Counting(factor) for factor in factors]

    async def start(index: int) -> Counting:
        return engines[index]

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        with tempfile.TemporaryDirectory() as directory:
            pool = EnginePool(start, len(engines), Path(directory), Heard(), call_timeout=1e9)
            await pool.start()
            await pool.load(Announced(0, 1, "weights/v0"))
            for burst in range(bursts):
                if burst == mend:
                    for factor in factors:
                        factor.now = 1.0
                if burst == dies:
                    dead, engines[1] = engines[1], Counting(Factor())
                    pool._slots[1].replace(dead, EngineError("killed by the test"))
                    await asyncio.sleep(1.0)
                begun, before = loop.time(), [engine.given for engine in engines]
                asked = [
                    GenerateRequest(
                        f"{burst}/{number}",
                        np.array([7], np.int32),
                        SamplingParams(max_new_tokens=lengths[number % len(lengths)]),
                        affinity=f"group {number // 8}",
                    )
                    for number in range(MEMBERS)
                ]
                replies = await asyncio.gather(*(pool.generate(request, 1) for request in asked))
                wanted = [request.sampling.max_new_tokens for request in asked]
                assert [len(reply.token_ids) for reply in replies] == wanted, "whatever the engine, all is sampled"
                seconds.append(loop.time() - begun)
                given.append([engine.given - old for engine, old in zip(engines, before, strict=True)])
                await asyncio.sleep(pause)

    run_virtual(main)
    return seconds, given


def test_a_slow_engine_holds_one_batch_and_no_more() -> None:
    """16 requests on each of 4 take 20 · (1 + 16/32) s, and 300 s where one is 10 times slower. Left out, the others
    have 21 or 22 each: 20 · (1 + 22/32) s.
    """
    seconds, given = play([Factor(), Factor(10.0), Factor(), Factor()], 4)
    assert given[0] == [16, 16, 16, 16]
    assert seconds[0] == pytest.approx(300.0)
    assert [burst[1] for burst in given[1:]] == [0, 0, 0]
    assert seconds[1:] == [pytest.approx(20 * (1 + 22 / 32))] * 3


def test_the_successor_of_a_slow_engine_is_not_taken_to_be_slow() -> None:
    _, given = play([Factor(), Factor(10.0), Factor(), Factor()], 3, dies=2)
    assert (given[0], given[1][1], given[2]) == ([16] * 4, 0, [16] * 4)


def test_an_engine_that_is_half_as_fast_gets_what_it_ends_as_soon() -> None:
    """Of 64 requests on two, 2 · (1 + n/32) = 1 + (64 - n)/32 for n = 32/3: 2.67 s a token, 53 s for 20. Half of them
    take 80 s.
    """
    seconds, given = play([Factor(2.0), Factor()], 8)
    assert seconds[0] == pytest.approx(80.0)
    assert max(seconds[4:]) < 1.1 * 53.3
    assert all(abs(slow - 32 / 3) < 3 for slow, _ in given[4:])


def test_an_engine_that_has_become_fast_gets_its_share_again() -> None:
    seconds, given = play([Factor(), Factor(10.0), Factor(), Factor()], 40, pause=500.0, mend=6)
    tried = [burst[1] for burst in given]
    assert sum(tried[1:6]) <= 1, "300 s that it took with 16 are 300 · 9/24 alone, and wait 16 times that"
    assert tried[-1] == 16
    assert seconds[-1] == pytest.approx(30.0)


def test_an_engine_that_stays_slow_is_waited_for_in_a_sixteenth_of_the_time() -> None:
    seconds, given = play([Factor(), Factor(10.0), Factor(), Factor()], 120, pause=10.0)
    tried = [index for index, burst in enumerate(given) if burst[1] and index]
    assert len(tried) >= 1
    assert {given[index][1] for index in tried} == {1}
    lost = sum(seconds[index] - seconds[1] for index in tried)
    assert lost <= (sum(seconds) + 10 * len(seconds)) / PATIENCE


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=MEMBERS),
    factor=st.floats(0.1, 10.0),
    count=st.integers(1, 5),
    pause=st.sampled_from([0.0, 30.0, 3000.0]),
)
@settings(max_examples=20, deadline=None)
def test_of_equal_engines_none_counts_as_slow_whatever_the_lengths(
    lengths: list[int], factor: float, count: int, pause: float
) -> None:
    """Each burst is spread as the first, when nothing is known of any engine."""
    _, given = play([Factor(factor)] * count, 4, lengths, pause=pause)
    assert given == [given[0]] * len(given)


def test_the_load_is_that_of_the_fastest_with_which_a_token_would_take_as_long() -> None:
    """One answers 16 times 10 tokens in 1 s each, alone; another takes 4 s for as many. With 2 and 1 requests: 2, and
    (8 + 1 + 1) · 4 - 9. As fast by 1.5 is chance after 16 answers, where 1 + 4/√16 is the least that is none.
    """

    def known(seconds: float, running: int, answers: int = 16) -> EngineSpeed:
        speed, now = EngineSpeed(), 0.0
        for number in range(answers):
            speed.begin(str(number), now)
            speed.answered(str(number), 10, now + seconds)
            speed.end(str(number), now + seconds)
            now += seconds
        assert speed.cost == pytest.approx(seconds / 10 / (BESIDE + 1))
        for number in range(running):
            speed.begin(f"running {number}", now)
        return speed

    fast, slow, near = known(1.0, 2), known(4.0, 1), known(1.5, 1)
    assert loads([fast, slow, near, EngineSpeed()], 64.0) == [2.0, pytest.approx(31.0), 1.0, 0.0]
    few = known(4.0, 1, answers=1)
    assert loads([fast, few], 64.0) == [2.0, 1.0], "one answer may be chance"
    slow.forget()
    assert loads([fast, slow], 64.0) == [2.0, 1.0], "another engine is to come"
