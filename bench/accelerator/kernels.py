"""Kernels of the device against plain numpy in float64: attention, log-probabilities, gradient of the embedding.

An error is ||ours - reference|| / ||reference||, the reference being given the inputs as they were rounded. float32 is
computed at the highest precision of matrix products; at the default one a GPU or TPU rounds their operands.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.accelerator.peaks import attention_flops
from bench.accelerator.shapes import EIGHTHS, MODELS
from rljax.models.common.architecture import Architecture
from rljax.models.common.attention.attention import attention, body_for
from rljax.models.common.attention.spans import causal_spans
from rljax.models.common.embedding import embed
from rljax.models.common.hardware import Hardware
from rljax.models.common.logprobs import token_logprobs

Row = dict[str, Any]
Arrays = tuple[np.ndarray, ...]
BOUNDS = {"float32": 1e-4, "bfloat16": 2e-2}
TIMED = 5
LOGPROB_TOKENS = 256  # the reference holds all their logits, in float64


def measure(models: list[str], lengths: list[int], timed_rows: list[int]) -> Iterator[Row]:
    """Yields a row for each comparison, then one for each row length whose attention is timed.

    Args:
        models: whose heads and widths are taken.
        lengths: places of the rows that are compared.
        timed_rows: places of packed rows, in the last model's shape.
    """
    for dtype in ("float32", "bfloat16"):
        for name in models:
            for length in lengths:
                yield from compare_attention(MODELS[name], f"{name}, {length} places", length, dtype)
        yield compare_logprobs(MODELS[models[0]], models[0], min(lengths[0], LOGPROB_TOKENS), dtype)
        yield compare_embedding(dtype)
    for places in timed_rows:
        yield time_attention(MODELS[models[-1]], models[-1], places)


def segments_of(length: int) -> np.ndarray:
    """Returns segment ids of a row, int32 ``[1, length]``: three sequences, then an eighth of padding."""
    parts = [length * eighths // 9 for eighths in EIGHTHS]
    numbers = np.repeat([1, 2, 3, 0], [*parts, length - sum(parts)])
    return numbers[None].astype(np.int32)


def drawn(dtype: str, *shapes: tuple[int, ...]) -> Arrays:
    """Returns normal numbers, rounded to ``dtype``, as float64."""
    rng = np.random.default_rng(0)
    return tuple(np.asarray(jnp.asarray(rng.normal(size=shape), dtype), np.float64) for shape in shapes)


def error_of(ours: Any, reference: np.ndarray) -> float:
    """Returns the relative error in the norm; NaN where ours has one."""
    found = np.asarray(jnp.asarray(ours, jnp.float32), np.float64)
    return float(np.linalg.norm(found - reference) / np.linalg.norm(reference))


def reference_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, segments: np.ndarray, d: np.ndarray) -> Arrays:
    """Returns attention of ``[time, heads, width]``, and the gradients by query, key and value of its product with
    ``d``. Padding sees and gives nothing.
    """
    heads, shared = q.shape[1], q.shape[1] // k.shape[1]
    places = np.arange(len(q))
    seen = (places[:, None] >= places) & (segments[:, None] == segments) & (segments[:, None] > 0)
    out, dq, dk, dv = (np.zeros_like(x) for x in (q, q, k, v))
    scale = q.shape[2] ** -0.5
    for head in range(heads):
        one = head // shared
        scores = np.where(seen, scale * q[:, head] @ k[:, one].T, -np.inf)
        weights = np.exp(scores - np.max(scores, axis=1, keepdims=True, initial=-1e30))
        weights /= np.maximum(weights.sum(1, keepdims=True), 1e-300)
        out[:, head] = weights @ v[:, one]
        dv[:, one] += weights.T @ d[:, head]
        d_weights = d[:, head] @ v[:, one].T
        d_scores = scale * weights * (d_weights - (weights * d_weights).sum(1, keepdims=True))
        dq[:, head], dk[:, one] = d_scores @ k[:, one], dk[:, one] + d_scores.T @ q[:, head]
    return out, dq, dk, dv


def compare_attention(a: Architecture, case: str, length: int, dtype: str) -> Iterator[Row]:
    """Yields the errors of attention's values and of its gradients."""
    segments = segments_of(length)
    heads, kv = (length, a.num_heads, a.head_dim), (length, a.num_kv_heads, a.head_dim)
    q, k, v, d = drawn(dtype, heads, kv, kv, heads)
    d[segments[0] == 0] = 0  # what padding gives means nothing
    wanted = reference_attention(q, k, v, segments[0], d)
    hardware = Hardware.of(jax.devices()[0])

    def both(q: Any, k: Any, v: Any, d: Any) -> Any:
        spans = causal_spans(jnp.asarray(segments))
        out, pull = jax.vjp(lambda q, k, v: attention(q, k, v, spans, hardware), q, k, v)
        return out, *pull(d)

    arguments = [jnp.asarray(x, dtype)[None] for x in (q, k, v, d)]
    with jax.default_matmul_precision("highest"):
        found = jax.jit(both)(*arguments)
    real = segments[0] > 0
    row = {"bound": BOUNDS[dtype], "body": body_of(arguments[0], hardware)}
    yield row | {"case": f"attention, {case}, {dtype}: values", "error": error_of(found[0][0][real], wanted[0][real])}
    errors = [error_of(x[0], y) for x, y in zip(found[1:], wanted[1:], strict=True)]
    yield row | {"case": f"attention, {case}, {dtype}: gradients", "error": max(errors), "errors": errors}


def body_of(query: Any, hardware: Hardware) -> str:
    """Returns the body that attention gets, and why it is not the platform's kernel."""
    body = body_for(query, hardware)
    return f"{body.name} ({body.reason})" if body.reason else body.name


def compare_logprobs(a: Architecture, model: str, tokens: int, dtype: str) -> Row:
    """Returns the error of log-probabilities and entropies, and of their gradients."""
    hidden, table, d = drawn(dtype, (tokens, a.hidden_size), (a.vocab_size, a.hidden_size), (2, tokens))
    table *= 0.05
    targets = np.random.default_rng(1).integers(0, a.vocab_size, tokens)
    table = np.asarray(jnp.asarray(table, dtype), np.float64)
    d = np.asarray(jnp.asarray(d, jnp.float32), np.float64)

    logits = hidden @ table.T
    highest = logits.max(1, keepdims=True)
    log_p = logits - highest - np.log(np.exp(logits - highest).sum(1, keepdims=True))
    p = np.exp(log_p)
    entropy = -(p * log_p).sum(1)
    d_logits = -p * (d[0][:, None] + d[1][:, None] * (log_p + entropy[:, None]))
    d_logits[np.arange(tokens), targets] += d[0]
    wanted = [log_p[np.arange(tokens), targets], entropy, d_logits @ table, d_logits.T @ hidden]

    hardware, wanted_ids = Hardware.of(jax.devices()[0]), jnp.asarray(targets)[None]

    def both(hidden: Any, table: Any, d: Any) -> Any:
        def computed(hidden: Any, table: Any) -> Any:
            params = {"embedding": table} if a.tie_embeddings else {"head": table.T}
            return token_logprobs(params, a, hidden, wanted_ids, 1.0, chunk=max(tokens // 4, 1), hardware=hardware)

        found, pull = jax.vjp(computed, hidden, table)
        return *found, *pull((d[:1], d[1:]))

    with jax.default_matmul_precision("highest"):
        found = jax.jit(both)(jnp.asarray(hidden, dtype)[None], jnp.asarray(table, dtype), jnp.asarray(d, jnp.float32))
    errors = [error_of(x.reshape(y.shape), y) for x, y in zip(found, wanted, strict=True)]
    case = f"log-probabilities, {model}, {tokens} tokens, {dtype}: values and gradients"
    return {"case": case, "error": max(errors), "errors": errors, "bound": BOUNDS[dtype]}


def compare_embedding(dtype: str, tokens: int = 8192, width: int = 64) -> Row:
    """Returns the error of the embedding's gradient where every other token is the same: more than bfloat16 can add."""
    (d,) = drawn(dtype, (tokens, width))
    d = np.asarray(jnp.asarray(np.abs(d), dtype), np.float64)
    ids = np.where(np.arange(tokens) % 2, np.arange(tokens) % 500, 7)
    wanted, hardware = np.zeros((512, width)), Hardware.of(jax.devices()[0])
    np.add.at(wanted, ids, d)

    def gradient(table: Any, d: Any) -> Any:
        return jax.vjp(lambda t: embed(t, jnp.asarray(ids)[None], hardware), table)[1](d)[0]

    found = jax.jit(gradient)(jnp.zeros((512, width), dtype), jnp.asarray(d, dtype)[None])
    case = f"gradient of the embedding, {tokens} tokens, {dtype}"
    return {"case": case, "error": error_of(found, wanted), "bound": BOUNDS[dtype]}


def time_attention(a: Architecture, model: str, places: int) -> Row:
    """Returns what forward and backward pass of one layer's attention over a packed row take, in bfloat16."""
    parts = [places // 8 * eighths for eighths in EIGHTHS]
    segments = jnp.asarray(np.repeat([1, 2, 3], parts)[None], jnp.int32)
    q, k, v = (
        jax.random.normal(jax.random.key(n), (1, places, heads, a.head_dim), jnp.bfloat16)
        for n, heads in enumerate((a.num_heads, a.num_kv_heads, a.num_kv_heads))
    )

    def both(q: Any, k: Any, v: Any) -> Any:
        out, pull = jax.vjp(lambda q, k, v: attention(q, k, v, causal_spans(segments), hardware), q, k, v)
        return out, *pull(out)

    hardware = Hardware.of(jax.devices()[0])
    row = {"case": f"attention, {model}, row of {places}, bfloat16: forward and backward", "body": body_of(q, hardware)}
    try:
        compiled = jax.jit(both).lower(q, k, v).compile()
        seconds = median_seconds(lambda: compiled(q, k, v))
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return row | {"out_of_memory": str(error).splitlines()[0][:200]}
    return row | {"seconds": seconds, "flops": attention_flops(a, parts)}


def median_seconds(call: Callable[[], Any]) -> float:
    """Returns the median of some calls, after one that does not count."""
    found = []
    for _ in range(TIMED + 1):
        begin = time.perf_counter()
        jax.block_until_ready(call())
        found.append(time.perf_counter() - begin)
    return statistics.median(found[1:])
