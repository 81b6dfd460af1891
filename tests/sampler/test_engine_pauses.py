"""Pausing: what becomes of the requests that run and of those that come."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from sidecar.protocol import PauseMode

pytestmark = pytest.mark.slow

LONG = 60


async def paused_engine(lab, engine, gate, mode, requests):
    """Starts requests, pauses in the middle of them, and returns the tasks and the pause."""
    tasks = [asyncio.create_task(engine.generate(request)) for request in requests]
    await gate.wait()
    pause = asyncio.create_task(engine.pause(mode))
    await lab.until(lambda: not engine._stepper._inbox.empty())
    gate.opened.set()
    return tasks, pause


def test_pause_keep(lab):
    request = lab.request("a", [4, 5], max_new_tokens=LONG, seed=5)

    async def main():
        gate = lab.gate(2)
        async with lab.engine(trace=gate) as engine:
            (running,), pause = await paused_engine(lab, engine, gate, PauseMode.KEEP, [request])
            await pause
            before = await engine.status()
            held = asyncio.create_task(engine.generate(lab.request("b", [1], max_new_tokens=3)))
            await lab.until(lambda: engine._stepper.in_flight == 2)
            await asyncio.sleep(0.05)
            after = await engine.status()
            assert not running.done()
            assert not held.done()
            await engine.resume()
            return before, after, await running, await held

    before, after, completion, held = asyncio.run(main())
    assert before.paused
    assert before.tokens == after.tokens == 8
    assert (after.running, after.waiting) == (1, 1)
    np.testing.assert_array_equal(completion.token_ids, lab.whole(request).token_ids)
    assert len(held.token_ids) == 3


def test_pause_wait_runs_to_the_end_and_holds_new_ones(lab):
    requests = [lab.request("a", [4, 5], max_new_tokens=LONG, seed=5), lab.request("b", [1], max_new_tokens=20)]

    async def main():
        gate = lab.gate(2)
        async with lab.engine(slots=1, trace=gate) as engine:
            (first, second), pause = await paused_engine(lab, engine, gate, PauseMode.WAIT, requests)
            await pause
            status = await engine.status()
            assert first.done()
            assert not second.done()
            await engine.resume()
            return status, await first, await second

    status, first, second = asyncio.run(main())
    assert status.paused
    assert (status.running, status.waiting) == (0, 1)
    assert (first.finish_reason, len(first.token_ids)) == ("length", LONG)
    assert len(second.token_ids) == 20


def test_pause_wait_with_an_update_in_between_still_runs_to_the_end(lab):
    async def main():
        gate = lab.gate(2)
        async with lab.engine(trace=gate) as engine:
            request = lab.request("a", [4, 5], max_new_tokens=LONG, seed=5)
            task = asyncio.create_task(engine.generate(request))
            await gate.wait()
            pause = asyncio.create_task(engine.pause(PauseMode.WAIT))
            update = asyncio.create_task(engine.update_weights(lab.updates[1]))
            await lab.until(lambda: engine._stepper._inbox.qsize() == 2)
            gate.opened.set()
            await asyncio.gather(pause, update)
            assert task.done()
            return await task

    completion = asyncio.run(main())
    assert completion.versions.tolist() == [0] * 8 + [1] * (LONG - 8)


def test_pause_abort_returns_everything(lab):
    requests = [lab.request("a", [4, 5], max_new_tokens=LONG, seed=5), lab.request("b", [1], max_new_tokens=20)]

    async def main():
        gate = lab.gate(2)
        async with lab.engine(slots=1, trace=gate) as engine:
            tasks, pause = await paused_engine(lab, engine, gate, PauseMode.ABORT, requests)
            await pause
            first, second = await asyncio.gather(*tasks)
            held = asyncio.create_task(engine.generate(lab.request("c", [1], max_new_tokens=2)))
            await asyncio.sleep(0.02)
            assert not held.done()
            await engine.resume()
            return first, second, await held

    first, second, held = asyncio.run(main())
    assert (first.finish_reason, len(first.token_ids)) == ("abort", 8)
    assert (second.finish_reason, len(second.token_ids)) == ("abort", 0)
    assert held.finish_reason == "length"


def test_pause_and_resume_of_an_idle_engine(lab):
    async def main():
        async with lab.engine() as engine:
            for mode in PauseMode:
                await engine.pause(mode)
                await engine.pause(mode)
                assert (await engine.status()).paused
                await engine.resume()
                await engine.resume()
                assert not (await engine.status()).paused
            return await engine.generate(lab.request("a", [1], max_new_tokens=2))

    assert asyncio.run(main()).finish_reason == "length"
