"""Stopping, aborting, waiting, refusing and ending."""

from __future__ import annotations

import asyncio
import dataclasses
import threading

import numpy as np
import pytest

from rljax.sampler import programs
from sidecar.protocol import EngineError, PauseMode, RequestError

pytestmark = pytest.mark.slow

LONG = 60


def test_it_says_that_it_compiles_as_long_as_it_does(lab, monkeypatch):
    """A second request of the same sizes runs what the first has compiled."""
    decode, said = programs.decode, []

    def watched(*arguments, **options):
        said.append(asyncio.run(engine.status()).details["compiling"])
        return decode(*arguments, **options)

    monkeypatch.setattr(programs, "decode", watched)

    async def main():
        nonlocal engine
        async with lab.engine() as engine:
            for name in ("a", "b"):
                await engine.generate(lab.request(name, [4], max_new_tokens=4, seed=5))
            return (await engine.status()).details["compiling"]

    engine = None
    assert asyncio.run(main()) == 0
    assert said == [1, 0]


class Letters:
    """Decodes token i as the letter of i."""

    def decode(self, token_ids, **options):
        return "".join(chr(65 + i) for i in token_ids)


def test_stop_token_is_included(lab):
    free = lab.request("a", [4], max_new_tokens=LONG, seed=5)
    tokens = lab.whole(free).token_ids.tolist()
    for place in (0, 3, 4, 11):  # the first, and both sides of the end of a decode call
        stop = tokens[place]
        end = tokens.index(stop) + 1
        stopped = lab.whole(lab.request("a", [4], max_new_tokens=LONG, seed=5, stop_token_ids=(stop,)))
        assert stopped.token_ids.tolist() == tokens[:end]
        assert stopped.finish_reason == "stop"
    many = (*range(61, 200), tokens[2])  # more than a row holds at first
    assert lab.whole(lab.request("a", [4], max_new_tokens=LONG, seed=5, stop_token_ids=many)).finish_reason == "stop"


@pytest.mark.parametrize("decode_steps", [1, 4, 9])
def test_stop_string_ends_without_trimming(lab, decode_steps):
    async def main():
        async with lab.engine(tokenizer=Letters(), decode_steps=decode_steps) as engine:
            free = await engine.generate(lab.request("a", [4], max_new_tokens=30, seed=5))
            text = Letters().decode(free.token_ids.tolist())
            stop = text[9:12]
            request = lab.request("b", [4], max_new_tokens=30, seed=5, stop_strings=("??", stop))
            return text, stop, await engine.generate(request), (await engine.status()).tokens

    text, stop, completion, tokens = asyncio.run(main())
    end = text.index(stop) + len(stop)
    assert Letters().decode(completion.token_ids.tolist()) == text[:end]
    assert completion.finish_reason == "stop"
    assert tokens == 30 + end


@pytest.mark.parametrize("decode_steps", [1, 4])
def test_stop_string_may_begin_in_the_tokens_of_a_request_cut_short(lab, decode_steps):
    async def main():
        async with lab.engine(tokenizer=Letters(), decode_steps=decode_steps) as engine:
            before = (await engine.generate(lab.request("a", [4], max_new_tokens=8, seed=5))).token_ids.tolist()

            def resumed(name, count, **sampling):
                request = lab.request(name, [4, *before], max_new_tokens=12, seed=6, **sampling)
                return dataclasses.replace(request, resumed_tokens=count)

            free = (await engine.generate(resumed("b", 8))).token_ids.tolist()
            stop = Letters().decode([*before[-2:], free[0]])
            assert stop not in Letters().decode(free)
            found = await engine.generate(resumed("c", 8, stop_strings=(stop,)))
            # a string that begins in the prompt itself is nothing that the response contains
            other = await engine.generate(resumed("d", 1, stop_strings=(stop,)))
            return free, found, other

    free, found, other = asyncio.run(main())
    assert (found.token_ids.tolist(), found.finish_reason) == (free[:1], "stop")
    assert (other.token_ids.tolist(), other.finish_reason) == (free, "length")


def test_budget_and_stop_at_the_same_token_is_a_stop(lab):
    tokens = lab.whole(lab.request("a", [4], max_new_tokens=5, seed=5)).token_ids.tolist()
    budget = tokens.index(tokens[4]) + 1
    request = lab.request("a", [4], max_new_tokens=budget, seed=5, stop_token_ids=(tokens[4],))
    assert lab.whole(request).finish_reason == "stop"


def test_the_whole_context_can_be_used(lab):
    completion = lab.whole(lab.request("a", list(range(20)), max_new_tokens=44, seed=1))
    assert len(completion.token_ids) == 44
    np.testing.assert_allclose(completion.logprobs, lab.logprobs(list(range(20)), completion), atol=1e-4)


def test_abort_keeps_tokens(lab):
    request = lab.request("long", [4, 5], max_new_tokens=LONG, seed=5)

    async def main():
        gate = lab.gate(3)
        async with lab.engine(slots=1, trace=gate) as engine:
            running = asyncio.create_task(engine.generate(request))
            queued = asyncio.create_task(engine.generate(lab.request("queued", [1], max_new_tokens=3)))
            await gate.wait()
            aborted = asyncio.create_task(engine.abort(["long", "unknown"]))
            await lab.until(lambda: not engine._stepper._inbox.empty())
            gate.opened.set()
            await aborted
            return await running, await queued

    aborted, queued = asyncio.run(main())
    assert aborted.finish_reason == "abort"
    assert len(aborted.token_ids) == 12
    np.testing.assert_array_equal(aborted.token_ids, lab.whole(request).token_ids[:12])
    assert len(aborted.logprobs) == len(aborted.versions) == 12
    assert queued.finish_reason == "length"


def test_abort_of_a_waiting_request_returns_no_tokens(lab):
    async def main():
        async with lab.engine(None) as engine:
            waiting = asyncio.create_task(engine.generate(lab.request("a", [1])))
            await asyncio.sleep(0)
            await engine.abort(["a"])
            return await waiting

    completion = asyncio.run(main())
    assert completion.finish_reason == "abort"
    assert [len(a) for a in (completion.token_ids, completion.logprobs, completion.versions)] == [0, 0, 0]


def test_priority_and_arrival_order(lab):
    async def main():
        gate = lab.gate(1)
        ends = []
        async with lab.engine(slots=1, trace=gate) as engine:

            async def one(name, priority):
                await engine.generate(lab.request(name, [1], max_new_tokens=2, priority=priority))
                ends.append(name)

            first = asyncio.create_task(one("first", 0))
            await gate.wait()
            rest = [asyncio.create_task(one(n, p)) for n, p in (("low", 5), ("a", 0), ("b", 0), ("high", -1))]
            await lab.until(lambda: not engine._stepper._inbox.empty())
            gate.opened.set()
            await asyncio.gather(first, *rest)
        return ends

    assert asyncio.run(main()) == ["first", "high", "a", "b", "low"]


def test_requests_that_can_never_be_served(lab):
    async def main():
        async with lab.engine() as engine:
            await engine.pause(PauseMode.KEEP)
            good = asyncio.create_task(engine.generate(lab.request("good", [1], max_new_tokens=LONG)))
            await asyncio.sleep(0)
            for request, line in [
                (lab.request("a", [1] * 40, max_new_tokens=25), "40 prompt tokens and 25 new ones exceed .* of 64"),
                (lab.request("b", []), "at least one token"),
                (lab.request("c", [61]), "vocabulary of 61"),
                (lab.request("d", [-1]), "vocabulary of 61"),
                (lab.request("e", [1], stop_strings=("x",)), "need a tokenizer"),
                (dataclasses.replace(lab.request("f", [1]), resumed_tokens=2), "2 of 1 tokens are resumed"),
                (lab.request("good", [1]), "'good' is in flight already"),
            ]:
                with pytest.raises(RequestError, match=line):
                    await engine.generate(request)
            for tokens in (np.zeros(0, np.int32), np.zeros(65, np.int32), np.full(3, 61)):
                with pytest.raises(RequestError):
                    await engine.score(tokens)
            await engine.resume()
            return await good

    assert len(asyncio.run(main()).token_ids) == LONG


def test_a_cancelled_request_leaves_its_slot(lab):
    async def main():
        gate = lab.gate(2)
        async with lab.engine(slots=1, trace=gate) as engine:
            task = asyncio.create_task(engine.generate(lab.request("a", [1], max_new_tokens=LONG)))
            await gate.wait()
            task.cancel()
            await lab.until(lambda: not engine._stepper._inbox.empty())
            gate.opened.set()
            # the id is free again, and so is the slot
            completion = await engine.generate(lab.request("a", [2], max_new_tokens=3))
            return task, completion, await engine.status()

    task, completion, status = asyncio.run(main())
    assert task.cancelled()
    assert len(completion.token_ids) == 3
    assert status.tokens == 8 + 3


def test_close_ends_everything(lab):
    async def main():
        gate = lab.gate(2)
        async with lab.engine(slots=1, trace=gate) as engine:
            tasks = [
                asyncio.create_task(engine.generate(lab.request(str(i), [1], max_new_tokens=LONG))) for i in range(3)
            ]
            await gate.wait()
            pause = asyncio.create_task(engine.pause(PauseMode.WAIT))
            closing = asyncio.create_task(engine.close())
            await lab.until(lambda: not engine._stepper._inbox.empty())
            gate.opened.set()
            await closing
            outcomes = await asyncio.gather(*tasks, pause, return_exceptions=True)
            await engine.close()
            for call in (engine.generate(lab.request("x", [1])), engine.score(np.ones(3)), engine.resume()):
                with pytest.raises(EngineError, match="engine-0 was closed"):
                    await call
            with pytest.raises(EngineError):
                await engine.update_weights(lab.updates[1])
            assert (await engine.status()).version == 0
            return outcomes, engine._stepper.thread

    outcomes, thread = asyncio.run(main())
    assert all(isinstance(outcome, EngineError) for outcome in outcomes)
    assert not thread.is_alive()


def test_several_event_loops(lab):
    async def main():
        async with lab.engine() as engine:
            found = []

            def elsewhere():
                found.append(asyncio.run(engine.generate(lab.request("there", [7], max_new_tokens=9, seed=3))))

            thread = threading.Thread(target=elsewhere)
            thread.start()
            here = await engine.generate(lab.request("here", [7], max_new_tokens=9, seed=3))
            await asyncio.to_thread(thread.join, lab.deadline)
            return here, found[0]

    here, there = asyncio.run(main())
    np.testing.assert_array_equal(here.token_ids, there.token_ids)


def test_who_follows_a_request_sees_its_tokens_as_they_are_sampled(lab):
    async def main():
        async with lab.engine() as engine:
            request = lab.request("a", [4], max_new_tokens=LONG, seed=5)
            whole = asyncio.ensure_future(engine.generate(request))
            await asyncio.sleep(0)  # it begins
            parts = [await engine.progress("a", 0)]
            while len(parts[-1].token_ids):
                parts.append(await engine.progress("a", sum(len(part.token_ids) for part in parts)))
            return await whole, parts, await engine.progress("nobody", 0)

    whole, parts, unknown = asyncio.run(main())
    assert len(parts) > 2
    told = np.concatenate([part.token_ids for part in parts])
    assert told.tolist() == whole.token_ids[: len(told)].tolist()
    for name in ("logprobs", "versions"):
        seen = np.concatenate([getattr(part, name) for part in parts])
        assert seen.tolist() == getattr(whole, name)[: len(told)].tolist()
    assert len(unknown.token_ids) == 0


def test_who_follows_a_request_hears_of_the_engines_end(lab):
    async def main():
        gate = lab.gate(1)
        async with lab.engine(trace=gate, decode_steps=4) as engine:
            whole = asyncio.ensure_future(engine.generate(lab.request("a", [4], max_new_tokens=LONG)))
            await gate.wait()
            follows = asyncio.ensure_future(engine.progress("a", LONG - 1))
            closing = asyncio.ensure_future(engine.close())
            await lab.until(lambda: not engine._stepper._inbox.empty())
            gate.opened.set()
            await closing
            return await asyncio.gather(whole, follows, return_exceptions=True)

    for error in asyncio.run(main()):
        assert isinstance(error, EngineError)
