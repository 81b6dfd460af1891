"""No deadlock: a simulated system over the real ledger always comes to its end, under a clock of its own.

Groups take heavy-tailed times and finish in any order, some are filtered or dropped, versions load slowly, explorers
and the learner die. Time is a heap of events; hours of it pass in a second.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

import pytest

from rljax.ledger import claims, leases, processes, versions
from rljax.ledger.audit import audit
from rljax.ledger.backend import Backend
from rljax.ledger.claims import Claim, TasksetSize
from rljax.ledger.database import Database, StaleWriterError
from rljax.ledger.leases import LeasedBatch
from tests.ledger.builders import Clock, make_group, make_spec, sql, store

NAMES = ("e0", "e1")


class System:
    """Two explorers and a learner."""

    def __init__(self, place: Backend, alpha: float, k: int, extra: int, seed: int, epochs: int | None) -> None:
        self.chance = random.Random(f"{alpha} {k} {extra} {seed}")
        self.clock = Clock()
        b = self.chance.choice([1, 2, 4])
        self.spec = make_spec(alpha, k, b, extra, max_steps=8, total_epochs=epochs, claim_timeout=30.0)
        self.db = Database(place, self.spec, self.clock)
        claims.register_tasksets(self.db, [TasksetSize("a", 17)])
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.tokens: dict[str, str] = {}
        self.lineage, self.learner_life, self.serving, self.announced = 0, 0, 0, -1
        self.over = False

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (self.clock.now + seconds, next(self.order), event))

    def run(self) -> None:
        """Until the learner has ended, or nothing happens any more: that would be the deadlock."""
        for name in NAMES:
            self.explorer_starts(name)
        self.learner_starts(0)
        if self.chance.random() < 0.7:
            self.after(self.chance.uniform(5, 60), self.learner_dies)
        for name in NAMES:
            if self.chance.random() < 0.5:
                self.after(self.chance.uniform(5, 60), lambda name=name: self.explorer_dies(name))  # type: ignore[misc]
        while not self.over:
            assert self.heap
            assert self.clock.now < 5000, "nothing moves any more"
            self.clock.now, _, event = heapq.heappop(self.heap)
            event()

    # An explorer

    def explorer_starts(self, name: str) -> None:
        self.explore(name, self.register(name))

    def register(self, name: str) -> str:
        """On a host of its own: that the process of this test lives says nothing about it."""
        self.tokens[name] = processes.register(self.db, name, "explorer")
        sql(self.db, "UPDATE processes SET host=:host WHERE name=:name", host=f"host of {name}", name=name)
        return self.tokens[name]

    def explorer_dies(self, name: str) -> None:
        """In silence; its claims must expire by the heartbeats of the other."""
        self.tokens.pop(name, None)
        self.after(200.0, lambda: self.explorer_starts(name))

    def explore(self, name: str, token: str) -> None:
        if self.tokens.get(name) != token:
            return
        try:
            processes.heartbeat(self.db, name, token)
        except StaleWriterError:
            token = self.register(name)
        for claim in claims.claim(self.db, name, ["a"], self.chance.choice([1, 100])).claims:
            self.after(min(self.chance.paretovariate(1.1), 100.0), lambda c=claim: self.settle(name, token, c))  # type: ignore[misc]
        self.after(2.0, lambda: self.explore(name, token))

    def settle(self, name: str, token: str, claim: Claim) -> None:
        if self.tokens.get(name) != token:
            return
        try:
            match self.chance.random():
                case x if x < 0.1:
                    claims.settle(self.db, claim, "filtered", "dull")
                case x if x < 0.15:
                    claims.settle(self.db, claim, "dropped", "timeout")
                case _:
                    newest = max(claim.version, self.serving)
                    tokens = [self.chance.randint(claim.version, newest) for _ in range(3)]
                    store(self.db, claim, make_group(claim.task, tokens))
        except StaleWriterError:
            return

    # The learner

    def learner_starts(self, version: int) -> None:
        self.learner_life += 1
        life = self.learner_life
        self.lineage = leases.begin_lineage(self.db, version)
        self.serving, self.announced = version, -1
        self.after(self.chance.uniform(0, 5), lambda: self.announce(life, version))
        self.after(6.0, lambda: self.learn(life))

    def learner_dies(self) -> None:
        self.learner_life += 1
        trained = sql(self.db, "SELECT trained FROM run")[0].trained
        self.after(self.chance.uniform(0, 50), lambda: self.learner_starts(max(0, trained - self.chance.randint(0, 3))))

    def announce(self, life: int, version: int) -> None:
        if life == self.learner_life and version > self.announced:  # a late one that was overtaken is not announced
            self.announced = version
            versions.announce(self.db, self.lineage, version, f"v{version}-{self.lineage}")
            self.after(self.chance.uniform(0, 3), lambda: self.load(life, version))

    def load(self, life: int, version: int) -> None:
        if life == self.learner_life:
            self.serving = max(self.serving, version)

    def learn(self, life: int) -> None:
        if life != self.learner_life:
            return
        found = leases.lease(self.db, self.lineage)
        if isinstance(found, LeasedBatch):
            self.after(self.chance.uniform(0.1, 4), lambda: self.trained(life, found.step))
        elif found.over:
            self.over = True
        else:
            self.after(1.0, lambda: self.learn(life))

    def trained(self, life: int, step: int) -> None:
        if life != self.learner_life:
            return
        last = step + 1 == self.spec.max_steps
        publishes = last or (step + 1) % self.spec.sync_interval == 0
        leases.mark_trained(self.db, self.lineage, step, publishes)
        if publishes:
            self.after(self.chance.choice([0.0, 1.0, 15.0]), lambda: self.announce(life, step + 1))
        self.over = last
        self.learn(life)


SYSTEMS = list(itertools.product([0.0, 0.3, 0.5, 1.0, 2.5, 7.0], [1, 2, 4], [0, 1]))


@pytest.mark.parametrize(
    ("dialect", "alpha", "k", "extra"),
    [("sqlite", *system) for system in SYSTEMS] + [("postgresql", *system) for system in SYSTEMS[::7]],
)
def test_every_run_comes_to_its_end(place: Backend, alpha: float, k: int, extra: int) -> None:
    system = System(place, alpha, k, extra, seed=0, epochs=None)
    system.run()
    report = audit(system.db)
    assert report["balanced"], report["problems"]
    assert (report["steps"], report["trained_twice"]) == (8, 0)
    assert report["max_staleness"] <= system.spec.staleness_bound


@pytest.mark.parametrize(("dialect", "seed"), [*(("sqlite", seed) for seed in range(6)), ("postgresql", 6)])
def test_every_run_comes_to_the_end_of_its_data(place: Backend, seed: int) -> None:
    system = System(place, 1.0, 1, 0, seed, epochs=1)
    system.spec = system.db.spec
    system.run()
    report = audit(system.db)
    assert report["balanced"], report["problems"]
    assert report["claimed"] <= 17
    assert report["steps"] == 8 or report["open"] == 0
