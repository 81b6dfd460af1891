"""The figures of a run that has been: by its metrics and its trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rljax.config.fields import ConfigError, user_path
from rljax.config.load import load_config
from rljax.config.schema import Config
from rljax.observe.metrics import Row, read_metrics
from rljax.observe.parts import BEFORE
from rljax.observe.steps import VALIDATION, Cover, Window, undisturbed, window
from rljax.observe.trace_read import Span, read_spans
from rljax.pipeline.plan.figures import Figures, Speeds, between, rate_of
from rljax.pipeline.plan.splits import Timing, settling
from rljax.pipeline.simulate.workload import Draw, constant, observed

LEAST_STEPS = 4
"""Steps from which means are taken, at least."""
LEAST_SPREAD = 0.1
"""Share of the mean length by which lengths differ where they tell what a prompt costs."""
MOST_PROMPT = 100.0
"""Times of the mean reply that a prompt costs at most: where it is all, no length is seen."""
LEVELS = 4
"""Levels of concurrency at which the speed of an engine is measured, at most."""


_REQUESTS, _COMPUTATION, _LOOP = " · requests", " · computation", " · loop"
_SAMPLING = ("prefill", "decode", "step")
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
    """Returns the figures of the run in this directory.

    Raises:
        ConfigError: there is no run, or too few steps of one.
    """
    run_dir = user_path(path)
    if not (run_dir / "config.json").is_file() or not (rows := read_metrics(run_dir)):
        raise ConfigError(f"plan.from_run={path}: no run with metrics is here; write the directory of one")
    try:
        config = load_config(str(run_dir / "config.json"))
    except ConfigError as error:
        raise ConfigError(f"plan.from_run={path}: {error}") from None
    if config.imitates_alone or any(name not in rows[-1] for name in _NAMES):
        raise ConfigError(f"plan.from_run={path}: nothing is sampled and trained there; write a run of mode=both")
    before = settling(config)
    spans = list(read_spans(run_dir))
    if not any(span.track.endswith(_REQUESTS) for span in spans):
        raise ConfigError(
            f"plan.from_run={path}: there is no trace of requests; write a run with observe.trace=true (the default)"
        )
    later = [row for row in rows if row["step"] > before]  # those before come while the pipeline fills
    counted = undisturbed(later, spans)
    if len(counted) < LEAST_STEPS:
        raise ConfigError(
            f"plan.from_run={path}: of the steps after the first {before} {len(counted)} are beside no validation and "
            f"compile nothing; {LEAST_STEPS} are needed for means, so let it run longer"
        )
    windows = [window(row) for row in counted]
    return Measured(config, _figures(config, counted, windows, spans), _fact(counted), len(counted), len(later))


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


def _figures(config: Config, rows: Sequence[Row], windows: Sequence[Window], spans: Sequence[Span]) -> Figures:
    attempts = config.rollout_batch_size
    begin, end = windows[0][0], windows[-1][1]
    sampled, train = _mean(rows, "tokens/sampled"), _mean(rows, "time/train")
    publishing = [row for row in rows if row.get("time/publish")] or [{}]
    spent = sum(_mean(rows, f"time/{part}") for part in ("wait", "train", "publish"))
    filtered = _mean(rows, "rollout/filtered")
    spans = [span for span in spans if span.end > begin and span.start < end]
    waited = Cover((s.start, s.end) for s in spans if s.name == BEFORE).within(windows)  # that is none of its work
    publish = max(_mean(publishing, "time/publish") - waited / len(publishing), 0.0)
    flight = _Flight(spans)
    asked = flight.requests
    lengths = np.repeat([s.args["tokens"] for s in asked], [s.count for s in asked])
    reply = float(lengths.mean())
    learner_speed = _mean(rows, "tokens/all") / train
    trained = [row["time/train"] / row["tokens/all"] * learner_speed for row in rows]
    speeds = flight.speeds(config.sidecar.max_concurrency, windows)
    return Figures(
        learner_speed=learner_speed,
        learner_devices=config.learner.mesh.size,
        unevenness=tuple(zip(trained, flight.slowness(speeds, windows), strict=True)),
        engine_speeds=speeds,
        prompt_tokens=(_mean(rows, "tokens/all") - sampled) / attempts,
        prompt_cost=flight.prompt_cost,
        reply_tokens=reply,
        replies=observed(lengths),
        turns=flight.turns(),
        environment_seconds=constant(flight.environment_seconds(windows)),
        publish_seconds=publish,
        announce_seconds=max(_mean(publishing, "publish/seconds") - publish, 0.0),
        load_seconds=flight.load_seconds(),
        between_seconds=max(_mean(rows, "time/step") - spent, 0.0),
        explorer_seconds=flight.explorer_seconds(windows),
        ledger_seconds=flight.ledger_seconds(windows) * config.group_size,
        filtered=filtered / (filtered + config.groups_per_batch) if filtered else 0.0,
    )


class _Flight:
    """Requests and attempts in flight, in the time in which engines sample: without loads and validations."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._tracks: dict[str, list[Span]] = defaultdict(list)
        for span in spans:
            self._tracks[span.track].append(span)
        self._versions = [s for s in spans if s.track.endswith(" · versions")]
        self._stops = _cover(self._versions)
        self._loop = _cover(s for s in spans if s.track.endswith(_LOOP))
        validations = [(s.start, s.end) for s in spans if s.name.startswith(VALIDATION)]

        def trained(suffix: str) -> list[Span]:
            found = [s for s in spans if s.track.endswith(suffix)]
            return [s for s in found if not any(start <= s.start <= end for start, end in validations)]

        self.requests = trained(_REQUESTS)
        self.attempts = trained(" · attempts")
        self.prompt_cost = self._prompt_cost()

    def load_seconds(self) -> float:
        """Returns the seconds of a load in which an engine computes nothing."""
        loads = [(s.start, s.end) for s in self._versions if s.name.startswith("load ")]
        engines = [self._computing(track) for track in self._engines()]
        idle = [end - begin - computing.within([(begin, end)]) for computing in engines for begin, end in loads]
        return float(np.median(idle)) if idle else 0.0

    def _engines(self) -> list[str]:
        """Returns the tracks of their requests."""
        return sorted({s.track for s in self.requests})

    def _computing(self, track: str) -> Cover:
        """Returns when the engine of these requests computed; never, of one that does not say."""
        return _cover(s for s in self._tracks[track.removesuffix(_REQUESTS) + _COMPUTATION] if s.name in _SAMPLING)

    def _active(self, track: str) -> Callable[[np.ndarray], np.ndarray]:
        """Returns what gives the seconds until some times in which an engine could sample: not those in which it
        computes nothing since a version is loaded, or since replies and requests wait for the event loop. One that
        does not say when it computes waits for loads alone.
        """
        computing = self._computing(track)
        return _without((self._stops | self._loop) - computing if computing.intervals() else self._stops)

    def _prompt_cost(self) -> float:
        """Returns the tokens that a request could sample in the time that it takes longer than by its tokens, by the
        line through all of them.
        """
        tokens = np.array([s.args["tokens"] for s in self.requests])
        counts = np.array([s.count for s in self.requests])
        mean = np.average(tokens, weights=counts)
        if np.average((tokens - mean) ** 2, weights=counts) ** 0.5 < LEAST_SPREAD * mean:
            return 0.0
        seconds = np.zeros(len(tokens))
        for track in self._engines():
            mine, active = [s.track == track for s in self.requests], self._active(track)
            begin, end = (np.array([getattr(s, name) for s in self.requests])[mine] for name in ("start", "end"))
            seconds[mine] = active(end) - active(begin)
        slope, first = np.polyfit(tokens, seconds, 1, w=np.sqrt(counts))
        return float(max(first, 0.0) / max(slope, first / (MOST_PROMPT * mean))) if first > 0.0 else 0.0

    def turns(self) -> Draw:
        """Returns what draws the replies of an attempt: those that were, or where no attempt says, their mean."""
        said = [s for s in self.attempts if "turns" in s.args]
        if said:
            return observed(np.repeat([s.args["turns"] for s in said], [s.count for s in said]))
        attempts = sum(s.count for s in self.attempts)
        return between(max(sum(s.count for s in self.requests) / max(attempts, 1), 1.0))

    def explorer_seconds(self, windows: Sequence[Window]) -> float:
        """Returns the seconds for which a reply has its explorer's event loop: others wait meanwhile."""
        return self._each(_LOOP, self.requests, windows)

    def ledger_seconds(self, windows: Sequence[Window]) -> float:
        """Returns the seconds for which an attempt has its explorer's ledger: others wait meanwhile."""
        return self._each(" · ledger", self.attempts, windows)

    def _each(self, suffix: str, spans: Sequence[Span], windows: Sequence[Window]) -> float:
        """Returns the seconds of a track of an explorer, on average, for each of the spans that end in the windows."""
        covered = [_cover(found).within(windows) for track, found in self._tracks.items() if track.endswith(suffix)]
        ended = sum(s.count for s in spans if any(begin <= s.end < end for begin, end in windows))
        return sum(covered) / len(covered) / max(ended, 1) if covered else 0.0

    def environment_seconds(self, windows: Sequence[Window]) -> float:
        """Returns the seconds behind a reply in which an attempt waits neither for an engine nor for the event loop.

        Where the loop is busy an attempt may wait for it, or for an environment beside it: these go on at any time,
        so that as much of them as of the time is where it is idle.
        """
        if not self.attempts:
            return 0.0
        asked = sum(s.count for s in self.requests)
        busy = self._loop.within(windows) / sum(end - begin for begin, end in windows)
        idle = _without(self._stops | self._loop)
        outside = _seconds(self.attempts, idle) - _seconds(self.requests, idle)
        return max(0.0, outside) / asked / max(1.0 - busy, 0.01)

    def speeds(self, slots: int, windows: Sequence[Window]) -> Speeds:
        """Returns the tokens a second of an engine at several levels of the requests that it runs in the windows."""
        running, rates, seconds, starts = self._all_levels()
        begins, ends = np.array(windows).T
        place = np.searchsorted(begins, starts, side="right") - 1
        mine = (place >= 0) & (starts < ends[place])
        return _binned(np.minimum(running, slots)[mine], rates[mine], seconds[mine])

    def slowness(self, speeds: Speeds, windows: Sequence[Window]) -> list[float]:
        """Returns by how much longer than at these speeds the engines took in each of the windows; 1 where nothing
        ran.
        """
        running, rates, seconds, starts = self._all_levels()
        rate = rate_of(speeds)
        expected = np.array([rate(int(n)) for n in np.round(running)]) * seconds
        found = []
        for begin, end in windows:
            mine = (starts >= begin) & (starts < end) & (running > 0.5)
            made = float((rates * seconds)[mine].sum())
            found.append(float(expected[mine].sum()) / made if made else 1.0)
        return found

    def _all_levels(self) -> tuple[np.ndarray, ...]:
        """Returns `_levels` of all engines, one after the other."""
        found = [self._levels(track) for track in self._engines()]
        return tuple(map(np.concatenate, zip(*found, strict=True)))

    def _levels(self, track: str) -> tuple[np.ndarray, ...]:
        """Returns requests in flight, tokens a second, seconds and start of what is between two events of an engine.

        A request counts as many tokens as if all had taken the same time for each: with a share for its prompt.
        """
        mine = [s for s in self.requests if s.track == track]
        active = self._active(track)
        counts = np.array([s.count for s in mine], np.float64)
        begin, end = (np.array([getattr(s, n) for s in mine]) for n in ("start", "end"))
        tokens = np.array([s.args["tokens"] for s in mine])
        mean = np.average(tokens, weights=counts)
        tokens = (tokens + self.prompt_cost) * mean / (mean + self.prompt_cost)
        each = counts * tokens / np.maximum(active(end) - active(begin), 1e-6)
        order = np.argsort(np.concatenate([begin, end]), kind="stable")
        times = np.concatenate([begin, end])[order]
        in_flight = np.cumsum(np.concatenate([counts, -counts])[order])[:-1]
        rates = np.cumsum(np.concatenate([each, -each])[order])[:-1]
        return in_flight, rates, np.diff(active(times)), times[:-1]


def _cover(spans: Iterable[Span]) -> Cover:
    return Cover((s.start, s.end) for s in spans)


def _without(stopped: Cover) -> Callable[[np.ndarray], np.ndarray]:
    """Returns what gives the seconds until each of some times without those that are covered."""
    return lambda times: times - stopped.until(times)


def _seconds(spans: Sequence[Span], active: Callable[[np.ndarray], np.ndarray]) -> float:
    begin, end = (active(np.array([getattr(s, n) for s in spans])) for n in ("start", "end"))
    return float(np.sum((end - begin) * [s.count for s in spans]))


def _binned(running: np.ndarray, rates: np.ndarray, seconds: np.ndarray) -> Speeds:
    """Returns mean speeds at up to `LEVELS` levels of concurrency, each of which has the same time."""
    works = (running > 0.5) & (seconds > 0) & (rates > 0)
    order = np.argsort(running[works], kind="stable")
    running, rates, seconds = running[works][order], rates[works][order], seconds[works][order]
    if not len(running):
        return ()
    level = np.minimum((np.cumsum(seconds) - seconds / 2) / seconds.sum() * LEVELS, LEVELS - 1).astype(int)
    found: dict[float, float] = {}
    for index in np.unique(level):
        mine = level == index
        found[float(np.average(running[mine], weights=seconds[mine]))] = float(
            np.average(rates[mine], weights=seconds[mine])
        )
    return tuple(sorted(found.items()))
