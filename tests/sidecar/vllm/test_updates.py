"""New weights under a vLLM engine of either body: requests in flight, and versions that are wrong."""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np
import pytest

from sidecar.protocol import Completion, PauseMode, UpdatePolicy, WeightUpdateError
from tests.models.hf_models import logprobs_over_kept_kv
from tests.sidecar.vllm.asking import ENDLESS, LONG, PROMPT, ask, response_logprobs, serve, until_sampled
from tests.sidecar.vllm.conftest import Lab
from tests.sidecar.vllm.models import publish, tensors, token_logprobs


def test_an_update_in_flight_goes_on_with_the_new_weights_and_no_old_keys(lab: Lab) -> None:
    async def run() -> list[Completion]:
        await serve(lab, 0)
        requests = [ask(lab, max_new_tokens=ENDLESS, seed=seed) for seed in range(4)]
        await until_sampled(lab, *requests)
        await serve(lab, 1)
        await lab.engine.score(PROMPT)  # the requests go along, with the new weights
        await lab.engine.pause(PauseMode.ABORT)
        await lab.engine.resume()
        return list(await asyncio.gather(*requests))

    for done in lab.run(run()):
        old = done.versions == 0
        assert 0 < old.sum() < len(done.versions)
        assert done.versions.tolist() == sorted(done.versions.tolist())
        np.testing.assert_allclose(done.logprobs[old], response_logprobs(lab, 0, done)[old], atol=1e-4)
        np.testing.assert_allclose(done.logprobs[~old], response_logprobs(lab, 1, done)[~old], atol=1e-4)


def test_requests_keep_the_kv_that_they_have_where_they_are_told_to(lab: Lab) -> None:
    """And those that begin with the new weights share none of it."""
    prompt = np.resize(PROMPT, 200)  # more than a block of the cache

    async def run() -> list[Completion]:
        await serve(lab, 0)
        requests = [ask(lab, prompt=prompt, max_new_tokens=ENDLESS, seed=seed) for seed in range(3)]
        await until_sampled(lab, *requests)
        await serve(lab, 1, UpdatePolicy.KEEP_KV)
        fresh = await ask(lab, prompt=prompt, max_new_tokens=8, seed=1, min_version=1)
        scores = await lab.engine.score(prompt)
        np.testing.assert_allclose(scores, token_logprobs(lab.models[1], prompt), atol=1e-4)
        await lab.engine.pause(PauseMode.ABORT)
        await lab.engine.resume()
        return [fresh, *await asyncio.gather(*requests)]

    fresh, *kept = lab.run(run())
    expected = token_logprobs(lab.models[1], np.concatenate([prompt, fresh.token_ids]))[len(prompt) - 1 :]
    np.testing.assert_allclose(fresh.logprobs, expected, atol=1e-4)
    for done in kept:
        old = int((done.versions == 0).sum())
        assert 0 < old < len(done.versions)
        whole, read = np.concatenate([prompt, done.token_ids]), len(prompt) + old - 1
        expected = token_logprobs(lab.models[0], whole)[len(prompt) - 1 : read]
        np.testing.assert_allclose(done.logprobs[:old], expected, atol=1e-4)
        expected = logprobs_over_kept_kv(lab.models[0], lab.models[1], whole, read)
        np.testing.assert_allclose(done.logprobs[old:], expected, atol=1e-4)


def test_none_is_kept_of_a_version_that_is_rolled_back(lab: Lab) -> None:
    async def run() -> Completion:
        await serve(lab, 1)
        running = ask(lab, max_new_tokens=ENDLESS, seed=3)
        await until_sampled(lab, running)
        await serve(lab, 0, UpdatePolicy.KEEP_KV)
        await lab.engine.score(PROMPT)  # the request goes along
        await lab.engine.pause(PauseMode.ABORT)
        await lab.engine.resume()
        return await running

    done = lab.run(run())
    lost = done.versions == 1
    assert 0 < lost.sum() < len(done.versions)
    np.testing.assert_allclose(done.logprobs[~lost], response_logprobs(lab, 0, done)[~lost], atol=1e-4)


def test_draining_lets_the_running_end_with_the_weights_that_they_began_with(lab: Lab) -> None:
    async def run() -> tuple[Completion, Completion]:
        await serve(lab, 0)
        running = ask(lab, max_new_tokens=LONG, seed=1)
        await until_sampled(lab, running)
        update = asyncio.ensure_future(serve(lab, 1, UpdatePolicy.DRAIN))
        later = ask(lab, max_new_tokens=4, seed=2, min_version=1)
        done = await running
        await update
        return done, await later

    done, later = lab.run(run())
    assert done.versions.tolist() == [0] * LONG
    assert later.versions.tolist() == [1] * 4


def test_an_aborting_update_returns_the_tokens_that_there_are(lab: Lab) -> None:
    async def run() -> Completion:
        await serve(lab, 0)
        running = ask(lab, max_new_tokens=ENDLESS, seed=1)
        await until_sampled(lab, running)
        await serve(lab, 1, UpdatePolicy.ABORT)
        return await running

    done = lab.run(run())
    assert done.finish_reason == "abort"
    assert 0 < len(done.token_ids) < ENDLESS
    np.testing.assert_allclose(done.logprobs, response_logprobs(lab, 0, done), atol=1e-4)
    assert set(done.versions.tolist()) == {0}


def test_nothing_is_sampled_from_weights_older_than_asked_for(lab: Lab) -> None:
    async def run() -> Completion:
        await serve(lab, 0)
        waiting = ask(lab, max_new_tokens=5, min_version=1)
        await lab.engine.score(PROMPT)
        assert not waiting.done()
        await serve(lab, 1)
        return await waiting

    assert lab.run(run()).versions.tolist() == [1] * 5


@pytest.mark.parametrize("fault", ["missing", "shape", "corrupt", "gone"])
def test_a_version_that_is_wrong_leaves_the_engine_on_its_own(lab: Lab, fault: str) -> None:
    arrays = {name: array.copy() for name, array in tensors(lab.models[1]).items()}
    name = "model.layers.1.mlp.up_proj.weight"
    if fault == "missing":
        del arrays[name]
    if fault == "shape":
        arrays[name] = arrays[name][:, :-1]
    update = publish(lab.directory / f"{fault}", 7, arrays)
    if fault == "corrupt":
        manifest = next((lab.directory / fault).glob("*/manifest.json"))
        text = manifest.read_text()
        at = text.index("xxh3:") + len("xxh3:")
        manifest.write_text(text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :])
    if fault == "gone":
        update = dataclasses.replace(update, path=update.path + "x")

    async def run() -> np.ndarray:
        await serve(lab, 0)
        with pytest.raises(WeightUpdateError, match=r"did not load version 7 .* keeps version 0: .+"):
            await lab.engine.update_weights(update)
        assert (await lab.engine.status()).version == 0
        return await lab.engine.score(PROMPT)

    np.testing.assert_allclose(lab.run(run()), token_logprobs(lab.models[0], PROMPT), atol=1e-4)
