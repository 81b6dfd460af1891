"""vLLM holds versions side by side, as adapters, and a request keeps the one that it began with, and its KV."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sidecar.hosting.local import LocalEngineLauncher
from sidecar.protocol import Completion, PinnedVersionError, UpdatePolicy, WeightUpdateError
from tests.sidecar.vllm.asking import LONG, PROMPT, ask, response_logprobs, until_sampled
from tests.sidecar.vllm.conftest import BODIES, MODEL, Lab, Loop, run_alone, spec
from tests.sidecar.vllm.models import adapted_model, publish, publish_adapters, random_model, tensors, token_logprobs

HELD = 2
WORDS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.fixture(scope="module", params=list(BODIES))
def lab(request: pytest.FixtureRequest, loop: Loop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """An engine that holds as many versions as may be in use where none is staler than a step; five adapters for it."""
    directory = tmp_path_factory.mktemp(request.param)
    base = directory / "model"
    random_model(MODEL, 0).save_pretrained(base)
    models = [adapted_model(MODEL, seed) for seed in range(5)]
    updates = publish_adapters(directory / "weights", base, [factors for _, factors in models])
    updates = [replace(update, policy=UpdatePolicy.PIN) for update in updates]
    engine_launcher = LocalEngineLauncher()
    settings = {"held": HELD, "rank": 4, "adapted": WORDS}
    engine = loop.run(engine_launcher.start(spec(request.param, base, **settings)))
    yield Lab(engine, loop, [model for model, _ in models], updates, directory)
    loop.run(engine.close())
    engine_launcher.close()


def is_of(lab: Lab, version: int, done: Completion, tokens: int) -> None:
    assert done.versions.tolist() == [version] * tokens
    np.testing.assert_allclose(done.logprobs, response_logprobs(lab, version, done), atol=1e-4)


def test_each_request_is_of_one_version_and_what_is_held_no_more_is_said_to_be(lab: Lab) -> None:
    async def main() -> None:
        await lab.engine.update_weights(lab.updates[0])
        first = ask(lab, max_new_tokens=LONG, seed=1)
        await until_sampled(lab, first)
        await lab.engine.update_weights(lab.updates[1])
        assert not first.done()
        np.testing.assert_allclose(await lab.engine.score(PROMPT), token_logprobs(lab.models[1], PROMPT), atol=1e-4)
        second = ask(lab, max_new_tokens=8, seed=2)
        turn = ask(lab, min_version=0, pinned=True, max_new_tokens=8, seed=3)
        is_of(lab, 1, await second, 8)
        is_of(lab, 0, await turn, 8)
        is_of(lab, 0, await first, LONG)
        ahead = ask(lab, min_version=2, pinned=True, max_new_tokens=4)
        late = ask(lab, min_version=1, pinned=True, max_new_tokens=LONG)
        await until_sampled(lab, late)
        await lab.engine.update_weights(lab.updates[2])
        is_of(lab, 2, await ahead, 4)
        with pytest.raises(PinnedVersionError, match="does not hold version 0"):
            await ask(lab, min_version=0, pinned=True, max_new_tokens=4)
        is_of(lab, 1, await ask(lab, min_version=1, pinned=True, max_new_tokens=4), 4)
        is_of(lab, 1, await late, LONG)

    lab.run(main())


def test_an_older_version_that_is_validated_takes_nothing_from_those_in_use(lab: Lab) -> None:
    async def main() -> None:
        for version in (2, 3, 1):
            await lab.engine.update_weights(lab.updates[version])
        assert (await lab.engine.status()).version == 1
        is_of(lab, 1, await ask(lab, max_new_tokens=4), 4)
        for version in (2, 3):
            held = ask(lab, min_version=version, pinned=True, max_new_tokens=4)  # newer than what serves: it waits
            await lab.engine.update_weights(lab.updates[version])
            is_of(lab, version, await held, 4)

    lab.run(main())


def test_a_new_lineage_takes_what_is_newer_and_what_it_publishes_again(lab: Lab, tmp_path: Path) -> None:
    again = publish_adapters(tmp_path, lab.directory / "model", [adapted_model(MODEL, 4)[1]] * 4)[3]
    path = Path(again.path)
    renamed = path.with_name("v3-2")
    path.rename(renamed)
    manifest = json.loads((renamed / "manifest.json").read_text())
    (renamed / "manifest.json").write_text(json.dumps({**manifest, "lineage": 2}))

    async def main() -> None:
        for version in (3, 4):
            await lab.engine.update_weights(lab.updates[version])
        await lab.engine.update_weights(replace(lab.updates[3], lineage=2, path=str(renamed)))
        done = await ask(lab, max_new_tokens=4)
        np.testing.assert_array_equal(done.versions, 3)
        np.testing.assert_allclose(done.logprobs, response_logprobs(lab, 4, done), atol=1e-4)
        waits = ask(lab, min_version=4, pinned=True, max_new_tokens=4)
        await asyncio.wait([waits], timeout=0.2)
        assert not waits.done()
        waits.cancel()

    lab.run(main())


def test_what_cannot_be_held_is_refused_and_the_engine_goes_on(lab: Lab, tmp_path: Path) -> None:
    serving = lab.run(lab.engine.status()).version
    whole = replace(publish(tmp_path, 9, tensors(random_model(MODEL, 0))), policy=UpdatePolicy.PIN)
    wide = publish_adapters(tmp_path, lab.directory / "model", [adapted_model(MODEL, 0, rank=12)[1]])[0]
    for update, why in (
        (whole, "a whole model"),
        (replace(wide, policy=UpdatePolicy.PIN), r"of rank \[12\], and the engine has room for 4"),
        (replace(lab.updates[4], policy=UpdatePolicy.IN_FLIGHT), "holds 2 versions at once: .* by policy in_flight"),
    ):
        with pytest.raises(WeightUpdateError, match=why):
            lab.run(lab.engine.update_weights(update))
    assert len(lab.run(asked(lab)).token_ids) == 4
    assert lab.run(lab.engine.status()).version == serving


async def asked(lab: Lab) -> Completion:
    return await ask(lab, max_new_tokens=4)


def test_kv_is_kept_for_its_version_and_used_for_no_other(tmp_path: Path) -> None:
    base = tmp_path / "model"
    random_model(MODEL, 0).save_pretrained(base)
    updates = publish_adapters(tmp_path / "weights", base, [adapted_model(MODEL, seed)[1] for seed in range(2)])
    job = {"model": str(base), "words": WORDS, "paths": [update.path for update in updates]}
    run_alone("pinned_kv", tmp_path, job, "out.json")
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["first"] == 0
    assert found["same version, after the update"] >= 96
    assert found["the new version"] == 0
    assert found["the new version again"] >= 96
