"""The rule of the design's section 5, read once more and written as naively as possible: lists, loops, no index.

Nothing of `rljax.ledger` is used here. The state machine plays both and compares.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor
from typing import Any

Key = tuple[str, int, int]


@dataclass(eq=False)
class Task:
    """One task, in the order of first claims."""

    key: Key
    state: str = "claimed"
    version: int = 0
    deadline: int = 0
    explorer: str = ""
    tokens: list[int] = field(default_factory=list)
    step: int = -1
    uses: list[int] = field(default_factory=list)
    reason: str = ""
    retired: int = 0
    claim: Any = None


class NaiveLedger:
    """What the ledger should say, from the same calls."""

    def __init__(
        self,
        alpha: str,
        b: int,
        bound: int,
        max_steps: int,
        sets: dict[str, tuple[int, int]],
        epochs: int | None,
        max_uses: int = 1,
        reused: int = 0,
        filled: int | None = None,
    ) -> None:
        """``filled`` is k where the interval is filled."""
        self.filled = filled
        self.max_uses, self.reused = max_uses, reused
        self.alpha, self.b, self.bound, self.max_steps = Fraction(alpha), b, bound, max_steps
        self.sets, self.epochs = sets, epochs
        self.tasks: list[Task] = []
        self.t = 0
        self.batches: list[list[tuple[Key, list[int]]]] = []
        self.leased: list[Task] = []
        self.again: list[Task] = []
        self.announced: int | None = None
        self.restarted_from = 0
        self.unannounced: set[int] = set()
        self.standing: set[int] = set()
        self.announcements = 0
        self.withdrawn = 0
        self.validations: dict[int, str] = {}
        self.pruned = 0

    # What the rule speaks of

    def within(self, *states: str) -> list[Task]:
        return [task for task in self.tasks if task.state in states]

    @property
    def credit(self) -> int:
        """Of what lives; where the interval is filled, of what lives or is trained, from the run's beginning on."""
        if self.filled is not None:
            return floor((self.seen + self.filled + self.alpha) * self.b)
        return floor((1 + self.alpha) * self.b)

    @property
    def seen(self) -> int:
        return self.restarted_from if self.announced is None else self.announced

    @property
    def outstanding(self) -> int:
        living = len(self.within("claimed", "ready", "leased"))
        return living + self.b * (len(self.unannounced) if self.filled is None else self.t)

    @property
    def next_step(self) -> int:
        return self.t + (1 if self.leased else 0)

    def feasible(self, deadlines: list[int], t: int) -> bool:
        """For every j >= -1 at most (j+1)·b of them have d <= t+j."""
        last = max([t, *deadlines])
        return all(sum(d <= t + j for d in deadlines) <= (j + 1) * self.b for j in range(-1, last - t + 2))

    def unleased(self) -> list[int]:
        return [task.deadline for task in self.within("claimed", "ready")]

    # Claims

    def claim(self, explorer: str, names: list[str], limit: int) -> list[Task]:
        granted: list[Task] = []
        while len(granted) < limit and self._may_claim():
            task = self._next_task(names)
            if task is None:
                break
            assert self.announced is not None
            task.state, task.explorer, task.version = "claimed", explorer, self.announced
            task.deadline = self.announced + self.bound
            granted.append(task)
        return granted

    def _may_claim(self) -> bool:
        if self.announced is None or any(state != "done" for state in self.validations.values()):
            return False
        in_flight = len(self.within("claimed", "ready", "leased"))
        return (
            self.outstanding + 1 <= self.credit
            and self.feasible([*self.unleased(), self.announced + self.bound], self.next_step)
            and self.t * self.b + in_flight + 1 <= self.max_steps * self.b
        )

    def issued(self, name: str) -> int:
        return sum(task.key[0] == name for task in self.tasks)

    def exhausted(self, name: str) -> bool:
        return self.epochs is not None and self.issued(name) == self.sets[name][0] * self.epochs

    def _next_task(self, names: list[str]) -> Task | None:
        for task in self.within("open"):
            if task.key[0] in names:
                return task
        left = [n for n in names if not self.exhausted(n)]
        if not left:
            return None
        # One is due while it has had less than its share of the next place too; of these the first to be late.
        place = 1 + sum(map(self.issued, left))
        part = {n: Fraction(self.sets[n][1], sum(self.sets[n][1] for n in left)) for n in left}
        due = [n for n in left if self.issued(n) < place * part[n]]
        name = min(due, key=lambda n: ((self.issued(n) + 1) / part[n], n))
        size = self.sets[name][0]
        task = Task((name, self.issued(name) // size, self.issued(name) % size))
        self.tasks.append(task)
        return task

    def store(self, task: Task, tokens: list[int]) -> None:
        task.state, task.tokens = "ready", tokens

    def settle(self, task: Task, state: str, reason: str) -> None:
        task.state, task.reason = state, reason

    def die(self, explorer: str) -> None:
        for task in self.within("claimed"):
            if task.explorer == explorer:
                task.state = "open"

    # The learner

    def lease(self) -> list[Task] | str:
        if self.leased:
            return self.leased
        ready = sorted(self.within("ready"), key=lambda task: (task.deadline, self.tasks.index(task)))
        if len(ready) < self.b:
            if not self.within("claimed", "open") and all(self.exhausted(name) for name in self.sets):
                for task in ready:
                    self.settle(task, "dropped", "end_of_data")
                return "over"
            return "wait"
        chosen, rest = ready[: self.b], ready[self.b :] + self.within("claimed")
        if not self.feasible([task.deadline for task in rest], self.t + 1):
            return "wait"
        for task in chosen:
            task.state = "leased"
        self.leased, self.again = chosen, self.reusable()
        return chosen

    def reusable(self) -> list[Task]:
        may = [t for t in self.within("trained") if t.deadline >= self.t and len(t.uses) < self.max_uses]
        may.sort(key=lambda task: (len(task.uses), -task.deadline, self.tasks.index(task)))
        return may[: self.reused]

    def train(self, publishes: bool) -> None:
        self.batches.append([(task.key, task.tokens) for task in self.leased + self.again])
        for task in self.leased + self.again:
            task.uses.append(self.t)
        for task in self.leased:
            task.state, task.step = "trained", self.t
        if publishes:
            self.unannounced.add(self.t)
        self.leased, self.again = [], []
        self.t += 1

    def announce(self, version: int, validate: bool) -> None:
        self.announced = version
        self.announcements += 1
        self.standing.add(version)
        self.unannounced = {step for step in self.unannounced if step >= version}
        if validate:
            self.validations.setdefault(version, "requested")

    def restart(self, s: int) -> None:
        self.again = []
        for task in self.tasks:
            task.uses = [step for step in task.uses if step < s]
            if task.state == "leased" or (task.state == "trained" and task.step >= s):
                task.state = "ready"
        for task in self.within("ready"):
            if any(version > s for version in task.tokens):
                task.state = "open"
                task.retired += 1
        lost = {version for version in self.standing if version > s}
        if lost:
            for task in self.within("claimed"):
                task.state = "open"
        self.standing -= lost
        self.validations = {version: state for version, state in self.validations.items() if version <= s}
        del self.batches[s:]
        self.t, self.leased, self.announced, self.unannounced = s, [], None, set()
        self.restarted_from = s

    # What has come of it

    def audit(self) -> dict[str, Any]:
        states = Counter(task.state for task in self.tasks)
        keys = [key for batch in self.batches for key, _ in batch]
        ages = Counter(t - v for t, batch in enumerate(self.batches) for _, tokens in batch for v in tokens)
        reasons = {s: dict(Counter(task.reason for task in self.within(s))) for s in ("dropped", "filtered")}
        return {
            "claimed": len(self.tasks),
            "trained": states["trained"],
            "open": sum(states[state] for state in ("open", "claimed", "ready", "leased")),
            **reasons,
            "trained_twice": sum(n > self.max_uses for n in Counter(keys).values()),
            "uses": {str(n): count for n, count in sorted(Counter(Counter(keys).values()).items())},
            "steps": self.t,
            "max_staleness": max(ages, default=0),
            "staleness_histogram": {str(age): ages[age] for age in sorted(ages)},
            "retired": sum(task.retired for task in self.tasks),
            "gaps": {},
            "balanced": True,
            "problems": [],
        }
