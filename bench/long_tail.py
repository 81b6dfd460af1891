"""The long tail of the schedule: what may be done about few attempts that take very long, and what each costs in bias.

    python -m bench.long_tail [--quick] [--seeds N] [--only stragglers order prefixes]

What: the real explorer, group runner, engine pool, scheduler and ledger under the virtual clock. A batch is 128
attempts (16 groups of 8) of 64 tokens on average, on 4 engines; it trains for 100 s. Lengths or times are

- lognormal: standard deviation as large as the mean, at most 8 times the mean;
- slow engine: lengths vary by a quarter of their mean, and one of the 4 engines is 10 times slower than the others;
- slow environment: the same lengths in 4 turns with 20 s of an environment after each, 200 s in one attempt of 64.

stragglers: the rule as it is (α, least S); two steps more of S, so that others overtake; `group_size_redundancy`;
oversampling, which claims half a batch more than is trained next: the rest goes on, or begins again whenever a batch is
leased, as where it is returned and its tokens are not kept.

order: with 16 slots an engine, attempts wait for one. Group by group, which is what the explorer asks for; member by
member; the longest first among those due at the same step, by an oracle that knows every length.

prefixes: the same slots, prompts that take an engine as long as 32 tokens unless it has the prompt of that group: it
keeps those of 8 groups, until the next version. Only the first of the two orders has the members of a group follow one
another.

Bias (promise P2): what is trained is not to depend on its length. "trained" is the mean length of what was trained over
that of all attempts that began; "long" is the share of the trained that is longer than nine in ten of those. Of an
order that drops nothing they are 1 and 0.1: every run goes on until all that was claimed is trained. "first" is the
mean length in the first four batches over that of all: who is overtaken comes later. "lost" is the share of the
sampled tokens that no batch had.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bench.paired import print_machine, print_table
from rljax.ledger.leases import LeasedBatch
from rljax.ledger.run_spec import RunSpec
from rljax.pipeline.simulate.engine import SimulatedEngine
from rljax.pipeline.simulate.schedule import Schedule, simulate
from rljax.pipeline.simulate.workload import Attempts, Draw, constant, lognormal
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.workflows.workflow import Attempt
from rljax.tasks.task import Task
from rljax.trajectory import Trajectory
from sidecar.protocol import GenerateRequest, WeightUpdate

GROUP_SIZE, GROUPS, ENGINES = 8, 16, 4
MEAN, TRAIN_SECONDS = 64.0, 100.0
SLOW = 10.0
TURNS, ENVIRONMENT_SECONDS, SLOW_ENVIRONMENTS = 4, 20.0, 64
PROMPT, KEPT_PROMPTS = 32, 8
FIRST = 4
"""Batches that "first" is of."""


def rate(running: int) -> float:
    """Returns the tokens a second of an engine: 32 requests take twice as long for a token each as one does."""
    return running / (1 + running / 32)


class Bell:
    """Bell that rings when a batch is leased."""

    def __init__(self) -> None:
        self._heard: list[asyncio.Future[None]] = []

    def wait(self) -> asyncio.Future[None]:
        """Returns a future that is done when it rings next."""
        self._heard.append(asyncio.get_running_loop().create_future())
        return self._heard[-1]

    def ring(self) -> None:
        """Ends the wait of all."""
        heard, self._heard = self._heard, []
        for each in heard:
            if not each.done():
                each.set_result(None)


@dataclass(frozen=True)
class Recorded(Attempts):
    """Attempts whose lengths are noted as they begin.

    Attributes:
        slow: whether one in `SLOW_ENVIRONMENTS` has an environment that is `SLOW` times slower.
        ranked: priority of a request by its attempt and its tokens; None: group by group.
        bell: what an attempt begins again at, with other lengths; None: nothing.
        begun: tokens of each attempt that began.
    """

    slow: bool = False
    ranked: Callable[[Attempt, int], int] | None = None
    bell: Bell | None = None
    begun: list[int] = field(default_factory=list)

    async def run(self, task: Task, attempt: Attempt, pool: EnginePool) -> Trajectory:
        """Implements `Workflow.run`."""
        while True:
            seed = attempt.seed(task, 0)
            rng = random.Random(seed)
            self.begun.append(sum(max(1, round(self.tokens(rng))) for _ in range(round(self.turns(rng)))))
            slow = self.slow and random.Random(f"slow {seed}").randrange(SLOW_ENVIRONMENTS) == 0
            latency = constant(SLOW * ENVIRONMENT_SECONDS) if slow else self.environment_seconds
            running = asyncio.ensure_future(
                Attempts.run(replace(self, environment_seconds=latency), task, attempt, pool)
            )
            try:
                awaited: list[asyncio.Future[Any]] = [running, *([self.bell.wait()] if self.bell else [])]
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    return running.result()
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
            attempt = replace(attempt, retry=attempt.retry + 1)

    def priority(self, attempt: Attempt, tokens: int) -> int:
        """Implements `Attempts.priority`."""
        return super().priority(attempt, tokens) if self.ranked is None else self.ranked(attempt, tokens)


def by_member(attempt: Attempt, tokens: int) -> int:
    """Ranks the first member of all groups before the second of any."""
    return attempt.member * 10**6 + attempt.group


def longest_first(attempt: Attempt, tokens: int) -> int:
    """Ranks by the step that a group is due at, then the longest first."""
    return attempt.min_version * 10**6 - tokens


class PromptEngine(SimulatedEngine):
    """An engine that reads a prompt unless it has kept it: those of the last groups, of the version that it has.

    Attributes:
        read, found: prompts of either kind.
    """

    def __init__(self, slots: int) -> None:
        super().__init__(rate, slots)
        self._kept: OrderedDict[str, None] = OrderedDict()
        self.read, self.found = 0, 0

    async def update_weights(self, update: WeightUpdate) -> None:
        """Implements `Engine.update_weights`."""
        self._kept.clear()
        await super().update_weights(update)

    def _work(self, request: GenerateRequest) -> float:
        known = request.affinity in self._kept
        self._kept[request.affinity] = None
        self._kept.move_to_end(request.affinity)
        if len(self._kept) > KEPT_PROMPTS:
            self._kept.popitem(last=False)
        self.read, self.found = self.read + (not known), self.found + known
        return super()._work(request) + (0 if known else PROMPT)


@dataclass(frozen=True)
class Case:
    """A way to treat the tail."""

    name: str
    alpha: float = 0.0
    slack: int = 0  # S beyond the least
    redundancy: int = 0
    again: bool = False  # what is not done begins again when a batch is leased
    ranked: Callable[[Attempt, int], int] | None = None


def stragglers() -> list[Case]:
    """Returns the cases of that table."""
    cases = []
    for alpha in (0.0, 1.0):
        cases += [
            Case("as it is", alpha),
            *([Case("S + 2", alpha, 2)] if alpha else []),  # without credit ahead nobody is overtaken
            *(Case(f"redundancy {more}", alpha, redundancy=more) for more in (1, 2)),
            Case("half more, the rest goes on", alpha + 0.5, 0 if alpha else 1),
            Case("half more, the rest begins again", alpha + 0.5, 0 if alpha else 1, again=True),
        ]
    return cases


ORDERS = {"group by group": None, "by member": by_member, "longest first": longest_first}
LENGTHS: dict[str, Draw] = {
    "lognormal": lognormal(MEAN, MEAN, 8 * MEAN),
    "slow engine": lognormal(MEAN, MEAN / 4),
    "slow environment": lognormal(MEAN / TURNS, MEAN / TURNS / 4),
}
COLUMNS = ("s a step", "of as it is", "trained", "long", "first", "lost", "staleness")


def run(kind: str, case: Case, steps: int, seed: int, slots: int, prompts: bool = False) -> dict[str, float]:
    """Runs a case to its end; returns its figures."""
    bell = Bell() if case.again else None
    environments = kind == "slow environment"
    attempts = Recorded(
        constant(TURNS if environments else 1),
        LENGTHS[kind],
        constant(ENVIRONMENT_SECONDS if environments else 0.0),
        slow=environments,
        ranked=case.ranked,
        bell=bell,
    )
    engines: list[SimulatedEngine] = []
    sampled = 0.0

    def make_engine(index: int) -> SimulatedEngine:
        slowed = SLOW if kind == "slow engine" and index == 0 else 1.0
        engines.append(PromptEngine(slots) if prompts else SimulatedEngine(lambda n: rate(n) / slowed, slots))
        return engines[-1]

    def train(_: LeasedBatch) -> float:
        nonlocal sampled
        sampled = sum(engine.sampled_tokens for engine in engines)
        if bell is not None:
            bell.ring()
        return TRAIN_SECONDS

    bound = int(np.ceil(case.alpha)) + case.slack
    spec = RunSpec(seed, GROUP_SIZE, GROUPS, case.alpha, bound, 1, steps, None, 60.0)
    outcome = simulate(
        Schedule(spec, attempts, rate, train, engines=ENGINES, redundancy=case.redundancy, make_engine=make_engine)
    )
    lost = {**outcome.audit["dropped"], **outcome.audit["filtered"]}
    if lost or len(outcome.steps) != steps:
        raise RuntimeError(f"{case.name}: {lost} groups discarded, {len(outcome.steps)} of {steps} steps")
    trained = [
        [int(t.loss_mask.sum()) for group in step.batch.groups for t in group.trajectories] for step in outcome.steps
    ]
    every, begun = np.concatenate(trained), np.array(attempts.begun)
    found = {
        "s a step": outcome.steps[-1].ended / steps,
        "trained": float(every.mean() / begun.mean()),
        "long": float((every > np.quantile(begun, 0.9)).mean()),
        "first": float(np.mean(trained[:FIRST]) / every.mean()),
        "lost": max(0.0, 1 - float(every.sum()) / sampled),
        "staleness": float(outcome.audit["max_staleness"]),
    }
    if prompts:
        found["prompts read"] = sum(e.read for e in engines if isinstance(e, PromptEngine)) / len(begun)
    return found


def table(title: str, kinds: Sequence[str], cases: Sequence[Case], steps: int, seeds: int, **keys: Any) -> None:
    """Runs the cases on each kind and prints their medians over the seeds."""
    begin = time.process_time()
    rows: list[list[object]] = []
    columns = [*COLUMNS, *(["prompts read"] if keys.get("prompts") else [])]
    for kind in kinds:
        plain: dict[float, float] = {}
        for case in cases:
            each = [run(kind, case, steps, seed, **keys) for seed in range(seeds)]
            found = {name: statistics.median(one[name] for one in each) for name in each[0]}
            first = plain.setdefault(float(int(case.alpha)), found["s a step"])
            found["of as it is"] = found["s a step"] / first
            rows.append([kind, case.name, f"{case.alpha:g}", *(found[name] for name in columns)])
            print(rows[-1], flush=True)
    print_table(f"{title} ({time.process_time() - begin:.0f} s of CPU)", ("tail", "what", "α", *columns), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed of 8 steps")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=("stragglers", "order", "prefixes"))
    options = parser.parse_args()
    print_machine()
    steps, seeds = (8, 1) if options.quick else (32, options.seeds)
    orders = [Case(name, alpha, ranked=ranked) for alpha in (0.0, 1.0) for name, ranked in ORDERS.items()]
    by_known = [case for case in orders if case.ranked is not longest_first]
    tables: dict[str, tuple[Sequence[str], Sequence[Case], dict[str, Any]]] = {
        "stragglers": (list(LENGTHS), stragglers(), {"slots": 10**6}),
        "order": (list(LENGTHS), orders, {"slots": 16}),
        "prefixes": (["lognormal"], by_known, {"slots": 16, "prompts": True}),
    }
    for name in options.only or tables:
        kinds, cases, keys = tables[name]
        table(name, kinds, cases, steps, seeds, **keys)


if __name__ == "__main__":
    main()
