"""The figures of a run that has been: by its metrics and its trace."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rljax.config.fields import ConfigError
from rljax.config.load import load_config
from rljax.config.schema import Config
from rljax.observe.budget import LEARNER
from rljax.observe.metrics import Row, read_metrics
from rljax.observe.parts import BEFORE, PROBE
from rljax.observe.report.read import run_directory
from rljax.observe.steps import VALIDATION, Cover, Window, traced, undisturbed, window
from rljax.observe.trace_read import (
    ATTEMPTS,
    COMPUTATION,
    LEDGER,
    LOOP,
    REQUESTS,
    VERSIONS,
    Span,
    read_spans,
)
from rljax.pipeline.plan.figures import Figures, Speeds, between, rate_of
from rljax.pipeline.plan.splits import Timing, settling
from rljax.pipeline.simulate.workload import Draw, constant, observed

LEAST_STEPS = 4
"""Steps from which means are taken, at least."""
ONE_REQUEST = 1.02
"""Requests for a reply, on average, up to which each reply is taken to be one request."""
LEAST_SPREAD = 0.1
"""Share of the mean length by which lengths differ where they tell what a prompt costs."""
MOST_PROMPT = 100.0
"""Times of the mean reply that a prompt costs at most: where it is all, no length is seen."""
LEVELS = 4
"""Levels of concurrency at which the speed of an engine is measured, at most."""


_SAMPLING = ("prefill", "reread", "decode", "step")
"""Names of the spans of an engine that computes tokens."""
_NAMES = ("time/step", "time/train", "tokens/all", "tokens/sampled", "staleness/mean")
"""Of a step that samples and trains."""


@dataclass(frozen=True)
class Measured:
    """A run as it was.

    Attributes:
        config: its own.
        figures: what a simulated one is made of.
        fact: what it took.
        counted: steps that are like others, of which these are means.
        steps: all but the first, in which it got ahead.
    """

    config: Config
    figures: Figures
    fact: Timing
    counted: int
    steps: int


def measured(path: str) -> Measured:
    """Returns the figures of the run in this directory, or of this name in ``runs``.

    Raises:
        ConfigError: there is no run, or too few steps of one.
    """
    run_dir = run_directory(path)
    if run_dir is None or not (run_dir / "config.json").is_file() or not (rows := read_metrics(run_dir)):
        raise ConfigError(
            f"plan.from_run={path}: no run with metrics is here; write the directory of one, or its name in runs/"
        )
    try:
        config = load_config(str(run_dir / "config.json"))
    except ConfigError as error:
        raise ConfigError(f"plan.from_run={path}: {error}") from None
    if config.imitates_alone or any(name not in rows[-1] for name in _NAMES):
        raise ConfigError(f"plan.from_run={path}: nothing is sampled and trained there; write a run of mode=both")
    before = settling(config)
    spans = list(read_spans(run_dir))
    if not any(span.track.endswith(REQUESTS) for span in spans):
        cure = (
            "let it run longer, or end it by Ctrl-C" if config.observe.trace else "write a run with observe.trace=true"
        )
        raise ConfigError(f"plan.from_run={path}: there is no trace of requests; {cure}")
    later = [row for row in rows if row["step"] > before]  # those before come while the pipeline fills
    kept = later
    for own in (True, False):  # both sides, the learner and the others, are in the trace
        side = [s for s in spans if (s.track == LEARNER) is own]
        kept = traced(kept, side) if side else kept
    counted = undisturbed(kept, spans)
    windows = [window(row) for row in counted]
    flight = _Flight(spans, windows, config.sidecar.max_concurrency) if windows else None
    if len(counted) < LEAST_STEPS or flight is None or not flight.requests:
        raise ConfigError(
            f"plan.from_run={path}: only {len(counted)} of the steps after the first {before} are in the trace, "
            f"compile nothing and are beside no validation; {LEAST_STEPS} with requests are needed for means; let it "
            "run longer (or raise observe.trace_events)"
        )
    return Measured(config, _figures(config, counted, windows, spans, flight), _fact(counted), len(counted), len(later))


def _fact(rows: Sequence[Row]) -> Timing:
    step = _mean(rows, "time/step")
    return Timing(
        step,
        _mean(rows, "time/train"),
        _mean(rows, "time/engine_busy"),
        _mean(rows, "time/wait") / step,
        _mean(rows, "staleness/mean"),
        int(max(row["staleness/max"] for row in rows)),
    )


def _mean(rows: Sequence[Row], name: str) -> float:
    return float(np.mean([row.get(name) or 0.0 for row in rows]))


def _figures(
    config: Config, rows: Sequence[Row], windows: Sequence[Window], spans: Sequence[Span], flight: _Flight
) -> Figures:
    attempts = config.rollout_batch_size + _mean(rows, "batch/reused_groups") * config.group_size
    sampled, train = _mean(rows, "tokens/sampled"), _mean(rows, "time/train")
    publishing = [row for row in rows if row.get("time/publish")] or [{}]
    spent = sum(_mean(rows, f"time/{part}") for part in ("wait", "train", "publish"))
    filtered = _mean(rows, "rollout/filtered")
    waited, probed = (_cover(s for s in spans if s.name == name).within(windows) for name in (BEFORE, PROBE))
    publish = max(_mean(publishing, "time/publish") - waited / len(publishing), 0.0)  # waiting is none of its work
    taken = publish - probed / len(publishing)  # of what `publish/seconds` counts, which begins after the probe
    asked = flight.requests
    lengths = np.repeat([s.args["tokens"] for s in asked], [s.count for s in asked])
    reply = float(lengths.mean())
    learner_speed = _mean(rows, "tokens/all") / train
    trained = [row["time/train"] / row["tokens/all"] * learner_speed for row in rows]
    speeds = flight.speeds()
    load_seconds, halt_seconds = flight.loads()
    return Figures(
        learner_speed=learner_speed,
        learner_devices=config.learner.mesh.size,
        unevenness=tuple(zip(trained, flight.slowness(speeds), strict=True)),
        engine_speeds=speeds,
        prompt_tokens=(_mean(rows, "tokens/all") - sampled) / attempts,
        prompt_cost=flight.prompt_cost,
        reply_tokens=reply,
        replies=observed(lengths),
        turns=flight.turns(),
        environment_seconds=constant(flight.environment_seconds()),
        publish_seconds=publish,
        announce_seconds=max(_mean(publishing, "publish/seconds") - taken, 0.0),
        load_seconds=halt_seconds,
        read_seconds=load_seconds - halt_seconds,
        between_seconds=max(_mean(rows, "time/step") - spent, 0.0),
        explorer_seconds=flight.explorer_seconds(),
        ledger_seconds=flight.ledger_seconds() * config.group_size,
        filtered=filtered / (filtered + config.groups_per_batch) if filtered else 0.0,
    )


class _Flight:
    """Requests and attempts in flight, in the time in which engines sample: without loads and validations.

    What is measured is measured in ``windows``; an engine runs at most ``slots`` requests at once.
    """

    def __init__(self, spans: Sequence[Span], windows: Sequence[Window], slots: int) -> None:
        begin, end = windows[0][0], windows[-1][1]
        spans = [span for span in spans if span.end > begin and span.start < end]
        self._tracks: dict[str, list[Span]] = defaultdict(list)
        for span in spans:
            self._tracks[span.track].append(span)
        self._windows, self._slots = windows, slots
        self._versions = [s for s in spans if s.track.endswith(VERSIONS)]
        self._stops = _cover(self._versions)
        self._loop = _cover(s for s in spans if s.track.endswith(LOOP))
        validations = [(s.start, s.end) for s in spans if s.name.startswith(VALIDATION)]

        def trained(suffix: str) -> list[Span]:
            found = [s for s in spans if s.track.endswith(suffix)]
            return [s for s in found if not any(start <= s.start <= end for start, end in validations)]

        self.requests = trained(REQUESTS)
        self.attempts = trained(ATTEMPTS)

    def loads(self) -> tuple[float, float]:
        """Returns the seconds of a load, and those of them in which an engine computes nothing."""
        loads = [(s.start, s.end) for s in self._versions if s.name.startswith("load ")]
        known = [(self._computing(track), self._says_since(track)) for track in self._engines()]
        idle = [
            (end - begin, end - begin - computing.within([(begin, end)]))
            for computing, since in known
            for begin, end in loads
            if begin >= since or since == np.inf
        ]
        whole, halted = np.median(idle or [(0.0, 0.0)], axis=0)
        return float(whole), float(halted)

    def turns(self) -> Draw:
        """Returns what draws the replies of an attempt: those that were; where no attempt says, or replies were made in
        several requests, as after an abort, the mean number of requests.
        """
        said = [s for s in self.attempts if "turns" in s.args]
        counts = [s.count for s in said]
        asked, replies = sum(s.count for s in self.requests), sum(s.count * s.args["turns"] for s in said)
        if said and asked <= ONE_REQUEST * replies:
            return observed(np.repeat([s.args["turns"] for s in said], counts))
        return between(max(asked / max(sum(s.count for s in self.attempts), 1), 1.0))

    def explorer_seconds(self) -> float:
        """Returns the seconds for which a reply has its explorer's event loop: others wait meanwhile."""
        return self._each(LOOP, self.requests)

    def ledger_seconds(self) -> float:
        """Returns the seconds for which an attempt has its explorer's ledger: others wait meanwhile."""
        return self._each(LEDGER, self.attempts)

    def _each(self, suffix: str, spans: Sequence[Span]) -> float:
        """Returns the seconds of an explorer's track for each of the spans that end in the windows, in those of which
        the trace still has it.
        """
        windows = self._with(suffix)
        covered = sum(_cover(found).within(windows) for found in self._of(suffix))
        ended = np.array([s.end for s in spans])
        count = float(np.sum(np.array([s.count for s in spans])[_inside(ended, windows)])) if windows else 0.0
        return covered / count if count else 0.0

    def _of(self, suffix: str) -> list[list[Span]]:
        """Returns the spans of each track whose name ends so."""
        return [found for track, found in self._tracks.items() if track.endswith(suffix)]

    def _with(self, suffix: str) -> list[Window]:
        """Returns the windows of which the trace still has these tracks."""
        start = max((min(s.start for s in found) for found in self._of(suffix)), default=np.inf)
        return [window for window in self._windows if window[0] >= start]

    def environment_seconds(self) -> float:
        """Returns the seconds behind a reply in which an attempt waits neither for an engine nor for the event loop.

        Where the loop is busy an attempt may wait for it, or for an environment beside it: these go on at any time,
        so that as much of them as of the time is where it is idle.
        """
        if not self.attempts:
            return 0.0
        asked = sum(s.count for s in self.requests)
        windows = self._with(LOOP)
        seconds = sum(end - begin for begin, end in windows)
        busy = self._loop.within(windows) / seconds if windows else 0.0
        idle = _without(self._stops | self._loop)
        outside = _seconds(self.attempts, idle) - _seconds(self.requests, idle)
        return max(0.0, outside) / asked / max(1.0 - busy, 0.01)

    def _engines(self) -> list[str]:
        """Returns the tracks of their requests."""
        return sorted({s.track for s in self.requests})

    def _sampling(self, track: str) -> list[Span]:
        """Returns when the engine of these requests computed; nothing, of one that does not say."""
        return [s for s in self._tracks[track.removesuffix(REQUESTS) + COMPUTATION] if s.name in _SAMPLING]

    def _computing(self, track: str) -> Cover:
        return _cover(self._sampling(track))

    def _says_since(self, track: str) -> float:
        """Returns since when an engine says when it computes: a trace keeps its newest events. inf: it never does."""
        return min((s.start for s in self._sampling(track)), default=np.inf)

    def _active(self, track: str) -> Callable[[np.ndarray], np.ndarray]:
        """Returns what gives the seconds until some times in which an engine could sample: not those in which it
        computes nothing since a version is loaded, or since replies and requests wait for the event loop. One that
        does not say when it computes waits for loads alone.
        """
        told = Cover([(self._says_since(track), np.inf)])
        return _without((self._stops | (self._loop & told)) - self._computing(track))

    @functools.cached_property
    def prompt_cost(self) -> float:
        """The tokens that a request could sample in the time that it takes longer than by its tokens, by the
        line through those in the windows that had a slot at once.
        """
        tokens, seconds, counts = (
            np.concatenate(found) for found in zip(*map(self._served, self._engines()), strict=True)
        )
        if not len(tokens):
            return 0.0
        mean = np.average(tokens, weights=counts)
        if np.average((tokens - mean) ** 2, weights=counts) ** 0.5 < LEAST_SPREAD * mean:
            return 0.0
        slope, first = np.polyfit(tokens, seconds, 1, w=np.sqrt(counts))
        return float(first / max(slope, first / (MOST_PROMPT * mean))) if first > 0.0 else 0.0

    def _served(self, track: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns tokens, seconds and number of the requests of an engine that did not wait for a slot."""
        mine, active = [s for s in self.requests if s.track == track], self._active(track)
        begins, ends = (np.array([getattr(s, name) for s in mine]) for name in ("start", "end"))
        counts = np.array([s.count for s in mine], np.float64)
        tokens = np.array([s.args["tokens"] for s in mine], np.float64)
        order = np.argsort(ends)
        ended = np.concatenate([[0.0], np.cumsum(counts[order])])[np.searchsorted(ends[order], begins, side="right")]
        started = np.cumsum(counts[np.argsort(begins, kind="stable")])
        there = started[np.searchsorted(np.sort(begins), begins, side="right") - 1] - ended
        counted = _inside(begins, self._windows) & _inside(ends, self._windows)
        whole = counted & (there <= self._slots) & (tokens > 0)
        return tokens[whole], (active(ends) - active(begins))[whole], counts[whole]

    def speeds(self) -> Speeds:
        """Returns what an engine does in a second at several levels of the requests that it runs in the windows."""
        running, rates, seconds, starts = self._all_levels()
        mine = _inside(starts, self._windows)
        return _binned(np.minimum(running, self._slots)[mine], rates[mine], seconds[mine])

    def slowness(self, speeds: Speeds) -> list[float]:
        """Returns by how much longer than at these speeds the engines took in each of the windows; 1 where nothing
        ran.
        """
        running, rates, seconds, starts = self._all_levels()
        rate = rate_of(speeds)
        expected = np.array([rate(int(n)) for n in np.round(running)]) * seconds
        found = []
        for begin, end in self._windows:
            mine = (starts >= begin) & (starts < end) & (running > 0.5)
            made = float((rates * seconds)[mine].sum())
            found.append(float(expected[mine].sum()) / made if made else 1.0)
        return found

    def _all_levels(self) -> tuple[np.ndarray, ...]:
        """Returns `_levels` of all engines, one after the other."""
        found = [self._levels(track) for track in self._engines()]
        return tuple(map(np.concatenate, zip(*found, strict=True)))

    def _levels(self, track: str) -> tuple[np.ndarray, ...]:
        """Returns requests in flight, work a second, seconds and start of what is between two events of an engine.
        Work is tokens, with the cost of each prompt.
        """
        mine, active = [s for s in self.requests if s.track == track], self._active(track)
        counts = np.array([s.count for s in mine], np.float64)
        begin, end = (np.array([getattr(s, n) for s in mine]) for n in ("start", "end"))
        work = counts * (np.array([s.args["tokens"] for s in mine]) + self.prompt_cost)
        each = work / np.maximum(active(end) - active(begin), 1e-6)
        order = np.argsort(np.concatenate([begin, end]), kind="stable")
        times = np.concatenate([begin, end])[order]
        in_flight = np.cumsum(np.concatenate([counts, -counts])[order])[:-1]
        rates = np.cumsum(np.concatenate([each, -each])[order])[:-1]
        return in_flight, rates, np.diff(active(times)), times[:-1]


def _inside(times: np.ndarray, windows: Sequence[Window]) -> np.ndarray:
    """Returns which of the times are in one of the windows, which come in order; bool ``[times]``."""
    begins, ends = np.array(windows).T
    place = np.searchsorted(begins, times, side="right") - 1
    return (place >= 0) & (times < ends[place])


def _cover(spans: Iterable[Span]) -> Cover:
    return Cover((s.start, s.end) for s in spans)


def _without(stopped: Cover) -> Callable[[np.ndarray], np.ndarray]:
    """Returns what gives the seconds until each of some times without those that are covered."""
    return lambda times: times - stopped.until(times)


def _seconds(spans: Sequence[Span], active: Callable[[np.ndarray], np.ndarray]) -> float:
    begin, end = (active(np.array([getattr(s, n) for s in spans])) for n in ("start", "end"))
    return float(np.sum((end - begin) * [s.count for s in spans]))


def _binned(running: np.ndarray, rates: np.ndarray, seconds: np.ndarray) -> Speeds:
    """Returns mean speeds at up to `LEVELS` levels of concurrency, each of which has about the same time."""
    works = (running > 0.5) & (seconds > 0) & (rates > 0)
    order = np.argsort(running[works], kind="stable")
    running, rates, seconds = running[works][order], rates[works][order], seconds[works][order]
    if not len(running):
        return ()
    spent = np.cumsum(seconds) - seconds / 2
    edges = running[np.searchsorted(spent, spent[-1] * np.arange(1, LEVELS) / LEVELS)]
    level = np.searchsorted(edges, running)  # as many requests are one level
    found: dict[float, float] = {}
    for index in np.unique(level):
        mine = level == index
        found[float(np.average(running[mine], weights=seconds[mine]))] = float(
            np.average(rates[mine], weights=seconds[mine])
        )
    return tuple(sorted(found.items()))
