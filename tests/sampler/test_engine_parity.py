"""What the engine samples and records, against transformers' full forward pass."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from scipy import stats

pytestmark = [pytest.mark.slow, pytest.mark.optimised]

PROMPTS = [[3], [5, 9, 9, 1], list(range(1, 24)), [60, 0, 33], [7] * 17]


def test_greedy_equals_transformers_generate(lab):
    async def main():
        async with lab.engine() as engine:
            requests = [lab.request(str(i), p, temperature=0, max_new_tokens=20) for i, p in enumerate(PROMPTS)]
            return await asyncio.gather(*map(engine.generate, requests))

    for prompt, completion in zip(PROMPTS, asyncio.run(main()), strict=True):
        ids = torch.tensor([prompt])
        options = {"attention_mask": torch.ones_like(ids), "pad_token_id": 0, "eos_token_id": None}
        expected = lab.models[0].generate(ids, do_sample=False, max_new_tokens=20, **options)[0, len(prompt) :].tolist()
        assert completion.token_ids.tolist() == expected
        assert completion.finish_reason == "length"
        np.testing.assert_allclose(completion.logprobs, lab.logprobs(prompt, completion), atol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_recorded_logprobs_are_the_full_forward_passes(lab, temperature):
    async def main():
        async with lab.engine() as engine:
            requests = [
                lab.request(str(i), p, temperature=temperature, max_new_tokens=40, seed=i)
                for i, p in enumerate(PROMPTS)
            ]
            return await asyncio.gather(*map(engine.generate, requests))

    for prompt, completion in zip(PROMPTS, asyncio.run(main()), strict=True):
        assert (completion.token_ids.dtype, completion.logprobs.dtype) == (np.int32, np.float32)
        assert completion.versions.tolist() == [0] * 40
        assert completion.versions.dtype == np.int32
        np.testing.assert_allclose(completion.logprobs, lab.logprobs(prompt, completion, temperature), atol=1e-4)


def test_truncated_logprobs_renormalise(lab):
    cases = [(0.8, 5, 1.0), (1.0, 0, 0.7), (1.3, 20, 0.9), (1.0, 0, 1.0)]

    async def main():
        async with lab.engine() as engine:
            requests = [
                lab.request(str(i), [4, 2], temperature=t, top_k=k, top_p=p, max_new_tokens=12, seed=i)
                for i, (t, k, p) in enumerate(cases)
            ]
            return await asyncio.gather(*map(engine.generate, requests))

    for (temperature, top_k, top_p), completion in zip(cases, asyncio.run(main()), strict=True):
        logits = lab.logits([4, 2], completion.token_ids.tolist()) / temperature
        for row, token, logprob in zip(logits, completion.token_ids, completion.logprobs, strict=True):
            order = np.argsort(-row)
            candidates = order[: top_k or None]
            p = np.exp(row[candidates]) / np.exp(row[candidates]).sum()
            keep = np.cumsum(p) - p < top_p if top_p < 1 else np.ones(len(p), bool)
            kept = dict(zip(candidates[keep].tolist(), p[keep] / p[keep].sum(), strict=True))
            assert logprob == pytest.approx(np.log(kept[int(token)]), abs=1e-4)


def test_the_first_token_follows_the_models_distribution(lab):
    draws = 3000

    async def main():
        async with lab.engine(slots=32) as engine:
            requests = [lab.request(str(i), [8, 3], temperature=0.3, max_new_tokens=1, seed=i) for i in range(draws)]
            return await asyncio.gather(*map(engine.generate, requests))

    counts = np.bincount([int(c.token_ids[0]) for c in asyncio.run(main())], minlength=61)
    logits = lab.logits([8, 3])[-1] / 0.3
    expected = np.exp(logits) / np.exp(logits).sum() * draws
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    assert stats.chisquare(observed, np.append(expected[~rare], expected[rare].sum())).pvalue > 1e-3


def test_score_is_raw_and_untruncated(lab, rng):
    tokens = rng.integers(0, 61, 41)

    async def main():
        async with lab.engine(None) as engine:
            early = asyncio.create_task(engine.score(tokens))  # waits for the first weights
            await asyncio.sleep(0)
            await engine.update_weights(lab.updates[1])
            return await early, await engine.score(tokens[:1])

    scores, none = asyncio.run(main())
    logits = lab.logits(tokens, version=1)[:-1]
    table = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, table[np.arange(40), tokens[1:]], atol=1e-4)
    assert none.shape == (0,)


def test_bf16_computes_in_bf16(lab):
    async def main():
        async with lab.engine(dtype=np.dtype("bfloat16")) as engine:
            return await engine.generate(lab.request("a", [1, 2, 3], max_new_tokens=20, seed=1))

    completion = asyncio.run(main())
    gap = np.abs(completion.logprobs - lab.logprobs([1, 2, 3], completion)).max()
    assert 1e-4 < gap < 0.5
