"""Protocol between an engine that generates tokens and its callers.

An *engine* turns token ids into token ids. Everything that crosses this boundary is plain data: numpy arrays, strings,
numbers and dataclasses of them, so that it travels through threads, processes and Ray alike.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np


class PauseMode(enum.StrEnum):
    """Policy for the requests in flight when an engine is paused. Those that arrive later are held."""

    KEEP = "keep"  # they are suspended with their tokens and slots, and go on at resume
    WAIT = "wait"  # the running ones run to their end first; those that wait go on waiting
    ABORT = "abort"  # all return at once with the tokens that they have, those that wait with none


class UpdatePolicy(enum.StrEnum):
    """Policy for the requests in flight when weights are updated. No KV of older weights is used by newer ones, but
    with `KEEP_KV` in the requests that the engine has begun with then, as long as no version is rolled back.
    """

    IN_FLIGHT = "in_flight"  # they are suspended while it loads and go on with it from their next token
    KEEP_KV = "keep_kv"  # as IN_FLIGHT, with the KV that they have: nothing is read again
    DRAIN = "drain"  # the running ones run to their end first, with the weights that they began with
    ABORT = "abort"  # all return at once with the tokens that they have; the caller sends the rest again
    PIN = "pin"  # they run on with the weights that they began with, which are kept beside the new ones, with their KV


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of a request.

    Attributes:
        temperature: divides the logits; 0 is greedy (refused for training).
        top_p: nucleus mass in (0, 1]; 1 is untruncated.
        top_k: number of candidates; 0 is untruncated.
        min_p: candidates have at least this share of the likeliest one's probability; 0 is untruncated.
        repetition_penalty: divides positive logits, and multiplies negative ones, of tokens that prompt or response
            has; 1 changes nothing. Acts on greedy requests too.
        max_new_tokens: budget of sampled tokens, at least 1.
        stop_token_ids: sampling any of these ends the request; the token is included.
        stop_strings: the request ends when its decoded text contains one; no token is trimmed.
        seed: 63-bit seed of this request's own random stream.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int = 16
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        masses = 0 < self.top_p <= 1 and 0 <= self.min_p <= 1 and self.repetition_penalty > 0
        if self.temperature < 0 or not masses or self.top_k < 0 or self.max_new_tokens < 1:
            raise ValueError(f"sampling parameters out of bounds: {self}")


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Request to continue one prompt.

    Attributes:
        id: unique among the requests in flight.
        prompt_ids: int32 ``[prompt]``, at least one token.
        sampling: the sampling parameters.
        min_version: no token is sampled from weights older than this; the request waits for them.
        pinned: nor from newer ones: all tokens are of that version.
        affinity: requests with the same key profit from sharing an engine (a common prefix).
        priority: of those that wait, lower runs first; among equals the first to come.
        resumed_tokens: how many of the last prompt tokens are the beginning of this response, made by an earlier
            request that was cut short: a stop string may begin in them.
        followed: `Engine.progress` will be asked for it.
    """

    id: str
    prompt_ids: np.ndarray
    sampling: SamplingParams
    min_version: int = 0
    affinity: str = ""
    priority: int = 0
    resumed_tokens: int = 0
    followed: bool = False
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Completion:
    """Tokens that an engine generated for a request.

    Attributes:
        token_ids: int32 ``[n]``, the sampled tokens, stop token included.
        logprobs: float32 ``[n]``, of the distribution actually sampled from (temperature applied, truncation
            renormalised), in nats. For greedy decoding: of the raw distribution at temperature 1.
        versions: int32 ``[n]``, the weight version that each token was sampled from.
        finish_reason: ``stop``, ``length`` or ``abort``.
        routes: int16 ``[prompt + n, layers, picked]``, the experts that each token of prompt and response was sent to
            by the pass that sampled from it, `UNKNOWN_ROUTE` where that recorded none, whatever a later one recorded
            that read it again; and of the last one, which none has read. None where the engine records none.
    """

    token_ids: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    finish_reason: str
    routes: np.ndarray | None = None


UNKNOWN_ROUTE = -1
"""Entry of `Completion.routes` that nobody has recorded: never an expert."""
NOTHING = Completion(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32), "abort")
"""No tokens."""


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """Update of an engine's weights to a published version.

    Attributes:
        version: batches that the weights have seen.
        lineage: life of the learner that published them.
        path: a directory or an address; `sidecar.channels.versions.receive` reads both.
        policy: what happens to the requests in flight.
    """

    version: int
    lineage: int
    path: str
    policy: UpdatePolicy = UpdatePolicy.IN_FLIGHT


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Status of an engine.

    Attributes:
        version: version of the weights loaded, -1 before the first.
        lineage: lineage of those weights, -1 before the first.
        running: requests that hold a slot.
        waiting: requests queued, for a slot or for a version.
        slots: requests that can run at once.
        paused: whether generation is paused.
        busy_seconds: time spent computing since the start, monotone.
        tokens: tokens sampled since the start, monotone.
        details: engine-specific gauges, by name.
    """

    version: int
    lineage: int
    running: int
    waiting: int
    slots: int
    paused: bool
    busy_seconds: float
    tokens: int
    details: Mapping[str, float] = field(default_factory=dict)


class EngineError(RuntimeError):
    """The engine cannot serve: it died, or it was closed."""


class EngineUnfitError(EngineError):
    """The engine can never do what the run asks of it, nor can another that is started in its place."""


class RequestError(ValueError):
    """This one request can never be served (it is too long, or empty); the engine goes on."""


class PinnedVersionError(RequestError):
    """The version that a pinned request needs is no longer held, or never was: its trajectory is to begin anew."""

    @classmethod
    def of(cls, request: GenerateRequest, name: str) -> PinnedVersionError:
        """Makes the error for a request, of the engine of that name."""
        return cls(f"request {request.id}: {name} does not hold version {request.min_version}, which it is pinned to")


class WeightUpdateError(RuntimeError):
    """A version did not load or did not match its checksums. The engine still serves the version that it had."""


class WeightsGoneError(WeightUpdateError):
    """The version is not there: it was withdrawn, or is gone with the process that held it. Another will come."""


class Engine(Protocol):
    """Generates tokens. All methods may be called from any event loop, also before the first weights."""

    async def generate(self, request: GenerateRequest) -> Completion:
        """Continues a prompt. Waits while the engine is paused or its weights are older than ``min_version``.

        Raises:
            RequestError: the prompt is empty, or prompt and budget exceed the engine's context.
            PinnedVersionError: the request is pinned to a version that the engine does not hold.
            EngineError: the engine died or was closed.
        """
        ...

    async def progress(self, request_id: str, seen: int) -> Completion:
        """Returns the tokens of a request behind the first ``seen``, as soon as there are any, as an abort would.

        None come where the request has ended, or is unknown: what it made then, `generate` has returned. To be called
        after that, for a request that is ``followed``.

        Raises:
            EngineError: the engine died or was closed.
        """
        ...

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Aborts these requests; each returns the tokens that it has with reason ``abort``. Unknown ids are ignored."""
        ...

    async def score(self, token_ids: np.ndarray, routes: np.ndarray | None = None) -> np.ndarray:
        """Returns float32 ``[n - 1]``: raw log-probability (temperature 1, untruncated) of ``token_ids[1:]``.

        Args:
            token_ids: int32 ``[n]``.
            routes: int16 ``[n, layers, picked]``, the experts that each token is sent to, with the gates that its
                logits give them; None: those that the routers choose. For an engine that records them.

        Raises:
            RequestError: see `generate`; or the engine takes no routes.
        """
        ...

    async def update_weights(self, update: WeightUpdate) -> None:
        """Loads a version. The update's `UpdatePolicy` decides about the requests in flight.

        Raises:
            WeightUpdateError: nothing changed; the engine keeps its version.
        """
        ...

    async def pause(self, mode: PauseMode) -> None:
        """Stops sampling; returns once no token is being sampled. Requests that arrive meanwhile are held."""
        ...

    async def resume(self) -> None:
        """Resumes sampling after `pause`."""
        ...

    async def status(self) -> EngineStatus:
        """Returns the current status; never waits for running work."""
        ...

    async def close(self) -> None:
        """Closes the engine; requests in flight raise `EngineError`."""
        ...
