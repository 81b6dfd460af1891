"""The real ledger and the naive model of it are told the same things; after each they must say the same."""

from __future__ import annotations

import random
from collections import Counter
from typing import TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rljax.ledger import claims, leases, processes, validations, versions
from rljax.ledger.audit import audit
from rljax.ledger.claims import Claim, TasksetSize
from rljax.ledger.database import Database, LedgerError, StaleWriterError
from rljax.ledger.leases import LeasedBatch
from tests.ledger.builders import Clock, make_group, make_spec, sql, store
from tests.ledger.conftest import Places
from tests.ledger.naive_model import NaiveLedger, Task

EXPLORERS = {"e0": ["a", "b"], "e1": ["a"], "e2": ["a", "b"]}
AUDIT_EVERY = 10
T = TypeVar("T")
anything = st.integers(0, 10**6)
"""A number that picks one of however many there are, or seeds a choice."""


class LedgerMachine(RuleBasedStateMachine):
    """A run, told at random."""

    def __init__(self, alpha: str, places: Places) -> None:
        super().__init__()
        self.alpha = alpha
        self.place = places()
        self.clock = Clock()
        self.checks = 0
        self.over_credit = False

    @initialize(
        k=st.integers(1, 4),
        extra=st.sampled_from([0, 0, 1, 3]),
        b=st.sampled_from([1, 2, 3, 5]),
        steps=st.integers(3, 12),
        epochs=st.sampled_from([None, None, None, 1, 2]),
        sizes=st.tuples(st.integers(1, 20), st.integers(1, 20)),
        reuse=st.sampled_from([(1, 0), (1, 0), (2, 1), (2, 5), (4, 3)]),
        fills=st.booleans(),
    )
    def begin(
        self,
        k: int,
        extra: int,
        b: int,
        steps: int,
        epochs: int | None,
        sizes: tuple[int, int],
        reuse: tuple[int, int],
        fills: bool,
    ) -> None:
        """``reuse`` is `RunSpec.max_uses` and `RunSpec.reused_groups`."""
        uses, reused = reuse
        keys = {"max_steps": steps, "total_epochs": epochs, "max_uses": uses, "reused_groups": reused}
        spec = make_spec(float(self.alpha), k, b, extra, fill_interval=fills, **keys)
        self.k = k
        self.db = Database(self.place, spec, self.clock)
        sets = {"a": (sizes[0], 1), "b": (sizes[1], 2)}
        claims.register_tasksets(self.db, [TasksetSize(name, n, float(w)) for name, (n, w) in sets.items()])
        self.tokens = {name: processes.register(self.db, name, "explorer") for name in EXPLORERS}
        filled = k if fills else None
        self.model = NaiveLedger(self.alpha, b, spec.staleness_bound, steps, sets, epochs, uses, reused, filled)
        self.expired: list[Claim] = []
        self.lineage = leases.begin_lineage(self.db, 0)
        self.announce(0, validate=False)

    # Explorers

    @rule(name=st.sampled_from(sorted(EXPLORERS)), limit=st.sampled_from([1, 2, 3, 100, 100]))
    def claim(self, name: str, limit: int) -> None:
        wanted = self.model.claim(name, EXPLORERS[name], limit) if name in self.tokens else []
        granted = claims.claim(self.db, name, EXPLORERS[name], limit).claims
        found = [((c.task.taskset, c.task.epoch, c.task.index), c.version, c.deadline, c.lineage) for c in granted]
        assert found == [(task.key, task.version, task.deadline, self.lineage) for task in wanted]
        for task, granted_claim in zip(wanted, granted, strict=True):
            if task.claim is not None:
                self.expired.append(task.claim)
            task.claim = granted_claim
        if granted:
            assert self.model.outstanding <= self.model.credit

    @precondition(lambda self: self.model.within("claimed"))
    @rule(pick=anything)
    def store_one(self, pick: int) -> None:
        self._store(_pick(self.model.within("claimed"), pick), random.Random(pick))

    @rule(seed=anything, share=st.sampled_from([0.5, 0.9, 1.0]))
    def store_many(self, seed: int, share: float) -> None:
        chance = random.Random(seed)
        claimed = self.model.within("claimed")
        chance.shuffle(claimed)
        for task in claimed:
            straggler = task.key[2] % 4 == 0 and share < 1
            if chance.random() < (share / 8 if straggler else share):
                if share < 1 and chance.random() < 0.15:
                    self._settle(task, "filtered", "dull")
                else:
                    self._store(task, chance)

    def _store(self, task: Task, chance: random.Random) -> None:
        newest = self.model.restarted_from if self.model.announced is None else self.model.announced
        tokens = [chance.randint(task.version, newest) for _ in range(chance.choice([0, 1, 1, 2, 4]))]
        store(self.db, task.claim, make_group(task.claim.task, tokens))
        self.model.store(task, tokens)

    @precondition(lambda self: self.model.within("claimed"))
    @rule(pick=anything, state=st.sampled_from(["filtered", "dropped"]), reason=st.sampled_from(["dull", "timeout"]))
    def settle(self, pick: int, state: str, reason: str) -> None:
        self._settle(_pick(self.model.within("claimed"), pick), state, reason)

    def _settle(self, task: Task, state: str, reason: str) -> None:
        claims.settle(self.db, task.claim, state, reason)
        self.model.settle(task, state, reason)

    @precondition(lambda self: bool(self.expired) or any(t.state != "claimed" for t in self.model.tasks))
    @rule(pick=anything)
    def write_with_an_expired_claim(self, pick: int) -> None:
        closed = [task.claim for task in self.model.tasks if task.state != "claimed"]
        claim = _pick(self.expired + closed, pick)
        with pytest.raises(StaleWriterError, match="expired"):
            store(self.db, claim, make_group(claim.task, [claim.version]))
        with pytest.raises(StaleWriterError, match="expired"):
            claims.settle(self.db, claim, "dropped", "late")

    @rule(name=st.sampled_from(sorted(EXPLORERS)), how=st.sampled_from(["hand back", "leave", "silence"]))
    def lose_an_explorer(self, name: str, how: str) -> None:
        if name not in self.tokens:
            self.tokens[name] = processes.register(self.db, name, "explorer")
            return
        if how == "hand back":
            claims.hand_back(self.db, name)
            self.model.die(name)
            return
        token = self.tokens.pop(name)
        if how == "leave":
            processes.leave(self.db, name, token)
        else:
            self.clock.now += 61
            if not self.tokens:
                assert processes.mark_dead_processes(self.db) == []  # its process lives: only other explorers can tell
                self.tokens[name] = token
                return
            # The others have all spoken lately, but none has looked around yet.
            sql(self.db, "UPDATE processes SET heartbeat=:now WHERE name<>:name", now=self.clock.now, name=name)
            other = min(self.tokens)
            processes.heartbeat(self.db, other, self.tokens[other])
        with pytest.raises(StaleWriterError, match="declared dead"):
            processes.heartbeat(self.db, name, token)
        self.model.die(name)
        self._end_validations_of(name)

    @rule(rounds=st.integers(1, 4), seed=anything, haste=st.sampled_from([0.3, 0.6, 0.9]))
    def go_on_for_a_while(self, rounds: int, seed: int, haste: float) -> None:
        """Ordinary life: with single events alone a random run would hardly come past its first step."""
        chance = random.Random(seed)
        for _ in range(rounds):
            if self.model.announced is None:
                self.publish(0, validate=False)
            self.claim(chance.choice(sorted(EXPLORERS)), chance.choice([1, 100, 100]))
            self.store_many(chance.randrange(10**6), haste)
            self.lease(train=True)
            if self.model.unannounced and chance.random() < 0.4:
                self.publish(chance.randrange(10**6), validate=False)
            if chance.random() < haste:
                self.validate(chance.choice(sorted(EXPLORERS)), finish=True)
            self.states_agree()
            self.promises_hold()

    # The learner

    @rule(train=st.booleans())
    def lease(self, train: bool) -> None:
        wanted, found = self.model.lease(), leases.lease(self.db, self.lineage)
        if isinstance(found, LeasedBatch):
            assert isinstance(wanted, list), f"the ledger leased, the model says {wanted}"
            assert found.step == self.model.t
            assert [(g.task.taskset, g.task.epoch, g.task.index) for g in found.groups] == [t.key for t in wanted]
            assert [g.version_counts() for g in found.groups] == [Counter(t.tokens) for t in wanted]
            again = [((g.task.taskset, g.task.epoch, g.task.index), g.version_counts()) for g in found.reused]
            assert again == [(task.key, Counter(task.tokens)) for task in self.model.again]
            if train:
                self._train()
        else:
            assert wanted == ("over" if found.over else "wait"), found.reason

    def _train(self) -> None:
        step = self.model.t
        publishes = (step + 1) % self.k == 0 or step + 1 == self.model.max_steps
        leases.mark_trained(self.db, self.lineage, step, publishes)
        self.model.train(publishes)

    @precondition(lambda self: self.model.leased)
    @rule()
    def train(self) -> None:
        self._train()

    @precondition(lambda self: self.model.announced is None or self.model.unannounced)
    @rule(pick=anything, validate=st.sampled_from([False, False, True]))
    def publish(self, pick: int, validate: bool) -> None:
        """The republished version first; then any that waits to be announced, however late."""
        due = sorted(step + 1 for step in self.model.unannounced)
        self.announce(self.model.restarted_from if self.model.announced is None else _pick(due, pick), validate)

    def announce(self, version: int, validate: bool) -> None:
        versions.announce(self.db, self.lineage, version, f"weights/v{version}-{self.lineage}", validate=validate)
        self.model.announce(version, validate)

    @rule(lost=st.integers(0, 4))
    def learner_dies(self, lost: int) -> None:
        """It starts again from a checkpoint that its batches are kept for; the old one is a zombie from then on."""
        zombie, step = self.lineage, self.model.t
        version = max(self.model.pruned, step - lost)
        self.lineage = leases.begin_lineage(self.db, version)
        assert self.lineage == zombie + 1
        self.model.restart(version)
        self.over_credit = True
        with pytest.raises(StaleWriterError, match="taken over"):
            leases.lease(self.db, zombie)
        with pytest.raises(StaleWriterError, match="taken over"):
            leases.mark_trained(self.db, zombie, step, True)
        with pytest.raises(StaleWriterError, match="taken over"):
            versions.announce(self.db, zombie, step + 1, "zombie")

    @rule(pick=anything)
    def prune(self, pick: int) -> None:
        before = pick % (self.model.t // 2 + 1)
        leases.prune_payloads(self.db, self.lineage, before)
        self.model.pruned = max(self.model.pruned, before)
        if self.model.pruned > 0:
            with pytest.raises(LedgerError, match="older than the batches kept"):
                leases.begin_lineage(self.db, self.model.pruned - 1)

    # Validation

    @rule(name=st.sampled_from(sorted(EXPLORERS)), finish=st.booleans())
    def validate(self, name: str, finish: bool) -> None:
        requested = sorted(v for v, state in self.model.validations.items() if state == "requested")
        pinned = validations.claim_validation(self.db, name)
        if name not in self.tokens or not requested:
            assert pinned is None
            return
        assert pinned is not None
        assert pinned.version == requested[0]
        self.model.validations[pinned.version] = name
        if finish:
            validations.finish_validation(self.db, name, pinned, {"val/score": 0.5})
            self.model.validations[pinned.version] = "done"

    def _end_validations_of(self, name: str) -> None:
        for version, state in self.model.validations.items():
            if state == name:
                self.model.validations[version] = "requested"

    # What must hold whenever

    @invariant()
    def states_agree(self) -> None:
        assert claims.states(self.db) == Counter(task.state for task in self.model.tasks)

    @invariant()
    def promises_hold(self) -> None:
        model = self.model
        if model.outstanding <= model.credit:
            self.over_credit = False
        assert self.over_credit or model.outstanding <= model.credit
        assert model.feasible(model.unleased(), model.next_step)
        assert all(len(task.uses) <= model.max_uses for task in model.tasks)
        assert all(t - v <= model.bound for t, batch in enumerate(model.batches) for _, used in batch for v in used)

    @invariant()
    def audits_agree(self) -> None:
        self.checks += 1
        if self.checks % AUDIT_EVERY == 0:
            self._compare_audits()

    def _compare_audits(self) -> None:
        found = audit(self.db)
        assert {key: found[key] for key in self.model.audit()} == self.model.audit()
        kept = leases.recorded_batches(self.db, self.model.pruned, self.model.t)
        trained = [[(g.task.taskset, g.task.epoch, g.task.index) for g in (*b.groups, *b.reused)] for b in kept]
        assert trained == [[key for key, _ in batch] for batch in self.model.batches[self.model.pruned :]]
        newest = max(self.model.standing, default=-1)
        assert found["versions"]["newest"] == newest
        assert found["versions"]["announced"] == self.model.announcements

    def teardown(self) -> None:
        """Wherever it has come to, the run can still be brought to its end."""
        if hasattr(self, "model"):
            self._drain()
            self.db.close()

    def _drain(self) -> None:
        model = self.model
        for name in EXPLORERS:
            if name not in self.tokens:
                self.tokens[name] = processes.register(self.db, name, "explorer")
        for version, state in list(model.validations.items()):
            if state in EXPLORERS:
                (row,) = sql(self.db, "SELECT lineage FROM validations WHERE version=:version", version=version)
                pinned = versions.get(self.db, version, row.lineage)
                validations.finish_validation(self.db, state, pinned, {})
                model.validations[version] = "done"
        for _ in range(3 * model.max_steps + 10):
            while any(state != "done" for state in model.validations.values()):
                self.validate("e0", finish=True)
            while model.announced is None or model.unannounced:
                self.publish(0, validate=False)
            self.claim("e0", 1000)
            self.store_many(0, 1.0)
            over = not model.within("claimed", "open", "ready") and all(model.exhausted(n) for n in model.sets)
            if model.t == model.max_steps or over:
                break
            self.lease(train=True)
        else:
            raise AssertionError("the run has come to a standstill")
        self._compare_audits()
        if model.epochs is None:
            assert model.t == model.max_steps
            assert audit(self.db)["open"] == len(model.within("open"))


def _pick(items: list[T], number: int) -> T:
    return items[number % len(items)]
