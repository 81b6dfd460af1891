"""Counts what the endpoint does, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rljax.rollout.engine_pool import EnginePool


class Meters:
    """Counters of one server; `text` reads the gauges of its engines.

    Attributes:
        requests: replies, by endpoint and status; 499 is a client that left.
        prompt_tokens, generated_tokens: of answers that came to their end.
        seconds: from request to the end of the reply, of answers that came to their end.
    """

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.requests = Counter("rljax_requests", "Replies", ["endpoint", "status"], registry=registry)
        self.prompt_tokens = Counter("rljax_prompt_tokens", "Tokens of prompts", registry=registry)
        self.generated_tokens = Counter("rljax_generated_tokens", "Tokens of answers", registry=registry)
        self.seconds = Histogram("rljax_request_seconds", "From request to the end of its reply", registry=registry)
        self._in_flight = Gauge("rljax_answers_in_flight", "Answers under way", registry=registry)
        self._version = Gauge("rljax_version", "Batches that the weights have seen", registry=registry)
        self._running = Gauge("rljax_engine_running", "Answers that hold a slot of an engine", registry=registry)
        self._waiting = Gauge("rljax_engine_waiting", "Answers that wait for a slot", registry=registry)
        self._slots = Gauge("rljax_engine_slots", "Answers that the engines can run at once", registry=registry)

    async def text(self, pool: EnginePool, in_flight: int) -> str:
        """Returns all metrics as of now, in Prometheus' text format."""
        gauges = await pool.gauges()
        self._in_flight.set(in_flight)
        self._version.set(-1 if pool.serving is None else pool.serving.version)
        self._running.set(gauges["running"])
        self._waiting.set(gauges["waiting"])
        self._slots.set(gauges["slots"])
        return generate_latest(self._registry).decode()
