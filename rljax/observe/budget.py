"""The budget of a step: every second that learner, explorers and engines have, by what it goes into.

A process of the trace has parts in an order. Each instant belongs to the first of them that a span covers, and what
none covers is the last part: so the parts of a process add up to the time of the step, however spans nest and overlap.
What a process does itself comes before what it waits for, and the parts of a piece of work before the rest of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rljax.observe import parts, trace_read
from rljax.observe.metrics import Row
from rljax.observe.steps import VALIDATION, Cover, Window, traced, undisturbed, window
from rljax.observe.trace_read import Span

COMPUTING, AGAIN, PACKING, TRANSFER = "computing", "prefill after an update", "packing", "transfer"
PUBLISHING, LOADING, BOOKS, PYTHON, VALIDATING, WAITING = (
    "publishing",
    "loading",
    "ledger and records",
    "Python",
    "validating",
    "waiting",
)
KINDS = (COMPUTING, AGAIN, PACKING, TRANSFER, PUBLISHING, LOADING, BOOKS, PYTHON, VALIDATING, WAITING)
"""Kinds of parts, in the order in which they are drawn."""

LEARNER, ENGINES, EXPLORERS = "learner", "engine", "explorer"
"""Processes of a budget."""

Layer = tuple[str, str, Cover]
"""Name and kind of a part, and when it was."""


@dataclass(frozen=True)
class Part:
    """A part of the time of a step: its name, one of `KINDS`, and seconds a step."""

    name: str
    kind: str
    seconds: float


@dataclass(frozen=True)
class Budget:
    """The time of a step, by what a process does in it, on average.

    Attributes:
        process: one of `LEARNER`, `ENGINES`, `EXPLORERS`.
        count: processes of this kind, of which these are means.
        step: seconds of a step; the parts add up to them.
        parts: that took any time, in the order of `KINDS`, the longest of a kind first.
    """

    process: str
    count: int
    step: float
    parts: tuple[Part, ...]

    def of(self, kind: str) -> float:
        """Returns the seconds of a kind."""
        return sum(part.seconds for part in self.parts if part.kind == kind)

    @property
    def work(self) -> float:
        """Seconds in which it does not wait."""
        return self.step - self.of(WAITING)


@dataclass(frozen=True)
class Without:
    """A step as it could be at best without a part of the work.

    Attributes:
        process: whose.
        part: the part; None: nothing is left out.
        least: seconds of a step: the longer of what learner and engine do.
        bound: both together over the longer, by how much working at the same time can be faster than in turns.
    """

    process: str
    part: Part | None
    least: float
    bound: float


def budgets(rows: Sequence[Row], spans: Sequence[Span]) -> tuple[Budget, ...]:
    """Returns the budgets of learner, engines and explorers, as means over the steps that are like others, in which the
    trace has the learner; over all of those where none is. Of another process count those that began after its first
    span and in which the trace has it, or an engine's explorer. Empty without a trace of a learner.

    Args:
        rows: of the metrics, one a step.
        spans: of the trace, of all processes.
    """
    tracks = _by_track(spans)
    if LEARNER not in tracks:
        return ()
    known = {process: _layers(process, tracks) for process in _processes(tracks)}
    steps = _steps_of((LEARNER, LEARNER), [row for row in rows if row.get("time/step")], tracks)
    counted = undisturbed(steps, spans) or steps
    if not counted:
        return ()
    found = []
    for kind in (LEARNER, ENGINES, EXPLORERS):
        each = []
        for process, layers in known.items():
            if process[0] == kind and (own := [window(row) for row in _steps_of(process, counted, tracks)]):
                spent = account(own, *layers)
                each.append([replace(part, seconds=part.seconds / len(own)) for part in spent])
        if each:
            found.append(_mean(kind, each))
    return tuple(found)


def account(windows: Sequence[Window], layers: Sequence[Layer], rest: tuple[str, str]) -> list[Part]:
    """Returns the seconds of the windows by part: of the first layer that covers an instant, else ``rest``, the name
    and kind of the last part. They add up to the windows, which do not overlap.
    """
    found: list[Part] = []
    covered, before = Cover(), 0.0
    for name, kind, cover in layers:
        covered |= cover
        seconds = covered.within(windows)
        found.append(Part(name, kind, seconds - before))
        before = seconds
    return [*found, Part(*rest, sum(end - begin for begin, end in windows) - before)]


def removals(found: Sequence[Budget]) -> list[Without]:
    """Returns the least step and the bound as they are, and without each part of the work of learner and engines, the
    one that saves most first; empty where either is not known.
    """
    by = {budget.process: budget for budget in found}
    if LEARNER not in by or ENGINES not in by:
        return []
    training, generation = by[LEARNER].work, by[ENGINES].work
    rows = [
        _without(budget.process, part, training - part.seconds, generation)
        if budget.process == LEARNER
        else _without(budget.process, part, training, generation - part.seconds)
        for budget in (by[LEARNER], by[ENGINES])
        for part in budget.parts
        if part.kind != WAITING
    ]
    rows.sort(key=lambda row: (row.least, -row.part.seconds if row.part else 0.0))
    return [_without("", None, training, generation), *rows]


def _without(process: str, part: Part | None, training: float, generation: float) -> Without:
    least = max(training, generation)
    return Without(process, part, least, (training + generation) / least if least > 0 else 1.0)


def _mean(process: str, each: Sequence[Sequence[Part]]) -> Budget:
    kinds = {part.name: part.kind for one in each for part in one}
    seconds = dict.fromkeys(kinds, 0.0)
    for one in each:
        for part in one:
            seconds[part.name] += part.seconds / len(each)
    made = [Part(name, kinds[name], spent) for name, spent in seconds.items() if spent > 0]
    made.sort(key=lambda part: (KINDS.index(part.kind), -part.seconds))
    return Budget(process, len(each), sum(seconds.values()), tuple(made))


# A process of the trace: its kind and its name. Spans by track.
_Process = tuple[str, str]
_Tracks = Mapping[str, list[Span]]
_CREDIT = ("credit", "staleness")
"""Reasons for which the ledger grants an explorer nothing, where it is the learner's turn."""


def _by_track(spans: Iterable[Span]) -> _Tracks:
    found: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        found[span.track].append(span)
    return found


def _processes(tracks: _Tracks) -> list[_Process]:
    found: dict[_Process, None] = {}
    for track in sorted(tracks):
        name, _, thread = track.rpartition(" · ")
        if track == LEARNER:
            found[LEARNER, LEARNER] = None
        elif f" · {thread}" in (trace_read.REQUESTS, trace_read.COMPUTATION):
            found[ENGINES, name] = None
        elif f" · {thread}" in (trace_read.ATTEMPTS, trace_read.VERSIONS):
            found[EXPLORERS, name] = None
    return list(found)


def _own(process: _Process, tracks: _Tracks) -> list[str]:
    kind, name = process
    return [LEARNER] if kind == LEARNER else [track for track in tracks if track.rpartition(" · ")[0] == name]


def _steps_of(process: _Process, rows: Sequence[Row], tracks: _Tracks) -> list[Row]:
    """Returns the steps that began after the first span of a process and in which the trace has any: of an engine, its
    own or its explorer's.
    """
    kind, name = process
    spans = [span for track in _own(process, tracks) for span in tracks[track]]
    begun = min(span.start for span in spans)
    if kind == ENGINES and (owner := _owner(name, tracks)):
        spans += [span for track in _own((EXPLORERS, owner), tracks) for span in tracks[track]]
    return [row for row in traced(rows, spans) if window(row)[0] >= begun]


def _owner(engine: str, tracks: _Tracks) -> str:
    explorers = [name for kind, name in _processes(tracks) if kind == EXPLORERS and engine.startswith(f"{name} ")]
    return max(explorers, key=len, default="")


def _layers(process: _Process, tracks: _Tracks) -> tuple[list[Layer], tuple[str, str]]:
    kind, name = process
    if kind == LEARNER:
        return _learner(tracks[LEARNER])
    if kind == EXPLORERS:
        return _explorer(name, tracks)
    return _engine(name, _owner(name, tracks), tracks)


def _cover(spans: Iterable[Span], *names: str) -> Cover:
    """Returns when spans were whose names are these, or begin with one and a space; of all where there is no name."""
    return Cover((s.start, s.end) for s in spans if not names or any(f"{s.name} ".startswith(f"{n} ") for n in names))


def _validations(spans: Iterable[Span]) -> Cover:
    return Cover((s.start, s.end) for s in spans if s.name.startswith(VALIDATION))


def _requests(explorer: str, tracks: _Tracks) -> list[Span]:
    """Returns what all engines of an explorer have in flight."""
    mine = [track for track in tracks if track.endswith(trace_read.REQUESTS) and track.startswith(f"{explorer} ")]
    return [span for track in mine for span in tracks[track]]


def _learner(spans: Sequence[Span]) -> tuple[list[Layer], tuple[str, str]]:
    named = (
        ("ledger", BOOKS, parts.LEDGER),
        ("waiting for the compiler", WAITING, parts.COMPILE),
        ("waiting for other hosts", WAITING, parts.HOSTS),
        ("packing", PACKING, parts.PACK),
        ("advantages", PACKING, parts.ADVANTAGES),
        ("placing on the devices", TRANSFER, parts.PLACE),
        ("asking served teachers", COMPUTING, parts.ASK),
        ("forward passes before the update", COMPUTING, parts.SCORE),
        ("updates", COMPUTING, parts.UPDATE),
        ("weights to the host", TRANSFER, parts.GATHER),
        ("checksums of a version", PUBLISHING, parts.CHECKSUM),
        ("writing a version", PUBLISHING, parts.WRITE),
        ("scoring the probe", PUBLISHING, parts.PROBE),
        ("waiting until the version before is written", PUBLISHING, parts.BEFORE),
        ("the rest of publishing", PUBLISHING, "publish version"),
        ("metrics, samples and report", BOOKS, parts.REPORT),
        ("checkpoint", BOOKS, parts.CHECKPOINT),
        ("Python beside the update", PYTHON, "train step"),
        ("waiting for generation: too few groups were ready", WAITING, "wait for generation"),
        ("waiting for stragglers", WAITING, "wait for stragglers"),
        ("waiting for an explorer: none was alive", WAITING, "wait for explorer"),
        ("waiting for a batch", WAITING, "wait for"),
    )
    layers = [(said, kind, _cover(spans, name)) for said, kind, name in named]
    return layers, ("Python between the parts", PYTHON)


def _explorer(name: str, tracks: _Tracks) -> tuple[list[Layer], tuple[str, str]]:
    versions, waits, loop = (
        tracks.get(name + thread, []) for thread in (trace_read.VERSIONS, trace_read.WAITS, trace_read.LOOP)
    )
    return [
        ("validating", VALIDATING, _validations(versions)),
        ("Python of its event loop", PYTHON, _cover(loop, "Python")),
        ("waiting for the interpreter or a core", WAITING, _cover(loop, "held up")),
        ("ledger", BOOKS, _cover(tracks.get(name + trace_read.LEDGER, []))),
        ("a version is loaded", LOADING, _cover(versions, "load version")),
        ("waiting for engines", WAITING, _cover(_requests(name, tracks))),
        ("waiting for environments and rewards", WAITING, _cover(tracks.get(name + trace_read.ATTEMPTS, []))),
        ("waiting for the learner: no credit", WAITING, _cover(waits, *_CREDIT)),
        ("waiting for the ledger's news", WAITING, _cover(waits)),
    ], ("Python, and what no span says", PYTHON)


def _engine(name: str, explorer: str, tracks: _Tracks) -> tuple[list[Layer], tuple[str, str]]:
    own, requests = (tracks.get(name + thread, []) for thread in (trace_read.COMPUTATION, trace_read.REQUESTS))
    threads = (trace_read.VERSIONS, trace_read.ATTEMPTS, trace_read.WAITS, trace_read.LOOP, trace_read.LEDGER)
    versions, attempts, waits, loop, ledger = (tracks.get(explorer + thread, []) for thread in threads)
    in_flight, again_and_first = _cover(requests), _prefills(own)
    others = [span for span in _requests(explorer, tracks) if span.track != name + trace_read.REQUESTS]
    # Of an engine that does not say when it computes, that is when it has something to do.
    silent = not any(s.name in ("decode", "step") for s in own)
    return [
        ("validating", VALIDATING, _validations(versions)),
        ("prefill after an update", AGAIN, again_and_first[0]),
        ("prefill", COMPUTING, again_and_first[1]),
        ("decoding", COMPUTING, _cover(own, "decode")),
        ("steps", COMPUTING, _cover(own, "step")),
        ("scoring the probe", COMPUTING, _cover(own, "score")),
        ("standing still while weights are exchanged", LOADING, _cover(own, "swap", "stage")),
        ("requests in flight", COMPUTING, in_flight if silent else Cover()),
        ("reading a version, nothing computed", LOADING, _cover(own, "receive")),
        ("placing a version, nothing computed", LOADING, _cover(own, "load")),
        ("waiting for the explorer's event loop, requests in flight", WAITING, in_flight & _cover(loop)),
        ("requests in flight, none computed", PYTHON, in_flight),
        ("the rest of a load", LOADING, _cover(versions, "load version")),
        ("waiting for requests that other engines have", WAITING, _cover(others)),
        ("waiting for environments and rewards", WAITING, _cover(attempts)),
        ("waiting for the learner: no credit", WAITING, _cover(waits, *_CREDIT)),
        ("waiting for the explorer's event loop, none in flight", WAITING, _cover(loop)),
        ("waiting for the explorer's ledger", WAITING, _cover(ledger)),
    ], ("waiting for the explorer", WAITING)


def _prefills(spans: Iterable[Span]) -> tuple[Cover, Cover]:
    """Returns when prompts were read again after an update, and when for the first time: of a span that does both, the
    first part, by its tokens.
    """
    again: list[Window] = []
    first: list[Window] = []
    for s in spans:
        if s.name == "prefill":
            share = s.args.get("again", 0.0) / max(s.args.get("tokens", 0.0), 1.0)
            middle = s.start + min(share, 1.0) * (s.end - s.start)
            again.append((s.start, middle))
            first.append((middle, s.end))
        elif s.name == "reread":
            again.append((s.start, s.end))
    return Cover(again), Cover(first)
