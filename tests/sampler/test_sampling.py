"""The maths of drawing a token, against numpy in float64 and the statistics of many draws."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from rljax.sampler.sampling import request_uniforms, sample, truncated

pytestmark = pytest.mark.slow

LOGITS = np.random.default_rng(0).normal(size=(6, 300)).astype(np.float32) * 3
jitted = jax.jit(sample, static_argnames="truncate")


def seeds_of(seeds) -> jnp.ndarray:
    seeds = np.asarray(seeds, np.uint64)
    return jnp.asarray(np.stack([seeds >> np.uint64(32), seeds & np.uint64(0xFFFFFFFF)], 1).astype(np.uint32))


def reference(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """The distribution drawn from, by sorting, in float64."""
    scaled = logits.astype(np.float64) / temperature
    order = np.argsort(-scaled, kind="stable")
    keep = np.zeros(len(logits), bool)
    keep[order[: top_k or None]] = True
    p = np.where(keep, np.exp(scaled - scaled.max()), 0)
    p /= p.sum()
    if top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        keep[order[before >= top_p]] = False
        p = np.where(keep, p, 0)
        p /= p.sum()
    return p


def draw(logits, temperature=1.0, top_k=0, top_p=1.0, seeds=None, index=0, truncate=True):
    rows = len(logits)
    fill = functools.partial(np.full, rows)
    uniforms = request_uniforms(seeds_of(np.arange(rows) if seeds is None else seeds), jnp.asarray(fill(index)))
    arguments = (jnp.asarray(fill(temperature), jnp.float32), jnp.asarray(fill(top_k)), jnp.asarray(fill(top_p)))
    tokens, logprobs = jitted(jnp.asarray(logits), *arguments, uniforms, truncate=truncate)
    return np.asarray(tokens), np.asarray(logprobs)


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.7])
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(0, 1.0), (1, 1.0), (5, 1.0), (0, 0.9), (0, 0.1), (40, 0.8), (1000, 0.999)]
)
def test_log_probabilities_renormalise(temperature, top_k, top_p):
    tokens, logprobs = draw(LOGITS, temperature, top_k, top_p)
    for row, token, logprob in zip(LOGITS, tokens, logprobs, strict=True):
        expected = reference(row, temperature, top_k, top_p)
        assert expected[token] > 0
        assert logprob == pytest.approx(np.log(expected[token]), abs=2e-5)


@pytest.mark.parametrize(("top_k", "top_p"), [(1, 1.0), (7, 1.0), (0, 0.5), (0, 0.95), (30, 0.7), (0, 1e-6)])
def test_candidates_are_exactly_those_of_a_sort(top_k, top_p):
    kept = truncated(jnp.asarray(LOGITS), jnp.full(6, top_k), jnp.full(6, top_p, jnp.float32))
    for row, mask in zip(LOGITS, np.asarray(kept), strict=True):
        np.testing.assert_array_equal(mask, reference(row, 1.0, top_k, top_p) > 0)


def test_ties_with_the_last_candidate_are_kept():
    logits = jnp.asarray([[1.0, 3.0, 2.0, 2.0, -1.0]])
    one = jnp.ones(1)
    assert np.asarray(truncated(logits, jnp.asarray([2]), one)).tolist() == [[False, True, True, True, False]]
    assert np.asarray(truncated(jnp.zeros((1, 4)), jnp.asarray([0]), one * 0.5)).all()


def test_greedy_is_argmax_with_raw_log_probabilities():
    tokens, logprobs = draw(LOGITS, temperature=0.0, top_k=3, top_p=0.5)
    np.testing.assert_array_equal(tokens, LOGITS.argmax(1))
    expected = np.log([reference(row, 1.0, 0, 1.0).max() for row in LOGITS])
    np.testing.assert_allclose(logprobs, expected, atol=2e-5)


@pytest.mark.parametrize("vocabulary", [5, 128, 300])
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.7, 0, 1.0), (1.5, 0, 0.9), (1.0, 4, 1.0)]
)
def test_empirical_distribution(vocabulary, temperature, top_k, top_p):
    draws = 20_000
    logits = np.random.default_rng(vocabulary).normal(size=vocabulary).astype(np.float32) * 2
    truncate = bool(top_k) or top_p < 1
    rows = np.broadcast_to(logits, (draws, vocabulary))
    tokens, _ = draw(rows, temperature, top_k, top_p, seeds=np.arange(draws), index=3, truncate=truncate)
    expected = reference(logits, temperature, top_k, top_p) * draws
    counts = np.bincount(tokens, minlength=vocabulary)
    assert not counts[expected == 0].any()
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    nonzero = wanted > 0
    assert stats.chisquare(observed[nonzero], wanted[nonzero]).pvalue > 1e-3


def test_consecutive_tokens_and_seeds_are_independent_and_uniform():
    seeds = seeds_of(np.arange(2000) + (1 << 62))
    streams = np.stack([np.asarray(request_uniforms(seeds, jnp.full(2000, i))) for i in range(4)])
    columns = streams.transpose(1, 0, 2).reshape(2000, 8)
    assert (columns >= 0).all()
    assert (columns < 1).all()
    for column in columns.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-3
    correlations = np.corrcoef(columns.T) - np.eye(8)
    assert np.abs(correlations).max() < 0.1
    assert np.abs(np.corrcoef(columns[:-1, 0], columns[1:, 0])[0, 1]) < 0.1


def test_a_stream_depends_on_all_63_bits_of_the_seed_and_on_the_index_only():
    seeds = [0, 1, 1 << 31, 1 << 32, 1 << 62]
    streams = np.asarray(request_uniforms(seeds_of(seeds), jnp.zeros(5, jnp.int32)))
    assert len(np.unique(streams)) == 10
    shuffled = np.asarray(request_uniforms(seeds_of(seeds[::-1]), jnp.zeros(5, jnp.int32)))
    np.testing.assert_array_equal(shuffled, streams[::-1])


def test_impossible_tokens_are_never_drawn():
    logits = np.full((4096, 200), -np.inf, np.float32)
    logits[:, 130] = 0
    logits[:, 7] = -1
    tokens, logprobs = draw(logits, truncate=False)
    assert set(tokens.tolist()) == {7, 130}
    assert np.isfinite(logprobs).all()


def test_a_row_is_not_touched_by_its_neighbours():
    mixed = jitted(
        jnp.asarray(LOGITS),
        jnp.asarray([1.0, 0.0, 0.7, 1.0, 1.0, 2.0]),
        jnp.asarray([0, 0, 5, 0, 3, 0]),
        jnp.asarray([1.0, 1.0, 1.0, 0.5, 0.9, 1.0]),
        request_uniforms(seeds_of(np.arange(6)), jnp.full(6, 4)),
        truncate=True,
    )
    cases = [(1.0, 0, 1.0), (0.0, 0, 1.0), (0.7, 5, 1.0), (1.0, 0, 0.5), (1.0, 3, 0.9), (2.0, 0, 1.0)]
    for row, case in enumerate(cases):
        alone = draw(LOGITS[row : row + 1], *case, seeds=[row], index=4)
        assert int(mixed[0][row]) == alone[0][0]
        assert float(mixed[1][row]) == pytest.approx(alone[1][0], abs=1e-6)


@pytest.mark.parametrize("vocabulary", [5, 128, 129, 300])
def test_no_running_sum_of_one_number_is_asked_for(vocabulary):
    """XLA of jax 0.11 compiles none for GPUs: the quickstart's engine died of it on an H100."""
    rows = 2
    arguments = (jnp.ones(rows), jnp.zeros(rows, jnp.int32), jnp.ones(rows), jnp.zeros((rows, 2)))
    program = str(jax.make_jaxpr(functools.partial(sample, truncate=False))(jnp.zeros((rows, vocabulary)), *arguments))
    widths = [int(width) for width in re.findall(r"f32\[\d+,(\d+)\] = cumsum", program)]
    assert min(widths) > 1, program
