"""The real explorer, scheduler and ledger under a virtual clock, with engines of modelled latency."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax.config.validate import ConfigError
from rljax.ledger import claims, processes, versions
from rljax.ledger.database import Database, LedgerError, RunFailedError
from rljax.ledger.sqlite import SqliteFile
from rljax.ledger.transaction import Transaction
from rljax.observe.trace import NullTrace
from rljax.pipeline.simulate.clock import run_virtual
from rljax.rollout import group_runner as groups
from rljax.rollout.environments.session import EnvironmentLost
from rljax.rollout.group_runner import NothingButDrops
from rljax.rollout.workflows.workflow import Attempt
from rljax.tasks.task import BadRow, Task
from sidecar.protocol import EngineError, GenerateRequest
from tests.modelled_engine import ModelledEngine
from tests.rollout.simulation import SPEC, Numbers, build, run_simulation


@pytest.mark.parametrize(("alpha", "staleness"), [(0.0, 0), (0.5, 1), (1.0, 1), (2.5, 3), (7.0, 7)])
def test_run_ends_balanced_and_within_its_bound(tmp_path: Path, alpha: float, staleness: int) -> None:
    spec = replace(SPEC, alpha=alpha, staleness_bound=staleness, max_steps=12)
    slow = lambda request: 1.0 + 9.0 * (hash(request.id) % 7 == 0)  # noqa: E731
    _, batches, report = run_simulation(tmp_path, spec=spec, latency=slow)
    assert [b.step for b in batches] == list(range(12))
    assert report["balanced"], report["problems"]
    assert report["trained"] == 24
    assert report["max_staleness"] <= staleness


def test_synchronous_run_is_reproducible(tmp_path: Path) -> None:
    """P11: at α=0 tasks, seeds and batches do not depend on who was fast."""
    spec = replace(SPEC, alpha=0.0, staleness_bound=0)

    def batches(name: str, salt: int) -> list[Any]:
        (tmp_path / name).mkdir()
        _, found, _ = run_simulation(
            tmp_path / name,
            spec=spec,
            latency=lambda r: 1.0 + (int(r.sampling.seed) * salt) % 13,
            validate=frozenset({0, 3}),
        )
        return [[(str(g.task), [t.seed for t in g.trajectories]) for g in b.groups] for b in found]

    assert batches("one", 1) == batches("two", 5)


def test_seeds_ignore_crashes_and_differ_by_retry_and_member() -> None:
    """P11: a crash or an expired claim is no retry."""
    task = Numbers().task(0, 3)
    first = Attempt(7, member=1, retry=0, min_version=0, lineage=1)
    again = Attempt(7, member=1, retry=0, min_version=5, lineage=2)
    assert first.seed(task, 0) == again.seed(task, 0)
    others = {replace(first, member=2).seed(task, 0), replace(first, retry=1).seed(task, 0), first.seed(task, 1)}
    assert len(others | {first.seed(task, 0)}) == 4


def test_the_older_group_is_the_more_urgent_one_and_a_validation_before_all(tmp_path: Path) -> None:
    seen: list[Attempt] = []
    _, _, report = run_simulation(
        tmp_path, misbehave=lambda _, attempt: seen.append(attempt), validate=frozenset({0, 3})
    )
    assert report["balanced"], report["problems"]
    groups = list(dict.fromkeys(attempt.group for attempt in seen if not attempt.validation))
    assert groups == sorted(groups)
    assert len(groups) == report["claimed"]
    assert {attempt.group for attempt in seen if attempt.validation} == {0}
    assert groups[0] > 0


def test_failing_member_is_retried_then_its_group_is_dropped_with_the_reason(tmp_path: Path) -> None:
    async def fail() -> None:
        raise ZeroDivisionError("one over nothing")

    def misbehave(task: Task, attempt: Attempt) -> Any:
        once = task.id.index == 2 and attempt.member == 1 and attempt.retry == 0
        always = task.id.index == 5 and attempt.member == 0
        return fail() if once or always else None

    _, _, report = run_simulation(tmp_path, misbehave=misbehave)
    assert report["balanced"], report["problems"]
    assert report["dropped"] == {"ZeroDivisionError": 1}
    assert report["trained"] == 12
    assert report["faults"]["ZeroDivisionError"] == 1 + 3


def test_an_attempt_lost_by_others_is_made_again_as_it_was(tmp_path: Path) -> None:
    """Retries are for one's own failures: more losses than these leave the group whole, with its first seeds."""
    tries: dict[Any, int] = {}

    async def lose() -> None:
        raise EnvironmentLost("worker 3 ended with code 7")

    def misbehave(task: Task, attempt: Attempt) -> Any:
        place = (task.id.index, attempt.member)
        tries[place] = tries.get(place, 0) + 1
        return lose() if (place == (2, 1) and tries[place] <= 6) or place == (5, 0) else None

    _, batches, report = run_simulation(tmp_path, misbehave=misbehave)
    assert report["balanced"], report["problems"]
    assert tries[2, 1] == 7
    assert {t.retries for b in batches for g in b.groups for t in g.trajectories} == {0}
    assert report["dropped"] == {"EnvironmentLost": 1}, "there is an end to it"
    assert tries[5, 0] == 1 + groups.LOST_LIMIT


def test_where_nothing_but_drops_happens_the_explorer_says_why(tmp_path: Path) -> None:
    """Every claim is dropped and replaced, and tokens may flow meanwhile: nothing else would ever end it."""

    async def fail() -> None:
        raise ZeroDivisionError("one over nothing")

    says = r"100 groups in a row were dropped and none was whole; the last for ZeroDivisionError: one over nothing"
    with pytest.raises(NothingButDrops, match=says):
        run_simulation(tmp_path, misbehave=lambda task, attempt: fail())


def test_a_whole_group_now_and_then_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "DROPS_IN_A_ROW", 4)

    async def fail() -> None:
        raise ZeroDivisionError("one over nothing")

    _, _, report = run_simulation(tmp_path, misbehave=lambda task, attempt: fail() if task.id.index % 3 else None)
    assert report["balanced"], report["problems"]
    assert report["dropped"]["ZeroDivisionError"] > 10


def test_environments_whose_every_opening_is_too_long_are_no_run(tmp_path: Path) -> None:
    """An environment has more seeds than a run can skip; of rows the config says that bad ones are skipped."""

    class Seeds(Numbers):
        def task(self, epoch: int, index: int) -> Task:
            return replace(super().task(epoch, index), environment=True)

    async def too_long() -> None:
        raise BadRow("an opening of 900 tokens leaves no room for a reply")

    with pytest.raises(NothingButDrops, match="BadRow: an opening of 900 tokens"):
        run_simulation(tmp_path, misbehave=lambda task, attempt: too_long(), tasksets={"numbers": Seeds()})


def test_a_taskset_of_nothing_but_bad_rows_is_no_run(tmp_path: Path) -> None:
    """Rows that only their workflow finds bad, say by their length in tokens, are skipped, but not for ever."""

    async def too_long() -> None:
        raise BadRow("a prompt of 900 tokens")

    with pytest.raises(NothingButDrops, match=r"24 bad rows in a row and no other; the last: a prompt"):
        run_simulation(
            tmp_path, misbehave=lambda task, attempt: too_long(), tasksets={"numbers": Numbers("numbers", 24)}
        )


def test_what_cannot_be_prepared_ends_the_explorer_before_anything_is_claimed(tmp_path: Path) -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> None:
        async def prepare() -> None:
            raise ConfigError("custom_envs.x: no")

        simulation = build(tmp_path, loop, prepare=prepare)
        versions.announce(simulation.db, 0, 0, "weights/v0")
        with pytest.raises(ConfigError, match=r"custom_envs\.x: no"):
            await simulation.explorer.run()
        assert claims.states(simulation.db) == {}
        assert not simulation.engine.loads

    run_virtual(main)


def test_hanging_member_costs_its_own_group_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def misbehave(task: Task, attempt: Attempt) -> Any:
        return asyncio.sleep(1e9) if task.id.index == 3 and attempt.member == 2 else None

    _, _, report = run_simulation(tmp_path, misbehave=misbehave, timeout=20.0)
    assert report["balanced"], report["problems"]
    assert report["dropped"] == {"timeout": 1}
    assert report["trained"] == 12
    assert any("not done within rollout.trajectory_timeout=20 seconds" in r.message for r in caplog.records)


def test_filtered_group_is_replaced_and_counted(tmp_path: Path) -> None:
    def third(group: Any) -> str | None:
        return "every third" if group.task.index % 3 == 0 else None

    _, batches, report = run_simulation(tmp_path, filters=[("thirds", third)])
    assert report["balanced"], report["problems"]
    assert set(report["filtered"]) == {"thirds: every third"}
    assert all(g.task.index % 3 for b in batches for g in b.groups)


def test_a_filter_that_raises_is_named_with_its_line(tmp_path: Path) -> None:
    def few(group: Any) -> str | None:
        return str(group.members)

    with pytest.raises(
        ValueError, match=r"^algorithm\.filters=few: AttributeError: .*members.* \(.*test_explorer\w*\.py:"
    ):
        run_simulation(tmp_path, filters=[("few", few)])


@pytest.mark.parametrize("answer", [True, False, 0, np.bool_(True)])
def test_a_filter_that_answers_otherwise_ends_the_run(tmp_path: Path, answer: object) -> None:
    """A bool reads both ways: it would drop every group, or none, for ever."""
    with pytest.raises(TypeError, match=r"^algorithm\.filters=few: returned .*; write the reason to drop a group, as "):
        run_simulation(tmp_path, filters=[("few", lambda _: answer)])


def test_failures_of_a_kind_are_logged_with_a_count_and_escaped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise ValueError("\x1b[2J")

    def misbehave(task: Task, attempt: Attempt) -> Any:
        return fail() if task.id.index % 2 else None

    _, _, report = run_simulation(tmp_path, misbehave=misbehave)
    assert report["dropped"] == {"ValueError": report["dropped"]["ValueError"]}
    said = [r.message for r in caplog.records if r.message.startswith("ValueError: ")]
    attempts = report["dropped"]["ValueError"] * SPEC.group_size * 3
    assert 100 <= attempts < 1000
    assert [line.partition("[2J")[2] for line in said] == [
        "",
        " (10 so far; the ledger keeps each)",
        " (100 so far; the ledger keeps each)",
    ]
    assert all("\\x1b[2J" in line and "\x1b" not in line for line in said)


def test_bad_row_is_dropped_or_fails_the_run_as_configured(tmp_path: Path) -> None:
    tasksets = {"numbers": Numbers(bad=frozenset({4}))}
    (tmp_path / "skip").mkdir()
    _, _, report = run_simulation(tmp_path / "skip", tasksets=tasksets)
    assert report["balanced"], report["problems"]
    assert report["dropped"] == {"bad_row": 1}
    (tmp_path / "fail").mkdir()
    with pytest.raises(RunFailedError, match=r"numbers.jsonl:5: not a number; .*on_bad_row=skip"):
        run_simulation(tmp_path / "fail", tasksets=tasksets, fail_on_bad_row=True)


def test_dying_engine_is_replaced_and_its_requests_move(tmp_path: Path) -> None:
    class Mortal(ModelledEngine):
        async def generate(self, request: GenerateRequest) -> Any:
            if len(self.served) >= 5:
                raise EngineError("killed by the test")
            return await super().generate(request)

    engines = [Mortal(lambda _: 1.0), ModelledEngine(lambda _: 1.0)]
    _, _, report = run_simulation(tmp_path, engines=engines)
    assert report["balanced"], report["problems"]
    assert report["trained"] == 12
    assert report["faults"]["engine_died"] == 1


def test_explorer_without_trainer_fills_its_credit_and_says_what_it_waits_for(tmp_path: Path) -> None:
    """P12: the wait has a deadline, and names what was waited for."""

    async def main(loop: asyncio.AbstractEventLoop) -> Any:
        simulation = build(tmp_path, loop, wait_timeout=20.0)
        versions.announce(simulation.db, 0, 0, "weights/v0")
        with pytest.raises(TimeoutError, match=r"waited 20 s for: credit: 4 of 4 groups"):
            await simulation.explorer.run()
        assert claims.states(simulation.db) == {"ready": 4}
        assert loop.time() > 20.0

    run_virtual(main)


def test_an_explorer_that_waits_makes_one_transaction_at_each_look(tmp_path: Path) -> None:
    class Counting(Database):
        looks = 0

        def read(self, body: Callable[[Transaction], Any]) -> Any:
            self.looks += 1
            return super().read(body)

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        db = Counting(SqliteFile(tmp_path / "ledger.db"), SPEC, clock=loop.time)
        versions.announce(db, 0, 0, "weights/v0")
        explorer = build(tmp_path, loop, db=db, validates=False).explorer
        exploring = asyncio.ensure_future(explorer.run())
        await asyncio.sleep(100)  # virtual: all that the credit allows is claimed and stored
        assert "credit" in explorer.waiting_for
        before = db.looks
        await asyncio.sleep(10)
        assert db.looks - before == pytest.approx(20, abs=2)  # here it looks twice a second: see conftest.py
        explorer.stop()
        await exploring

    run_virtual(main)


def test_stopped_explorer_hands_its_claims_back(tmp_path: Path) -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> Any:
        simulation = build(tmp_path, loop, latency=lambda _: 1e6, timeout=1e9)
        versions.announce(simulation.db, 0, 0, "weights/v0")
        exploring = asyncio.ensure_future(simulation.explorer.run())
        await asyncio.sleep(10.0)
        assert claims.states(simulation.db) == {"claimed": 4}
        simulation.explorer.stop()
        await exploring
        assert claims.states(simulation.db) == {"open": 4}

    run_virtual(main)


@pytest.mark.slow
def test_thousands_of_trajectories_run_on_one_thread(tmp_path: Path) -> None:
    spec = replace(SPEC, group_size=8, batch_groups=64, alpha=7.0, staleness_bound=7, max_steps=10)
    _, batches, report = run_simulation(tmp_path, spec=spec, latency=lambda r: 5.0 + int(r.sampling.seed) % 50)
    assert report["balanced"], report["problems"]
    assert report["trained"] == 640
    assert all(len(b.groups) == 64 for b in batches)


def test_where_every_claim_is_settled_at_once_the_event_loop_still_turns(tmp_path: Path) -> None:
    """P12: rows that all turn bad during the run cost neither heartbeats nor the will to stop."""

    class Spoiled(Numbers):
        asked = 0
        explorer: Any = None

        def task(self, epoch: int, index: int) -> Task:
            asyncio.get_running_loop().call_soon(self.explorer.stop)
            self.asked += 1
            assert self.asked < 3000, "the explorer never let go of the event loop"
            raise BadRow(f"numbers.jsonl:{index + 1}: not a number")

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        spoiled = Spoiled()
        simulation = build(tmp_path, loop, tasksets={"numbers": spoiled})
        spoiled.explorer = simulation.explorer
        versions.announce(simulation.db, 0, 0, "weights/v0")
        await simulation.explorer.run()
        found = claims.states(simulation.db)
        assert found["dropped"]
        assert set(found) <= {"dropped", "open"}  # one that was asked for last is handed back

    run_virtual(main)


def test_a_ledger_that_refuses_a_heartbeat_does_not_end_the_explorer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, beats = processes.heartbeat, iter(range(10**6))

    def heartbeat(*arguments: Any) -> None:
        if next(beats) == 2:
            raise LedgerError("ledger.db: database or disk is full")
        real(*arguments)

    monkeypatch.setattr(processes, "heartbeat", heartbeat)
    _, batches, report = run_simulation(tmp_path)
    assert len(batches) == SPEC.max_steps
    assert report["balanced"], report["problems"]
    assert next(beats) > 4


def test_waits_for_the_learner_reach_the_trace_in_pieces_and_to_the_end(tmp_path: Path) -> None:
    """At α = 0 a step of 20 s is waited for whole, the last one's 20 s too."""
    waits: list[tuple[float, float]] = []

    class Noting(NullTrace):
        def span(self, track: str, name: str, start: float, end: float, **_: Any) -> None:
            if track == "explorer · waits":
                waits.append((start, end))

    run_simulation(
        tmp_path,
        seconds=20.0,
        spec=replace(SPEC, alpha=0.0, staleness_bound=0, max_steps=3),
        validates=False,
        trace=Noting(),
    )
    assert sum(end - start for start, end in waits) == pytest.approx(3 * 20.0, abs=3.0)
    assert max(end - start for start, end in waits) < 7.0
