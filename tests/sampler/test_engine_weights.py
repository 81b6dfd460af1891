"""Versions: waited for, swapped in flight, refused when damaged; nothing is sampled from a mixture."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.models.layered import LayeredTensors
from rljax.sampler import programs
from rljax.weights import memory
from rljax.weights.memory import MemoryPublisher
from sidecar.channels.files import read_version
from sidecar.channels.versions import MANIFEST_NAME
from sidecar.protocol import PauseMode, UpdatePolicy, WeightUpdate, WeightUpdateError
from tests.models.hf_models import logprobs_over_kept_kv
from tests.sampler.conftest import ARCHITECTURE

pytestmark = pytest.mark.slow

LONG = 50


async def update_after(lab, engine, gate, tasks, update):
    """Lets the update take effect right after the decode call that the gate stops at."""
    await gate.wait()
    loading = asyncio.create_task(engine.update_weights(update))
    await lab.until(lambda: engine._stepper._inbox.qsize() == 1)
    gate.opened.set()
    await loading
    return await asyncio.gather(*tasks)


def test_new_weights_in_flight(lab):
    prompts = [[4, 5], list(range(10)), [60]]

    async def main():
        gate = lab.gate(3)
        async with lab.engine(trace=gate) as engine:
            requests = [lab.request(str(i), p, max_new_tokens=LONG, seed=i) for i, p in enumerate(prompts)]
            tasks = [asyncio.create_task(engine.generate(request)) for request in requests]
            completions = await update_after(lab, engine, gate, tasks, lab.updates[1])
            return completions, await engine.status()

    completions, status = asyncio.run(main())
    assert (status.version, status.lineage) == (1, 1)
    for prompt, completion in zip(prompts, completions, strict=True):
        changes = np.flatnonzero(np.diff(completion.versions))
        assert len(changes) == 1
        cut = int(changes[0]) + 1
        assert cut in (8, 12)  # a request may have missed the first decode call
        assert completion.versions.tolist() == [0] * cut + [1] * (LONG - cut)
        old, new = (lab.logprobs(prompt, completion, version=version) for version in (0, 1))
        np.testing.assert_allclose(completion.logprobs[:cut], old[:cut], atol=1e-4)
        # the whole prefix seen by the new weights: with any old keys or values this would be far off
        np.testing.assert_allclose(completion.logprobs[cut:], new[cut:], atol=1e-4)
        assert np.abs(old[cut:] - new[cut:]).max() > 0.1


def test_requests_keep_the_kv_that_they_have_where_they_are_told_to(lab):
    prompt = list(range(3, 20))

    async def main():
        gate = lab.gate(3)
        async with lab.engine(trace=gate) as engine:
            running = asyncio.create_task(engine.generate(lab.request("a", prompt, max_new_tokens=LONG - 10, seed=1)))
            update = replace(lab.updates[1], policy=UpdatePolicy.KEEP_KV)
            [kept] = await update_after(lab, engine, gate, [running], update)
            prefilled = engine._batch.tokens_prefilled
            fresh = await engine.generate(lab.request("b", prompt, max_new_tokens=8, seed=1))
            return kept, prefilled, fresh

    kept, prefilled, fresh = asyncio.run(main())
    cut = int(np.flatnonzero(np.diff(kept.versions))[0]) + 1
    assert prefilled == len(prompt) - 1, "nothing was read again"
    old = lab.logprobs(prompt, kept, version=0)
    np.testing.assert_allclose(kept.logprobs[:cut], old[:cut], atol=1e-4)
    whole = np.concatenate([prompt, kept.token_ids])
    expected = logprobs_over_kept_kv(*lab.models, whole, len(prompt) + cut - 1)
    np.testing.assert_allclose(kept.logprobs[cut:], expected, atol=1e-4)
    assert np.abs(lab.logprobs(prompt, kept, version=1)[cut:] - expected).max() > 0.1, "it makes a difference"
    np.testing.assert_allclose(fresh.logprobs, lab.logprobs(prompt, fresh, version=1), atol=1e-4)


def test_a_version_that_never_left_the_device_is_the_same_as_its_files(lab, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "is_on_accelerator", lambda array: isinstance(array, jax.Array))
    tensors = {name: jnp.asarray(array) for name, array in read_version(lab.updates[1].path).tensors.items()}
    address = MemoryPublisher(tmp_path).publish(1, 1, tensors, model="tiny", dtype="fp32")
    token_ids = np.arange(20, dtype=np.int32)

    async def main(update):
        async with lab.engine(version=None) as engine:
            await engine.update_weights(update)
            return await engine.score(token_ids)

    handed_over, read = (asyncio.run(main(update)) for update in (WeightUpdate(1, 1, address), lab.updates[1]))
    np.testing.assert_array_equal(handed_over, read)
    assert not any(array.is_deleted() for array in tensors.values())


def test_the_stream_goes_on_after_an_update(lab):
    """With the same weights under a new number, an update changes nothing but the number."""
    tensors = read_version(lab.updates[0].path).tensors
    path = lab.publisher.publish(2, 1, tensors, model="tiny", dtype="fp32")
    request = lab.request("a", [4, 5], max_new_tokens=LONG, seed=9)

    async def main():
        gate = lab.gate(2)
        async with lab.engine(trace=gate) as engine:
            task = asyncio.create_task(engine.generate(request))
            (disturbed,) = await update_after(lab, engine, gate, [task], WeightUpdate(2, 1, str(path)))
        async with lab.engine() as engine:
            return disturbed, await engine.generate(request)

    disturbed, undisturbed = asyncio.run(main())
    np.testing.assert_array_equal(disturbed.token_ids, undisturbed.token_ids)
    assert disturbed.versions.tolist() == [0] * 8 + [2] * (LONG - 8)


def test_update_while_paused_keep(lab):
    async def main():
        gate = lab.gate(2)
        async with lab.engine(trace=gate) as engine:
            task = asyncio.create_task(engine.generate(lab.request("a", [4], max_new_tokens=LONG, seed=2)))
            await gate.wait()
            pause = asyncio.create_task(engine.pause(PauseMode.KEEP))
            await lab.until(lambda: not engine._stepper._inbox.empty())
            gate.opened.set()
            await pause
            await engine.update_weights(lab.updates[1])
            scores = await engine.score(np.asarray([1, 2, 3]))
            assert not task.done()
            await engine.resume()
            return await task, scores

    completion, scores = asyncio.run(main())
    assert completion.versions.tolist() == [0] * 8 + [1] * (LONG - 8)
    np.testing.assert_allclose(completion.logprobs[8:], lab.logprobs([4], completion, version=1)[8:], atol=1e-4)
    logits = lab.logits([1, 2, 3], version=1)
    table = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    np.testing.assert_allclose(scores, [table[0, 2], table[1, 3]], atol=1e-4)


def test_min_version_is_waited_for_and_others_pass(lab):
    async def main():
        async with lab.engine() as engine:
            picky = asyncio.create_task(engine.generate(lab.request("picky", [4], min_version=1, max_new_tokens=9)))
            easy = await engine.generate(lab.request("easy", [4], max_new_tokens=9))
            status = await engine.status()
            assert not picky.done()
            await engine.update_weights(lab.updates[1])
            return easy, status, await picky

    easy, status, picky = asyncio.run(main())
    assert easy.versions.tolist() == [0] * 9
    assert (status.running, status.waiting) == (0, 1)
    assert picky.versions.tolist() == [1] * 9


def test_roll_back_takes_the_slot_of_requests_that_need_newer_weights(lab):
    tensors = read_version(lab.updates[0].path).tensors
    back = lab.publisher.publish(0, 2, tensors, model="tiny", dtype="fp32")
    again = lab.publisher.publish(1, 2, tensors, model="tiny", dtype="fp32")

    async def main():
        gate = lab.gate(2)
        async with lab.engine(1, trace=gate) as engine:
            request = lab.request("a", [4], min_version=1, max_new_tokens=LONG)
            task = asyncio.create_task(engine.generate(request))
            await gate.wait()
            loading = asyncio.create_task(engine.update_weights(WeightUpdate(0, 2, str(back))))
            await lab.until(lambda: engine._stepper._inbox.qsize() == 1)
            gate.opened.set()
            await loading
            other = await engine.generate(lab.request("b", [4], max_new_tokens=3))
            assert not task.done()
            status = await engine.status()
            await engine.update_weights(WeightUpdate(1, 2, str(again)))
            return await task, other, status

    completion, other, status = asyncio.run(main())
    assert completion.versions.tolist() == [1] * LONG
    assert other.versions.tolist() == [0] * 3
    assert (status.version, status.lineage, status.running, status.waiting) == (0, 2, 0, 1)


def corrupt(lab, path: Path) -> str:
    file = max((path / "state").rglob("d/*"), key=lambda f: f.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return "v5-1"


def lie_about_a_checksum(lab, path: Path) -> str:
    file = path / MANIFEST_NAME
    content = json.loads(file.read_text())
    content["tensors"]["model.norm.weight"]["checksum"] = "crc32:12345678"
    file.write_text(json.dumps(content))
    return r"tensor model\.norm\.weight is corrupted"


def reshape(lab, path: Path) -> str:
    tensors = dict(read_version(path).tensors)
    tensors["model.norm.weight"] = np.ones(7, np.float32)
    lab.publisher.publish(5, 1, tensors, model="tiny", dtype="fp32")
    return r"tensor model\.norm\.weight has shape \[7\], expected \[32\]"


def forget_a_tensor(lab, path: Path) -> str:
    tensors = dict(read_version(path).tensors)
    del tensors["model.norm.weight"]
    lab.publisher.publish(5, 1, tensors, model="tiny", dtype="fp32")
    return r"lacks 1 tensors, the first is model\.norm\.weight"


def withdraw(lab, path: Path) -> str:
    shutil.rmtree(path)
    return "v5-1 is not there: never published, or withdrawn"


def misname(lab, path: Path) -> str:
    shutil.rmtree(path)
    shutil.copytree(lab.updates[1].path, path)
    return "holds version 1 of lineage 1"


@pytest.mark.parametrize("damage", [corrupt, lie_about_a_checksum, reshape, forget_a_tensor, withdraw, misname])
def test_a_version_that_does_not_load_changes_nothing(lab, damage):
    tensors = read_version(lab.updates[1].path).tensors
    path = Path(lab.publisher.publish(5, 1, tensors, model="tiny", dtype="fp32"))
    line = damage(lab, path)

    async def main():
        async with lab.engine() as engine:
            task = asyncio.create_task(engine.generate(lab.request("a", [4], max_new_tokens=LONG, seed=2)))
            with pytest.raises(
                WeightUpdateError, match=rf"did not load version 5 .* keeps version 0: .*{line}"
            ) as error:
                await engine.update_weights(WeightUpdate(5, 1, str(path)))
            assert "\n" not in str(error.value)
            completion = await task
            later = await engine.generate(lab.request("b", [4], max_new_tokens=5, seed=2))
            assert (await engine.status()).version == 0
            await engine.update_weights(lab.updates[1])
            assert (await engine.status()).version == 1
            return completion, later

    completion, later = asyncio.run(main())
    assert set(completion.versions.tolist()) == {0}
    np.testing.assert_allclose(completion.logprobs, lab.logprobs([4], completion), atol=1e-4)
    np.testing.assert_array_equal(later.token_ids, completion.token_ids[:5])


def test_the_trace_names_what_was_done(lab):
    spans = []

    async def main():
        async with lab.engine(trace=lambda *span: spans.append(span)) as engine:
            await asyncio.gather(*(engine.generate(lab.request(str(i), [4, 2, 1], max_new_tokens=6)) for i in range(3)))

    asyncio.run(main())
    assert {span[0] for span in spans} == {"receive", "load", "swap", "prefill", "decode"}
    assert all(start <= end for _, start, end, _ in spans)
    prefilled = [numbers for what, _, _, numbers in spans if what == "prefill"]
    assert sum(numbers["requests"] for numbers in prefilled) == 3
    assert sum(numbers["tokens"] for what, *_, numbers in spans if what == "decode") == 18


def test_an_engine_computes_with_the_very_arrays_that_it_is_handed(lab, tmp_path):
    """Of another dtype it makes its own, of the tensors by name."""
    tensors = read_version(lab.updates[1].path).tensors
    device, scores = jax.devices()[0], {}
    token_ids = np.arange(20, dtype=np.int32)

    async def main(update, dtype):
        async with lab.engine(version=None, dtype=dtype) as engine:
            await engine.update_weights(update)
            return engine._batch.params, await engine.score(token_ids)

    for dtype in ("float32", "bfloat16"):
        handed = LayeredTensors(
            programs.place(tensors, architecture=ARCHITECTURE, dtype="float32", device=device), ARCHITECTURE
        )
        publisher = MemoryPublisher(tmp_path, adopted=True)
        address = publisher.publish(1, 1, handed, model="tiny", dtype="fp32")
        params, scores[dtype, "handed"] = asyncio.run(main(WeightUpdate(1, 1, address), dtype))
        _, scores[dtype, "read"] = asyncio.run(main(lab.updates[1], dtype))
        assert (params is handed.params) == (dtype == "float32")
        publisher.close()
        assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(handed.params))
        np.testing.assert_array_equal(scores[dtype, "handed"], scores[dtype, "read"])
