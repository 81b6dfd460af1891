"""Groups that keep together on an engine, and load that stays balanced all the same."""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rljax.ledger.versions import Announced
from rljax.pipeline.simulate.clock import run_virtual
from rljax.rollout.engine_pool import UNNOTICED, EnginePool
from sidecar.protocol import Completion, EngineError, GenerateRequest, SamplingParams
from tests.modelled_engine import ModelledEngine
from tests.rollout.heard import Heard

GROUP = 8


class Watched(ModelledEngine):
    """Notes, for each request that it is given, the loads of all the engines before it."""

    def __init__(self, all_of_them: list[Watched], seen: list[tuple[int, list[int], str]], dies_after: int) -> None:
        # the more run beside each other, the longer each takes for a token; an engine is as fast as another
        super().__init__(lambda r: (1.0 + len(self._running) / 32) * r.sampling.max_new_tokens, tokens=7)
        self._all, self._seen, self._dies_after = all_of_them, seen, dies_after

    async def generate(self, request: GenerateRequest) -> Completion:
        loads = [len(engine._running) for engine in self._all]
        self._seen.append((self._all.index(self), loads, request.affinity))
        if len(self.served) >= self._dies_after:
            self._all[self._all.index(self)] = Watched(self._all, self._seen, 10**9)
            raise EngineError("killed by the test")
        return await super().generate(request)


def play(
    starts: list[float], engines: int, *, keyed: bool = True, dies_after: int = 10**9, holds: tuple[float, ...] = ()
) -> tuple[list[tuple[int, list[int], str]], float, EnginePool]:
    """Runs a group of `GROUP` from each start on; returns what the engines saw, the mean seconds of a request, and the
    pool.
    """
    all_of_them: list[Watched] = []
    seen: list[tuple[int, list[int], str]] = []

    async def start(index: int) -> Any:
        if index == len(all_of_them):
            all_of_them.append(Watched(all_of_them, seen, dies_after if index == 0 else 10**9))
        return all_of_them[index]

    async def main(loop: asyncio.AbstractEventLoop) -> tuple[float, EnginePool]:
        with tempfile.TemporaryDirectory() as directory:
            pool = EnginePool(start, engines, Path(directory), Heard())
            await pool.start()
            await pool.load(Announced(0, 1, "weights/v0"))

            async def member(at: float, group: int, number: int) -> float:
                await asyncio.sleep(at)
                sampling = SamplingParams(max_new_tokens=1 + (GROUP * group + number) % 7)
                key = f"group {group}" if keyed else ""
                request = GenerateRequest(f"{group}/{number}", np.array([7], np.int32), sampling, affinity=key)
                assert len((await pool.generate(request, 1)).token_ids) == sampling.max_new_tokens
                return loop.time() - at

            async def hold(at: float) -> None:
                await asyncio.sleep(at)
                await pool.hold()
                pool.release()

            members = [member(at, group, n) for group, at in enumerate(starts) for n in range(GROUP)]
            holding = [asyncio.ensure_future(hold(at)) for at in holds]
            seconds = await asyncio.gather(*members)
            await asyncio.gather(*holding)
            return float(np.mean(seconds)), pool

    mean, pool = run_virtual(main)
    return seen, mean, pool


@given(
    starts=st.lists(st.floats(0, 20), min_size=1, max_size=40),
    engines=st.integers(1, 5),
    dies_after=st.one_of(st.just(10**9), st.integers(0, 60)),
    holds=st.lists(st.floats(0, 20), max_size=2),
)
@example(starts=[0.0] * 60, engines=4, dies_after=10**9, holds=[])
@settings(max_examples=40, deadline=None)
def test_no_engine_gets_a_request_that_has_noticeably_more_than_another(
    starts: list[float], engines: int, dies_after: int, holds: list[float]
) -> None:
    seen, _, pool = play(starts, engines, dies_after=dies_after, holds=tuple(holds))
    for index, loads, _ in seen:
        occupied = loads if dies_after == 10**9 else loads[1:]  # the slot of the one that dies is vacant for a while
        least = min([*occupied, loads[index]])
        assert loads[index] <= least + least // UNNOTICED, (index, loads)
    assert all(not slot.affinities and not slot.requests for slot in pool._slots), "the table went with the requests"


def engines_per_group(seen: list[tuple[int, list[int], str]]) -> float:
    used: dict[str, set[int]] = defaultdict(set)
    for index, _, group in seen:
        used[group].add(index)
    return float(np.mean([len(engines) for engines in used.values()]))


def test_at_high_load_a_group_shares_an_engine_and_nobody_waits_longer_for_it() -> None:
    starts = [n / 2.75 for n in range(400)]  # 22 requests a second keep each of the four engines at some 70
    together, with_affinity, _ = play(starts, 4)
    _, without, _ = play(starts, 4, keyed=False)
    later = slice(len(together) // 4, None)
    assert engines_per_group(together[later]) < 1.1
    assert engines_per_group(together[: len(together) // 8]) > 1.5, (
        "while the engines fill, their idleness is worth more"
    )
    assert with_affinity < 1.02 * without


def test_at_low_load_a_group_is_spread() -> None:
    seen, _, _ = play([0.0], 4)
    assert [index for index, _, _ in seen] == [0, 1, 2, 3, 0, 1, 2, 3]
