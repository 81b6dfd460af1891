"""The running batch: the requests that are being decoded, the slot and row of each, and their key-value cache.

The cache is as small as the running requests allow: it grows and shrinks by the sizes of `buckets`, because on a CPU
every idle slot and every unused position costs time. The slot of a request has no influence on its tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.models.cache import KVCache, init_cache
from rljax.models.common.architecture import Architecture
from rljax.models.common.hardware import Hardware
from rljax.models.common.heap import map_large, return_freed
from rljax.models.common.params import Params
from rljax.sampler import buckets, programs
from rljax.sampler.adapted import SideBySide
from rljax.sampler.programs import Decoded, Model, Rows
from sidecar.protocol import UNKNOWN_ROUTE
from sidecar.stepping.jobs import Job, Tokenizer, Trace, end_of_text

Read = tuple[bytes, int]
"""Tokens, int32, and the number of an adapter: what is read once for all requests that have it."""

_PREFILL_TOKENS = 8192  # prompt tokens read at once, padding included
_STOPS = (4, 16, 64, 256, 1024)  # numbers of stop tokens that a row is filled up to


class RunningBatch:
    """Decodes up to `slots` requests at a time. Belongs to one thread."""

    def __init__(
        self,
        architecture: Architecture,
        *,
        slots: int,
        max_length: int,
        decode_steps: int,
        dtype: str,
        device: jax.Device,
        tokenizer: Tokenizer | None,
        trace: Trace | None,
        record_routes: bool = False,
        held: int = 0,
    ) -> None:
        """Creates an empty batch; for the arguments see `EmbeddedEngine`. Nothing is
        allocated before the first request.
        """
        map_large()
        self.slots = slots
        self.max_length = max_length
        self.tokens_sampled = 0
        self.tokens_prefilled = 0
        self.compiling = False
        self._called: set[tuple[object, ...]] = set()
        self.version = -1
        self.params: Params | None = None
        self._held = SideBySide(held) if held else None
        self._architecture = architecture
        self._steps = decode_steps
        self._dtype = dtype
        self._device = device
        self._model = Model(architecture=architecture, hardware=Hardware.of(device), dtype=dtype)
        self._tokenizer = tokenizer
        self._trace = trace
        self._record_routes = record_routes
        self._batch_buckets = buckets.batch_buckets(slots)
        self._prefill_buckets = buckets.prefill_buckets(slots)
        self._cache_lengths = buckets.cache_lengths(max_length)
        self._prompt_lengths = buckets.prompt_lengths(max_length)
        self._jobs: list[Job | None] = [None] * slots
        self._rows = _idle_rows(slots)
        self._cache: KVCache | None = None

    @property
    def running(self) -> int:
        """Number of requests that hold a slot."""
        return sum(job is not None for job in self._jobs)

    @property
    def cache_shape(self) -> tuple[int, int]:
        """Slots and positions of the cache at present."""
        return (self._cache.slots, self._cache.length) if self._cache is not None else (0, 0)

    def jobs(self) -> list[Job]:
        """Returns the requests that hold a slot."""
        return [job for job in self._jobs if job is not None]

    def holds(self, version: int) -> bool:
        """Returns whether a request can be sampled for with these weights."""
        return version == self.version if self._held is None else version in self._held

    def load(self, params: Params, version: int, lineage: int, keep_kv: bool = False) -> list[Job]:
        """Replaces the weights. Returns the running requests: they lose their slots, for no older KV may be kept, but
        with ``keep_kv``. Where several versions are held, those alone whose weights are dropped.
        """
        if self._held is None:
            self.params, self.version = params, version
            return [] if keep_kv else self.evict()
        lost = self._held.put(params, version, lineage)
        self.params, self.version = self._held.params, version
        jobs = [job for slot, job in enumerate(self._jobs) if job is not None and self._rows.adapter[slot] in lost]
        for job in jobs:
            self.remove(job)
        return jobs

    def evict(self) -> list[Job]:
        """Frees every slot, and returns the requests that held them."""
        evicted = self.jobs()
        for job in evicted:
            self.remove(job)
        return evicted

    def remove(self, job: Job) -> None:
        """Frees the slot of a running request; ignores others."""
        for slot, holder in enumerate(self._jobs):
            if holder is job:
                self._free(slot)

    def admit(self, jobs: Sequence[Job]) -> None:
        """Gives each request a slot (there must be enough) and prefills its prompt and the tokens that it has."""
        if not jobs:
            return
        sequences = [job.sequence() for job in jobs]
        self._resize_cache(len(jobs), max(len(sequence) for sequence in sequences))
        free = [slot for slot in range(self.cache_shape[0]) if self._jobs[slot] is None]
        placed = list(zip(free, jobs, sequences, strict=False))
        for slot, job, sequence in placed:
            self._jobs[slot] = job
            self._write_row(slot, job, sequence)
        self._prefill([(slot, sequence[:-1]) for slot, _, sequence in placed if len(sequence) > 1])  # the last: `step`
        for job in jobs:
            job.read = True

    def _number(self, version: int) -> int:
        """Returns which of the adapters that lie side by side is a version's."""
        return 0 if self._held is None else self._held.number(version)

    def _version(self, slot: int) -> int:
        """Returns the version that a slot samples from."""
        return self.version if self._held is None else self._held.version(int(self._rows.adapter[slot]))

    def step(self) -> list[tuple[Job, str]]:
        """Samples up to `decode_steps` tokens for every running request. Returns those that ended, with the reason."""
        start = time.time()
        self._resize_cache(0, 0)
        size = self.cache_shape[0]
        rows = Rows(*(column[:size] for column in self._rows))
        truncate = bool(np.any((rows.budget > 0) & ((rows.top_k > 0) | (rows.top_p < 1))))
        self._cache, decoded = self._call(
            programs.decode,
            (*self.cache_shape, rows.stops.shape[1], truncate),
            self.params,
            self._cache,
            rows,
            steps=self._steps,
            truncate=truncate,
            record_routes=self._record_routes,
            **self._model,
        )
        host: Decoded = jax.device_get(decoded)
        self._advance(rows, host)
        ended = self._collect(host)
        self._note("decode", start, slots=float(size), tokens=float(host.counts.sum()))
        return ended

    def close(self) -> None:
        """Frees weights and cache."""
        self.params = self._cache = None

    def score(self, token_ids: np.ndarray, routes: np.ndarray | None = None) -> np.ndarray:
        """Returns log-probabilities at temperature 1 of all tokens but the first, float32 ``[n - 1]``, of a model with
        experts along ``routes`` where there are any.
        """
        padded = np.zeros((1, buckets.round_up(len(token_ids), self._prompt_lengths)), np.int32)
        padded[0, : len(token_ids)] = token_ids
        number = np.full(1, self._number(self.version), np.int32)
        given = None
        if routes is not None:
            given = np.full((*padded.shape, *routes.shape[1:]), UNKNOWN_ROUTE, np.int16)
            given[0, : len(token_ids)] = routes
        scores = self._call(programs.score, padded.shape, self.params, padded, number, given, **self._model)
        return np.array(scores[: len(token_ids) - 1])

    def _advance(self, rows: Rows, decoded: Decoded) -> None:
        counts = decoded.counts
        last = decoded.tokens[np.maximum(counts - 1, 0), np.arange(len(counts))]
        rows.token[:] = np.where(counts > 0, last, rows.token)
        rows.position[:] += counts
        rows.sampled[:] += counts
        rows.budget[:] = decoded.budget

    def _collect(self, decoded: Decoded) -> list[tuple[Job, str]]:
        tokens, logprobs = decoded.tokens.T.tolist(), decoded.logprobs.T.tolist()
        counts, budgets, stopped = decoded.counts.tolist(), decoded.budget.tolist(), decoded.stopped.tolist()
        ended: list[tuple[Job, str]] = []
        for slot, count in enumerate(counts):
            job = self._jobs[slot]
            if job is None:
                continue
            stop = stopped[slot]
            new = tokens[slot][:count]
            if job.request.sampling.stop_strings:
                end = self._end_of_text(job, new)
                # what was sampled beyond the end is not part of the answer
                if end is not None:
                    count, stop, budgets[slot] = end, True, 0
            if decoded.routes is not None:
                job.extend_routes(decoded.routes[: decoded.counts[slot], slot], job.length - 1)
            job.extend(new[:count], logprobs[slot][:count], self._version(slot))
            self.tokens_sampled += count
            if budgets[slot] == 0:
                self._free(slot)
                ended.append((job, "stop" if stop else "length"))
        return ended

    def _end_of_text(self, job: Job, new: list[int]) -> int | None:
        assert self._tokenizer is not None  # the engine refuses stop strings without one
        response = job.resumed() + job.tokens
        old = len(response)
        end = end_of_text(response + new, old, job.request.sampling.stop_strings, self._tokenizer)
        return None if end is None else end - old

    def _resize_cache(self, joining: int, longest: int) -> None:
        # the cache gets the smallest size for the requests running, those joining, and the tokens of one step
        held = [slot for slot, job in enumerate(self._jobs) if job is not None]
        wanted = buckets.round_up(len(held) + joining, self._batch_buckets)
        reach = max([longest, *(int(self._rows.position[slot]) + 1 for slot in held)]) + self._steps
        length = buckets.round_up(reach, self._cache_lengths)
        if self.cache_shape == (wanted, length):
            return
        if self._cache is None or not held:
            self._cache = None  # the old one's memory is free before the new one is made
            with jax.default_device(self._device):
                self._cache = init_cache(self._architecture, wanted, length, jnp.dtype(self._dtype))
            return
        sources = np.zeros(wanted, np.int32)
        sources[: len(held)] = held
        self._cache = programs.resize(self._cache, sources, length=length)
        jobs = [self._jobs[slot] for slot in held]
        self._jobs = jobs + [None] * (self.slots - len(held))
        for column in self._rows:
            column[: len(held)] = column[held]
        self._rows.budget[len(held) :] = 0

    def _prefill(self, placed: Sequence[tuple[int, np.ndarray]]) -> None:
        # Requests with the same tokens (the members of a group) and weights are read once. Short ones go together.
        slots_of: dict[Read, list[int]] = {}
        for slot, tokens in placed:
            slots_of.setdefault((tokens.tobytes(), int(self._rows.adapter[slot])), []).append(slot)
        distinct = sorted(slots_of.items(), key=lambda item: len(item[0][0]))
        while distinct:
            longest = buckets.round_up(len(distinct[-1][0][0]) // 4, self._prompt_lengths)
            fitting = [size for size in self._prefill_buckets if size * longest <= _PREFILL_TOKENS]
            count, size = next(buckets.split(len(distinct), fitting or self._prefill_buckets[:1]))
            chunk, distinct = distinct[-count:], distinct[:-count]
            self._read(chunk, size, longest)

    def _read(self, chunk: Sequence[tuple[Read, list[int]]], size: int, length: int) -> None:
        start = time.time()
        token_ids, lengths, adapters = (
            np.zeros((size, length), np.int32),
            np.ones(size, np.int32),
            np.zeros(size, np.int32),
        )
        for row, ((content, adapters[row]), _) in enumerate(chunk):
            tokens = np.frombuffer(content, np.int32)
            token_ids[row, : len(tokens)], lengths[row] = tokens, len(tokens)
        prompts, routes = self._call(
            programs.read_prompts,
            (size, length),
            self.params,
            token_ids,
            lengths,
            adapters,
            record_routes=self._record_routes,
            **self._model,
        )
        pairs = [(row, slot) for row, (_, slots) in enumerate(chunk) for slot in slots]
        if routes is not None:
            self._note_routes(pairs, lengths, np.asarray(routes))
        copies = np.full((2, buckets.round_up(len(pairs), self._batch_buckets)), [[0], [self.slots]], np.int32)
        copies[:, : len(pairs)] = np.asarray(pairs, np.int32).T
        assert self._cache is not None
        self._cache = jax.block_until_ready(programs.insert(self._cache, prompts, copies[0], copies[1]))
        read = int(lengths[: len(chunk)].sum())
        self.tokens_prefilled += read
        again = sum(int(n) for n, (_, slots) in zip(lengths, chunk, strict=False) if all(map(self._was_read, slots)))
        counts = {"rows": float(len(chunk)), "requests": float(len(pairs)), "tokens": float(read)}
        self._note("prefill", start, **counts, again=float(again))

    def _was_read(self, slot: int) -> bool:
        job = self._jobs[slot]
        return job is not None and (job.read or job.request.resumed_tokens > 0)

    def _note_routes(self, pairs: Sequence[tuple[int, int]], lengths: np.ndarray, routes: np.ndarray) -> None:
        for row, slot in pairs:
            job = self._jobs[slot]
            assert job is not None
            job.extend_routes(routes[row, : lengths[row]], 0)

    def _write_row(self, slot: int, job: Job, sequence: np.ndarray) -> None:
        rows, request, sampling = self._rows, job.request, job.request.sampling
        rows.adapter[slot] = self._number(request.min_version if request.pinned else self.version)
        rows.token[slot] = sequence[-1]
        rows.position[slot] = len(sequence) - 1
        rows.sampled[slot] = len(job.tokens)
        rows.budget[slot] = job.budget
        rows.temperature[slot] = sampling.temperature
        rows.top_k[slot] = 0 if sampling.temperature == 0 else sampling.top_k
        rows.top_p[slot] = 1 if sampling.temperature == 0 else sampling.top_p
        rows.seeds[slot] = divmod(sampling.seed & (2**64 - 1), 2**32)
        stops = sampling.stop_token_ids
        if len(stops) > rows.stops.shape[1]:
            width = buckets.round_up(len(stops), (*_STOPS, len(stops)))
            wider = np.full((self.slots, width), -1, np.int32)
            wider[:, : rows.stops.shape[1]] = rows.stops
            self._rows = rows = rows._replace(stops=wider)
        rows.stops[slot] = -1
        rows.stops[slot, : len(stops)] = stops

    def _free(self, slot: int) -> None:
        self._jobs[slot] = None
        self._rows.budget[slot] = 0

    def _call(self, program: Callable[..., Any], sizes: tuple[int, ...], *arguments: Any, **options: Any) -> Any:
        """Calls a program, and says in `compiling` as long as it is called that it is the first time with these sizes:
        XLA compiles it then, which takes longer than what it computes.
        """
        self.compiling = (program, *sizes) not in self._called
        try:
            return program(*arguments, **options)
        finally:
            self._called.add((program, *sizes))
            if self.compiling:
                return_freed()
            self.compiling = False

    def _note(self, what: str, start: float, **numbers: float) -> None:
        if self._trace is not None:
            self._trace(what, start, time.time(), numbers)


def _idle_rows(slots: int) -> Rows:
    def ints() -> np.ndarray:
        return np.zeros(slots, np.int32)

    def ones() -> np.ndarray:
        return np.ones(slots, np.float32)

    seeds, stops = np.zeros((slots, 2), np.uint32), np.full((slots, _STOPS[0]), -1, np.int32)
    return Rows(ints(), ints(), ints(), ints(), ones(), ints(), ones(), seeds, stops, ints())
