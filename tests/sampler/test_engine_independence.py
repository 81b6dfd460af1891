"""A request's tokens depend on its prompt, parameters and seed: not on neighbours, slot, arrival or step size."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.optimised]


def same(one, other) -> None:
    np.testing.assert_array_equal(one.token_ids, other.token_ids)
    np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
    assert one.finish_reason == other.finish_reason


@pytest.fixture
def probes(lab):
    return [
        lab.request("p0", [5, 6, 7], max_new_tokens=30, seed=11),
        lab.request("p1", [5, 6, 7], max_new_tokens=30, seed=12, temperature=0.7),
        lab.request("p2", [1], max_new_tokens=25, seed=13, top_k=7, top_p=0.9),
        lab.request("p3", list(range(20)), max_new_tokens=40, temperature=0),
        lab.request("p4", [2, 2], max_new_tokens=40, seed=2**62 + 5, stop_token_ids=(3, 4, 5, 6, 7, 8)),
    ]


@pytest.fixture
def alone(lab, probes):
    async def main():
        async with lab.engine(slots=1, decode_steps=1) as engine:
            return [await engine.generate(request) for request in probes]

    return asyncio.run(main())


@pytest.mark.parametrize(("slots", "decode_steps"), [(4, 4), (9, 7)])
def test_neighbours_slots_and_steps_do_not_matter(lab, probes, alone, slots, decode_steps):
    async def main():
        rng = np.random.default_rng(slots)
        async with lab.engine(slots=slots, decode_steps=decode_steps) as engine:
            noise = [
                lab.request(
                    f"n{i}", rng.integers(0, 61, rng.choice([2, 16, 27])), max_new_tokens=int(rng.integers(1, 30))
                )
                for i in range(40)
            ]
            order = [*noise[:20], *probes[::-1], *noise[20:]]
            completions = await asyncio.gather(*map(engine.generate, order))
            return {request.id: c for request, c in zip(order, completions, strict=True)}

    completions = asyncio.run(main())
    for request, expected in zip(probes, alone, strict=True):
        same(completions[request.id], expected)


def test_late_arrival_does_not_matter(lab, probes, alone):
    async def main():
        async with lab.engine(slots=4) as engine:
            first = asyncio.create_task(engine.generate(probes[3]))
            await asyncio.sleep(0.02)
            rest = [asyncio.create_task(engine.generate(request)) for request in probes[:3]]
            await asyncio.sleep(0.01)
            return [*await asyncio.gather(*rest), await first, await engine.generate(probes[4])]

    for completion, expected in zip(asyncio.run(main()), alone, strict=True):
        same(completion, expected)


def test_members_of_a_group_differ_by_seed_only(lab):
    async def main():
        async with lab.engine(slots=32) as engine:
            requests = [lab.request(str(i), [9, 8, 7], max_new_tokens=10, seed=i % 16) for i in range(32)]
            return await asyncio.gather(*map(engine.generate, requests))

    completions = asyncio.run(main())
    for one, other in zip(completions[:16], completions[16:], strict=True):
        same(one, other)
    assert len({c.token_ids.tobytes() for c in completions}) == 16


def test_thousands_at_once(lab):
    async def main():
        async with lab.engine(slots=32) as engine:
            requests = [lab.request(str(i), [i % 61, 1], max_new_tokens=1 + i % 5, seed=i) for i in range(3000)]
            completions = await asyncio.gather(*map(engine.generate, requests))
            status = await engine.status()
        return completions, status

    completions, status = asyncio.run(main())
    assert [len(c.token_ids) for c in completions] == [1 + i % 5 for i in range(3000)]
    assert status.tokens == sum(1 + i % 5 for i in range(3000))
    assert (status.running, status.waiting) == (0, 0)
    assert status.busy_seconds > 0
