"""Both vLLM engines, in processes of their own, against transformers and against the protocol."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from sidecar.protocol import Completion, GenerateRequest, PauseMode, RequestError, SamplingParams
from tests.sidecar.vllm.asking import (
    ENDLESS,
    LONG,
    PROMPT,
    ask,
    response_logprobs,
    serial,
    serve,
    until_running,
    until_sampled,
)
from tests.sidecar.vllm.conftest import SLOTS, Lab
from tests.sidecar.vllm.models import VOCABULARY, logprobs, token_logprobs


def test_sampled_tokens_come_with_the_log_probabilities_of_what_they_were_sampled_from(lab: Lab) -> None:
    async def run() -> list[Completion]:
        await serve(lab, 0)
        plain = [ask(lab, max_new_tokens=20, temperature=t, seed=3) for t in (1.0, 0.7)]
        return list(await asyncio.gather(*plain, ask(lab, max_new_tokens=20, temperature=0.7, top_k=5, seed=4)))

    hot, cool, truncated = lab.run(run())
    np.testing.assert_allclose(hot.logprobs, response_logprobs(lab, 0, hot), atol=1e-4)
    np.testing.assert_allclose(cool.logprobs, response_logprobs(lab, 0, cool, 0.7), atol=1e-4)
    whole = np.concatenate([PROMPT, truncated.token_ids])
    full = np.exp(logprobs(lab.models[0], whole, 0.7)[len(PROMPT) - 1 :].astype(np.float64))
    kept = np.sort(full, axis=1)[:, -5:].sum(1)
    expected = np.log(full[np.arange(20), truncated.token_ids] / kept)
    np.testing.assert_allclose(truncated.logprobs, expected, atol=1e-4)
    assert [c.finish_reason for c in (hot, cool, truncated)] == ["length"] * 3
    assert hot.token_ids.dtype == np.int32
    assert hot.versions.tolist() == [0] * 20


def test_greedy_tokens_are_the_likeliest_and_come_with_raw_log_probabilities(lab: Lab) -> None:
    async def run() -> Completion:
        await serve(lab, 0)
        return await ask(lab, max_new_tokens=12, temperature=0.0)

    done = lab.run(run())
    rows = logprobs(lab.models[0], np.concatenate([PROMPT, done.token_ids]))[len(PROMPT) - 1 :]
    assert done.token_ids.tolist() == rows.argmax(1).tolist()
    np.testing.assert_allclose(done.logprobs, rows.max(1), atol=1e-4)


def test_min_p_and_a_repetition_penalty_bound_what_is_sampled(lab: Lab) -> None:
    async def run() -> list[Completion]:
        await serve(lab, 1)
        likeliest = ask(lab, temperature=0.0, max_new_tokens=6)
        bounded = ask(lab, temperature=1.0, min_p=1.0, seed=3, max_new_tokens=6)
        unlike = ask(lab, temperature=0.0, repetition_penalty=1e6, max_new_tokens=12)
        return list(await asyncio.gather(likeliest, bounded, unlike))

    likeliest, bounded, unlike = lab.run(run())
    assert bounded.token_ids.tolist() == likeliest.token_ids.tolist(), "only the likeliest is as likely as itself"
    assert len({*unlike.token_ids.tolist()} - {*PROMPT.tolist()}) == 12, "no token of prompt or response comes again"


def test_a_seed_decides_the_tokens(lab: Lab) -> None:
    async def run() -> list[Completion]:
        await serve(lab, 0)
        return list(await asyncio.gather(*(ask(lab, max_new_tokens=16, seed=seed) for seed in (7, 7, 8))))

    first, same, other = lab.run(run())
    assert first.token_ids.tolist() == same.token_ids.tolist()
    assert first.token_ids.tolist() != other.token_ids.tolist()


def test_scores_are_raw_log_probabilities(lab: Lab) -> None:
    async def run() -> np.ndarray:
        await serve(lab, 1)
        return await lab.engine.score(PROMPT)

    np.testing.assert_allclose(lab.run(run()), token_logprobs(lab.models[1], PROMPT), atol=1e-4)


def test_of_those_that_wait_the_most_urgent_run_first(lab: Lab) -> None:
    """One more than there are slots comes before it, and one that only newer weights may serve."""
    ended: list[str] = []

    def told(name: str, priority: int, min_version: int = 0) -> asyncio.Future[Completion]:
        asked = ask(lab, max_new_tokens=30, seed=1, priority=priority, min_version=min_version)
        asked.add_done_callback(lambda _: ended.append(name))
        return asked

    async def run() -> None:
        await serve(lab, 0)
        await lab.engine.pause(PauseMode.KEEP)
        too_new = told("too new", 0, min_version=1)
        crowd = [told(f"{number}", 2) for number in range(SLOTS + 1)]
        urgent = told("urgent", 1)
        await lab.engine.status()  # on its way after them
        await lab.engine.resume()
        await asyncio.gather(urgent, *crowd)
        await serve(lab, 1)
        await too_new

    lab.run(run())
    assert set(ended[SLOTS:]) == {str(SLOTS - 1), str(SLOTS), "too new"}
    assert ended[-1] == "too new"


def test_a_request_alone_is_aborted_and_keeps_its_tokens(lab: Lab) -> None:
    async def run() -> tuple[Completion, Completion, Completion]:
        await serve(lab, 0)
        waiting = GenerateRequest("waits", PROMPT, SamplingParams(max_new_tokens=5), min_version=9)
        one = GenerateRequest("one", PROMPT, SamplingParams(max_new_tokens=ENDLESS, seed=1))
        held, aborted = (asyncio.ensure_future(lab.engine.generate(request)) for request in (waiting, one))
        other = ask(lab, max_new_tokens=LONG, seed=2)
        await until_sampled(lab, aborted, other)
        await lab.engine.abort(["one", "waits", "unknown"])
        return await held, await aborted, await other

    held, aborted, other = lab.run(run())
    assert (held.finish_reason, len(held.token_ids)) == ("abort", 0)
    assert aborted.finish_reason == "abort"
    assert 0 < len(aborted.token_ids) < ENDLESS
    assert (other.finish_reason, len(other.token_ids)) == ("length", LONG)


@pytest.mark.parametrize("mode", list(PauseMode))
def test_a_pause_holds_what_comes_and_treats_what_runs_as_it_says(lab: Lab, mode: PauseMode) -> None:
    async def run() -> tuple[Completion, Completion]:
        await serve(lab, 0)
        running = ask(lab, max_new_tokens=ENDLESS if mode is PauseMode.ABORT else LONG, seed=1)
        await until_sampled(lab, running)
        await lab.engine.pause(mode)
        ended = running.done()
        tokens = (await lab.engine.status()).tokens
        held = ask(lab, max_new_tokens=3, seed=2)
        assert (await lab.engine.status()).paused
        assert (await lab.engine.status()).tokens == tokens
        assert not held.done()
        assert ended or mode is PauseMode.KEEP
        await lab.engine.resume()
        return await running, await held

    running, held = lab.run(run())
    assert running.finish_reason == ("abort" if mode is PauseMode.ABORT else "length")
    assert len(held.token_ids) == 3


def test_a_stop_token_ends_a_request_and_is_part_of_it(lab: Lab) -> None:
    async def run() -> tuple[Completion, Completion]:
        await serve(lab, 0)
        free = await ask(lab, max_new_tokens=20, seed=5)
        stop = int(free.token_ids[9])
        return free, await ask(lab, max_new_tokens=20, seed=5, stop_token_ids=(stop,))

    free, stopped = lab.run(run())
    end = free.token_ids.tolist().index(free.token_ids[9]) + 1
    assert stopped.token_ids.tolist() == free.token_ids[:end].tolist()
    assert stopped.finish_reason == "stop"


def test_a_stop_string_ends_a_request_also_where_it_began_in_an_earlier_one(lab: Lab) -> None:
    """The likeliest tokens, each of one text: where a stop string ends in them is where it ends in their texts."""
    vocabulary = AutoTokenizer.from_pretrained(lab.directory / "model")
    before = 6

    async def greedy(**how: Any) -> Completion:
        return await ask(lab, max_new_tokens=24, temperature=0.0, **how)

    async def run() -> list[Completion]:
        await serve(lab, 0)
        free = await greedy()
        texts = [vocabulary.decode([token]) for token in free.token_ids]
        across = "".join(texts[before - 1 : before + 2])
        resent = np.concatenate([PROMPT, free.token_ids[:before]]).astype(np.int32)
        stops = ("never there", across)
        resumed = greedy(prompt=resent, resumed_tokens=before, stop_strings=stops)
        return [free, *await asyncio.gather(greedy(stop_strings=stops), resumed, greedy(stop_strings=stops[:1]))]

    free, whole, resumed, unstopped = lab.run(run())
    texts = [vocabulary.decode([token]) for token in free.token_ids]
    stop = "".join(texts[before - 1 : before + 2])
    first = next(end for end in range(25) if stop in "".join(texts[:end]))
    assert first == before + 2, "the stop string must not stand in the response before"
    assert whole.token_ids.tolist() == free.token_ids[:first].tolist()
    assert resumed.token_ids.tolist() == free.token_ids[before:first].tolist()
    np.testing.assert_allclose(resumed.logprobs, free.logprobs[before:first], atol=1e-4)
    assert resumed.versions.tolist() == [0] * (first - before)
    assert [c.finish_reason for c in (whole, resumed, unstopped)] == ["stop", "stop", "length"]
    assert unstopped.token_ids.tolist() == free.token_ids.tolist()


def test_who_follows_a_request_sees_its_tokens_as_they_are_sampled(lab: Lab) -> None:
    async def run() -> tuple[Completion, list[Completion], Completion, Completion]:
        await serve(lab, 0)
        sampling = SamplingParams(temperature=1.0, max_new_tokens=ENDLESS, seed=8)
        request = GenerateRequest(f"r{next(serial)}", PROMPT, sampling, followed=True)
        whole = asyncio.ensure_future(lab.engine.generate(request))
        await asyncio.sleep(0)  # it begins
        parts: list[Completion] = []
        while len(parts) < 3:
            seen = await lab.engine.progress(request.id, sum(len(part.token_ids) for part in parts))
            assert len(seen.token_ids), "it samples on until it is aborted"
            parts.append(seen)
        await lab.engine.abort([request.id])
        done = await whole
        after = await lab.engine.progress(request.id, 0)
        return done, parts, after, await lab.engine.progress("nobody", 0)

    whole, parts, after, unknown = lab.run(run())
    told = np.concatenate([part.token_ids for part in parts])
    assert told.tolist() == whole.token_ids[: len(told)].tolist()
    logprobs = np.concatenate([part.logprobs for part in parts])
    assert logprobs.tolist() == whole.logprobs[: len(told)].tolist()
    assert {version for part in parts for version in part.versions.tolist()} == {0}
    assert len(after.token_ids) == len(unknown.token_ids) == 0


def test_a_cancelled_request_leaves_its_slot(lab: Lab) -> None:
    async def run() -> None:
        await serve(lab, 0)
        running = ask(lab, max_new_tokens=ENDLESS, seed=1)
        await until_sampled(lab, running)
        running.cancel()
        await until_running(lab, lambda running: running == 0)

    lab.run(run())


def test_what_can_never_be_served_is_refused_at_once(lab: Lab) -> None:
    for prompt, tokens, word in (
        (PROMPT, 10**6, "context"),
        (PROMPT[:0], 1, "at least one"),
        (PROMPT + 60, 1, "vocab"),
    ):

        async def run(prompt: np.ndarray = prompt, tokens: int = tokens) -> Completion:
            return await ask(lab, prompt=prompt, max_new_tokens=tokens)

        with pytest.raises(RequestError, match=word):
            lab.run(run())


def test_more_prompts_than_one_step_reads_are_all_answered(lab: Lab) -> None:
    """Seeded requests whose prompts are cut kill vLLM 0.32 on a CPU: 40 of 190 tokens do not fit into 4096."""
    prompts = [np.random.default_rng(i).integers(0, VOCABULARY, 190).astype(np.int32) for i in range(40)]

    async def run() -> list[Completion]:
        await serve(lab, 0)
        return list(await asyncio.gather(*(ask(lab, prompt=p, max_new_tokens=3, seed=1) for p in prompts)))

    for prompt, done in zip(prompts, lab.run(run()), strict=True):
        expected = token_logprobs(lab.models[0], np.concatenate([prompt, done.token_ids]))[-3:]
        np.testing.assert_allclose(done.logprobs, expected, atol=1e-4)


def test_more_requests_than_slots_all_end(lab: Lab) -> None:
    async def run() -> list[Completion]:
        await serve(lab, 0)
        return list(await asyncio.gather(*(ask(lab, max_new_tokens=6, seed=seed) for seed in range(60))))

    assert all(len(done.token_ids) == 6 and done.token_ids.max() < VOCABULARY for done in lab.run(run()))
