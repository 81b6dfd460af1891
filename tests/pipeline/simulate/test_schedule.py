"""Simulated runs against arithmetic, and against themselves with looks and heartbeats of real runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljax.ledger.run_spec import RunSpec
from rljax.pipeline.simulate import schedule as module
from rljax.pipeline.simulate.schedule import Outcome, Schedule, simulate
from rljax.pipeline.simulate.workload import NOTHING, Attempts, constant, lognormal, normal


def spec(alpha: float = 0.0, interval: int = 1, steps: int = 6, slack: int = 0, **keys: Any) -> RunSpec:
    return RunSpec(
        seed=1,
        group_size=4,
        batch_groups=2,
        alpha=alpha,
        staleness_bound=int(np.ceil(alpha)) + interval - 1 + slack,
        sync_interval=interval,
        max_steps=steps,
        total_epochs=None,
        claim_timeout=60.0,
        **keys,
    )


PLAIN = Schedule(
    spec(), Attempts(constant(1), constant(10)), lambda running: 2.0 * running, lambda _: 3.0, publish_seconds=0.5
)
"""8 attempts of 10 tokens at 2 tokens a second: 5 s; 3 to train, 0.5 to publish."""


def seconds_a_step(outcome: Outcome) -> list[float]:
    ends = [0.0, *(step.ended for step in outcome.steps)]
    return np.diff(ends).tolist()


def test_a_synchronous_step_is_generation_and_training_and_publishing() -> None:
    outcome = simulate(PLAIN)
    assert seconds_a_step(outcome) == pytest.approx([5.0 + 3.0 + 0.5] * 6)
    assert outcome.busy_seconds == pytest.approx([5.0, 10.0, 15.0, 20.0, 25.0, 30.0])
    assert outcome.audit["max_staleness"] == 0


def test_generating_ahead_costs_the_slower_half() -> None:
    """All 16 requests that α = 1 allows run at once at the same speed each: 2 batches in 5 s, 3.5 s for each."""
    outcome = simulate(replace(PLAIN, spec=spec(alpha=1.0, steps=9)))
    assert max(seconds_a_step(outcome)[2:]) <= 5.0
    assert outcome.audit["max_staleness"] <= 1
    slow = replace(PLAIN, spec=spec(alpha=1.0, steps=9), slots=8, rate=lambda running: 16.0)
    assert seconds_a_step(simulate(slow))[2:] == pytest.approx([5.0] * 7)  # 80 tokens at 16 a second


def test_a_version_that_is_written_beside_the_next_step_costs_the_learner_nothing() -> None:
    """10 s to generate, 10 to train, 2 to publish. By hand: what a version allows is claimed at once, is there 10 s
    later, and is trained in the step after the next. At S = 1 two steps take 10 + 10 + 2 s, at S = 2 one takes what
    training does; a learner that publishes itself takes 12.
    """
    half = replace(PLAIN, rate=lambda running: float(running), train_seconds=lambda _: 10.0)
    for slack, beside in ((0, 11.0), (1, 10.0)):
        ahead = spec(alpha=1.0 + slack, steps=12)
        itself = simulate(replace(half, spec=ahead, publish_seconds=2.0))
        outcome = simulate(replace(half, spec=ahead, publish_seconds=0.0, announce_seconds=2.0))
        assert np.mean(seconds_a_step(itself)[3:]) == pytest.approx(12.0)
        assert np.mean(seconds_a_step(outcome)[2:10]) == pytest.approx(beside)
        assert outcome.audit["balanced"]
        assert outcome.audit["max_staleness"] <= ahead.staleness_bound


def test_a_load_halts_the_engine_and_what_is_between_steps_the_learner() -> None:
    outcome = simulate(replace(PLAIN, load_seconds=1.0, between_seconds=2.0))
    # what is between the steps runs beside the load and the next batch
    assert seconds_a_step(outcome) == pytest.approx([1.0 + 5.0 + 3.0 + 0.5 + 2.0] + [1.0 + 5.0 + 3.0 + 0.5] * 5)


def test_environments_take_their_time_between_turns() -> None:
    turns = replace(PLAIN, attempts=Attempts(constant(3), constant(10), constant(4.0), constant(1.0)))
    assert seconds_a_step(simulate(turns)) == pytest.approx([1.0 + 3 * (5.0 + 4.0) + 3.0 + 0.5] * 6)


def test_the_explorers_event_loop_serves_one_attempt_after_the_other() -> None:
    """The eighth request goes out after 8 halves of 0.1 s, is answered 5 s later, and its reply is the last."""
    busy = replace(PLAIN, attempts=replace(PLAIN.attempts, explorer_seconds=0.1))
    assert seconds_a_step(simulate(busy)) == pytest.approx([0.4 + 5.0 + 0.05 + 3.0 + 0.5] * 6)


def test_the_ledger_serves_one_group_after_the_other() -> None:
    """Both groups are claimed in one call, and end together."""
    slow = replace(PLAIN, ledger_seconds=0.4)
    assert seconds_a_step(simulate(slow)) == pytest.approx([2 * 0.2 + 5.0 + 2 * 0.2 + 3.0 + 0.5] * 6)


def test_a_prompt_takes_the_time_of_some_tokens() -> None:
    assert seconds_a_step(simulate(replace(PLAIN, prompt_cost=4.0))) == pytest.approx([7.0 + 3.0 + 0.5] * 6)


def test_groups_that_a_filter_rejects_are_made_again() -> None:
    outcome = simulate(replace(PLAIN, filtered=0.5))
    assert sum(outcome.audit["filtered"].values()) == pytest.approx(12, abs=2)
    assert outcome.audit["trained"] == 12


def test_a_validation_holds_training_back() -> None:
    outcome = simulate(replace(PLAIN, held_out=8, validate=frozenset({3})))
    assert seconds_a_step(outcome)[3] == pytest.approx(5.0 + 5.0 + 3.0 + 0.5)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    alpha=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    interval=st.integers(1, 3),
    slack=st.integers(0, 2),
    redundancy=st.integers(0, 1),
    waits=st.booleans(),
    publishing=st.floats(0.0, 3.0),
)
def test_without_looks_and_heartbeats_a_run_goes_as_with_them(
    alpha: float, interval: int, slack: int, redundancy: int, waits: bool, publishing: float
) -> None:
    """What makes it cheap changes no step by more than the looks are apart."""
    attempts = Attempts(constant(2), lognormal(10.0, 8.0), normal(5.0, 3.0) if waits else NOTHING)
    run = replace(
        PLAIN,
        spec=spec(alpha, interval, slack=slack),
        attempts=attempts,
        redundancy=redundancy,
        capacity=20,
        publish_seconds=publishing,
        load_seconds=0.25,
    )
    cheap = simulate(run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LOOK_SECONDS", 1.0)
        dear = simulate(run)
    assert [step.batch.group_ids for step in cheap.steps] == [step.batch.group_ids for step in dear.steps]
    assert seconds_a_step(cheap) == pytest.approx(seconds_a_step(dear), abs=1e-6)


def test_the_same_run_goes_the_same_way_twice() -> None:
    attempts = Attempts(constant(2), lognormal(10.0, 8.0), normal(5.0, 3.0))
    run = replace(PLAIN, attempts=attempts, spec=spec(alpha=1.0))
    assert seconds_a_step(simulate(run)) == seconds_a_step(simulate(run))
