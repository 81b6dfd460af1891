"""Validation under a virtual clock: who stands still for it, and what its failures come to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from rljax.ledger import audit, processes, schema, validations, versions
from rljax.ledger.database import Database, RunFailedError
from rljax.ledger.versions import Announced
from rljax.pipeline.simulate.clock import run_virtual
from rljax.rollout import explorer, validation
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.validation import ValidationPlan, validate
from rljax.rollout.workflows.workflow import Attempt
from rljax.tasks.rewards.reward import RewardError
from rljax.tasks.task import Task
from sidecar.protocol import EngineError, GenerateRequest
from tests.modelled_engine import ModelledEngine
from tests.rollout.heard import Heard
from tests.rollout.simulation import SPEC, Numbers, Plain, build, learn, run_simulation

Seen = list[tuple[float, str, int]]


def watch(engine: Any, loop: asyncio.AbstractEventLoop) -> Seen:
    """What an engine is asked for, when: (time, what, tokens or version)."""
    seen: Seen = []
    generate, load = engine.generate, engine.update_weights

    async def watched(request: GenerateRequest) -> Any:
        kind = "val" if "True" in request.id else "train"
        seen.append((loop.time(), f"{kind} starts", request.resumed_tokens))
        done = await generate(request)
        seen.append((loop.time(), f"{kind} {done.finish_reason}", len(done.token_ids)))
        return done

    async def loaded(update: Any) -> None:
        seen.append((loop.time(), "load", update.version))
        await load(update)

    engine.generate, engine.update_weights = watched, loaded
    return seen


def span_of_validation(*seen: Seen) -> tuple[float, float]:
    begin = min(at for events in seen for at, what, _ in events if what == "val starts")
    end = max(at for events in seen for at, what, _ in events if what == "val length")
    assert end > begin
    return begin, end


def test_validation_holds_training_pins_one_version_and_loses_no_token(tmp_path: Path) -> None:
    """P8: while version 2 is measured nothing is loaded and nothing is trained on; afterwards all goes on."""
    seen: list[tuple[float, str, int]] = []

    async def main(loop: asyncio.AbstractEventLoop) -> Any:
        simulation = build(
            tmp_path,
            loop,
            spec=replace(SPEC, alpha=3.0, staleness_bound=4),
            latency=lambda r: 3.0 + int(r.sampling.seed) % 9,
        )
        engine = simulation.engine
        generate, load = engine.generate, engine.update_weights

        async def watched(request: GenerateRequest) -> Any:
            kind = "val" if "True" in request.id else "train"
            seen.append((loop.time(), f"{kind} starts", engine._version))
            done = await generate(request)
            seen.append((loop.time(), f"{kind} {done.finish_reason}", len(done.token_ids)))
            if kind == "val":
                assert set(done.versions) == {2}
            return done

        async def loaded(update: Any) -> None:
            seen.append((loop.time(), "load", update.version))
            await load(update)

        engine.generate, engine.update_weights = watched, loaded
        exploring = asyncio.ensure_future(simulation.explorer.run())
        batches = await learn(simulation.db, 1.0, frozenset({2}))
        await exploring
        return batches, audit.audit(simulation.db), validations.results(simulation.db)

    batches, report, results = run_virtual(main)
    begin = min(at for at, what, _ in seen if what == "val starts")
    end = max(at for at, what, _ in seen if what == "val length")
    assert end > begin
    during = {what for at, what, _ in seen if begin < at < end}
    assert during <= {"val starts", "val length"}, during
    assert any(what == "train abort" and kept > 0 for _, what, kept in seen)
    assert report["balanced"], report["problems"]
    assert [version for version, _ in results] == [2]
    assert results[0][1]["val/held/tasks"] == 8
    resumed = [t for b in batches for g in b.groups for t in g.trajectories]
    assert all(t.loss_mask.sum() == 4 for t in resumed)


def test_every_explorer_stands_still_while_one_validates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: the other explorers abort, keep their tokens, load nothing, and go on afterwards."""
    monkeypatch.setattr(explorer, "CLAIM_LIMIT", 1)  # so that each has its share of the groups

    async def main(loop: asyncio.AbstractEventLoop) -> Any:
        spec = replace(SPEC, alpha=3.0, staleness_bound=4, max_steps=10)
        latency = lambda r: 3.0 + int(r.sampling.seed) % 9  # noqa: E731
        one = build(tmp_path, loop, name="one", spec=spec, latency=latency)
        two = build(tmp_path, loop, name="two", spec=spec, latency=latency, db=one.db)
        seen = [watch(simulation.engine, loop) for simulation in (one, two)]
        exploring = [asyncio.ensure_future(simulation.explorer.run()) for simulation in (one, two)]
        await learn(one.db, 1.0, frozenset({2}))
        await asyncio.gather(*exploring)
        return seen, audit.audit(one.db)

    seen, report = run_virtual(main)
    begin, end = span_of_validation(*seen)
    (other,) = [events for events in seen if not any(what == "val starts" for _, what, _ in events)]
    assert {what for at, what, _ in other if begin < at < end} <= {"train abort"}
    assert any(what == "train abort" and kept > 0 for at, what, kept in other if at < end)
    assert any(what == "train starts" and resumed > 0 for at, what, resumed in other if at >= end)
    assert any(what == "load" for at, what, _ in other if at >= end)
    assert report["balanced"], report["problems"]
    assert report["trained"] == 20


def held_up(tmp_path: Path, then: Callable[[Any], Any], **options: Any) -> Any:
    """An explorer with groups in flight, and another one that begins to validate at 10 s and says nothing more."""

    async def main(loop: asyncio.AbstractEventLoop) -> Any:
        simulation = build(tmp_path, loop, latency=lambda r: 4.0 if "True" in r.id else 1e6, timeout=1e9, **options)
        processes.register(simulation.db, "silent", "explorer")
        versions.announce(simulation.db, 0, 0, "weights/v0")
        exploring = asyncio.ensure_future(simulation.explorer.run())
        await asyncio.sleep(10.0)
        validations.request(simulation.db, 0, 0)
        assert validations.claim_validation(simulation.db, "silent") is not None
        try:
            async with asyncio.timeout(1000.0):
                return await then((simulation, exploring, loop))
        finally:
            simulation.explorer.stop()
            await asyncio.wait({exploring})

    return run_virtual(main)


def test_validation_whose_explorer_dies_is_taken_over(tmp_path: Path) -> None:
    async def then(place: Any) -> None:
        simulation, _, loop = place
        await asyncio.sleep(40.0)
        assert validations.running(simulation.db) == (0, "silent")
        while not validations.results(simulation.db):
            await asyncio.sleep(1.0)
            assert loop.time() < 100.0, "nobody took it over"
        assert loop.time() > SPEC.claim_timeout
        await asyncio.sleep(1.0)
        assert simulation.engine._running, "training goes on"

    held_up(tmp_path, then)


def test_standing_still_has_a_deadline_and_names_who_validates(tmp_path: Path) -> None:
    async def then(place: Any) -> None:
        with pytest.raises(TimeoutError, match=r"waited 20 s for: the validation of version 0 by silent"):
            await place[1]
        assert 30.0 < place[2].time() < 31.0

    held_up(tmp_path, then, wait_timeout=20.0, spec=replace(SPEC, claim_timeout=1e6))


def measure(tmp_path: Path, misbehave: Callable[[Task, Attempt], Any], held: Numbers) -> Any:
    """Validates with a misbehaving workflow; returns (metrics or what it raised, failures heard, attempts left)."""

    async def main(_: asyncio.AbstractEventLoop) -> Any:
        engine, heard = ModelledEngine(lambda _: 5.0), []

        async def start(_: int) -> Any:
            return engine

        async def hear(error: Exception, where: str) -> None:
            heard.append((type(error).__name__, where))

        pool = EnginePool(start, 1, tmp_path, Heard())
        await pool.start()
        await pool.load(Announced(3, 1, "weights/v3"))
        try:
            plan = ValidationPlan(Plain(misbehave), {"held": held}, None, 1, 20.0)
            found: Any = await validate(pool, plan, seed=7, on_failure=hear)
        except EngineError as error:
            found = error
        left = len(engine._running)
        await pool.close()
        return found, heard, left

    return run_virtual(main)


async def fail(error: Exception) -> None:
    raise error


def test_a_failing_reward_scores_nothing_and_is_heard_of_once(tmp_path: Path) -> None:
    def misbehave(task: Task, attempt: Attempt) -> Any:
        if task.id.index == 5:
            return asyncio.sleep(1e3)
        return fail(RewardError("no number")) if task.id.index in (2, 4) else None

    found, heard, _ = measure(tmp_path, misbehave, Numbers("held", 8))
    assert (found["val/held/failed"], found["val/held/tasks"], found["val/held/bad_rows"]) == (3, 8, 0)
    assert found["val/held/tokens"] == pytest.approx(4 * 5 / 8)
    assert heard == [
        ("RewardError", "validation of version 3, held task 2"),
        ("TimeoutError", "validation of version 3, held task 5"),
    ]


def test_a_dead_engine_is_no_score(tmp_path: Path) -> None:
    misbehave = lambda task, attempt: fail(EngineError("died 4 times")) if task.id.index == 2 else None  # noqa: E731
    found, heard, left = measure(tmp_path, misbehave, Numbers("held", 8))
    assert isinstance(found, EngineError)
    assert (heard, left) == ([], 0), "the other attempts have ended with it"


def test_bad_rows_are_left_out_of_the_means(tmp_path: Path) -> None:
    held = Numbers("held", 8, bad=frozenset({1, 6}))
    found, heard, _ = measure(tmp_path, lambda task, attempt: None, held)
    assert (found["val/held/tasks"], found["val/held/bad_rows"], found["val/held/failed"]) == (6, 2, 0)
    assert found["val/held/tokens"] == 4.0
    assert heard == [("BadRow", "validation of version 3, held task 1")]
    nothing, _, _ = measure(tmp_path, lambda task, attempt: None, Numbers("held", 1, bad=frozenset({0})))
    assert nothing["val/held/score"] != nothing["val/held/score"], "no task was measured"


def test_where_every_attempt_fails_there_is_no_score(tmp_path: Path) -> None:
    found, heard, _ = measure(tmp_path, lambda task, attempt: fail(RewardError("no number")), Numbers("held", 3))
    assert found["val/held/score"] != found["val/held/score"], "a silent 0"
    assert (found["val/held/failed"], found["val/held/tasks"]) == (3, 3)
    assert len(heard) == 1


def events_of(db: Database, kind: str) -> list[str]:
    e = schema.events.c
    return [row.message for row in db.read(lambda tx: tx.execute(select(e.message).where(e.kind == kind)).all())]


def test_bad_validation_row_is_noted_or_fails_the_run_as_configured(tmp_path: Path) -> None:
    held = Numbers("held", 8, bad=frozenset({1, 4}))
    (tmp_path / "skip").mkdir()
    simulation, _, report = run_simulation(tmp_path / "skip", validate=frozenset({1, 3}), held=held)
    assert report["balanced"], report["problems"]
    assert events_of(simulation.db, "bad_row") == ["numbers.jsonl:2: not a number"] * 2
    (tmp_path / "fail").mkdir()
    with pytest.raises(RunFailedError, match=r"numbers.jsonl:2: not a number; .*on_bad_row=skip"):
        run_simulation(tmp_path / "fail", validate=frozenset({1}), held=held, fail_on_bad_row=True)


def test_sets_are_measured_side_by_side_and_each_for_itself(tmp_path: Path) -> None:
    """Three sets take the time of the slowest, and come to what each comes to alone; one bound holds for all."""

    async def main(loop: asyncio.AbstractEventLoop) -> Any:
        engine = ModelledEngine(lambda r: 5.0 + int(r.sampling.seed) % 7)

        async def start(_: int) -> Any:
            return engine

        pool = EnginePool(start, 1, tmp_path, Heard())
        await pool.start()
        await pool.load(Announced(3, 1, "weights/v3"))
        sets = {name: Numbers(name, size) for name, size in (("one", 8), ("two", 300), ("three", 300))}

        async def no_failure(error: Exception, where: str) -> None:
            raise error

        async def measured(*names: str) -> tuple[dict[str, float], float]:
            begin = loop.time()
            chosen = {name: sets[name] for name in names}
            plan = ValidationPlan(Plain(), chosen, None, 1, 1e3)
            found = await validate(pool, plan, seed=7, on_failure=no_failure)
            return found, loop.time() - begin

        together, seconds = await measured("one", "two")
        alone = [await measured(name) for name in ("one", "two")]
        assert together == alone[0][0] | alone[1][0]
        assert seconds == max(took for _, took in alone)
        under_way: list[int] = []
        generate = engine.generate

        async def counted(request: GenerateRequest) -> Any:
            under_way.append(len(engine._running))
            return await generate(request)

        engine.generate = counted  # type: ignore[method-assign]
        _, seconds = await measured("one", "two", "three")
        assert max(under_way) + 1 == validation.MAX_IN_FLIGHT
        assert seconds < 2 * 11.0 + 1.0
        await pool.close()

    run_virtual(main)
