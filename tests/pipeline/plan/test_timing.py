"""Times that a plan says: of figures that are given or a run's, against arithmetic by hand."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from rljax.config.load import load_config
from rljax.config.schema import (
    Config,
    LearnerConfig,
    MeshConfig,
    ModelConfig,
    PlanConfig,
    SidecarConfig,
)
from rljax.config.validate import ConfigError
from rljax.pipeline.plan.figures import between, rate_of, uneven, with_given
from rljax.pipeline.plan.placement import Placement
from rljax.pipeline.plan.splits import Split, Timing, neighbours, one_more_engine, schedule_of, timed
from rljax.pipeline.plan.timing import _recommended, describe_time, run_before
from tests.pipeline.plan.runs import GIVEN, config_with, of, write_run


def test_an_engine_is_as_fast_as_it_was_measured_and_its_steps_between_are_on_a_line() -> None:
    rate = rate_of(((1.0, 40.0), (16.0, 320.0)))
    assert rate(1) == 40.0
    assert rate(16) == 320.0
    assert rate(32) == 320.0
    assert rate(6) == pytest.approx(6 / (0.025 + (0.05 - 0.025) * 5 / 15))
    assert rate_of(((64.0, 1280.0),), tokens=2.0)(16) == pytest.approx(160.0)  # steps of 0.05 s, two tokens a unit


def test_in_turns_a_step_is_both_halves_and_ahead_it_is_the_slower() -> None:
    turns = config_with()
    timing = timed(Split((), turns), of(turns))
    assert timing.step == pytest.approx(4.0 + 4.0 + 0.5)
    assert (timing.training, timing.generating) == (pytest.approx(4.0), pytest.approx(4.0))
    assert timing.fraction == pytest.approx(4.0 / 8.5)
    assert (timing.waiting, timing.idle) == (pytest.approx(4.5 / 8.5), pytest.approx(4.5 / 8.5))
    assert (timing.staleness, timing.most) == (0.0, 0)
    ahead = config_with(async_generation_ratio=1.0)
    timing = timed(Split((), ahead), of(ahead))
    assert 4.0 <= timing.step <= 4.5 + 1e-6
    assert timing.most == 1


def test_a_learner_of_half_the_devices_takes_twice_the_time() -> None:
    config = config_with()
    of_two = dataclasses.replace(of(config), learner_devices=2)
    assert timed(Split((), config), of_two).training == pytest.approx(8.0)


def test_long_replies_are_counted_in_units_and_take_the_same_time() -> None:
    model = ModelConfig(path="tiny", max_prompt_tokens=200, max_response_tokens=800)
    plan = dataclasses.replace(GIVEN, learner_tokens_per_second=2000.0, engine_tokens_per_second="1600")
    config = config_with(plan, model=model, learner=LearnerConfig(max_tokens_per_row=1001))
    assert timed(Split((), config), of(config)).step == pytest.approx(8.5)


def test_what_nobody_gives_is_the_longest_and_is_said() -> None:
    figures = of(config_with())
    rng = random.Random(0)
    assert (figures.prompt_tokens, figures.replies(rng), figures.turns(rng)) == (20.0, 80.0, 1.0)
    said = ", ".join(figures.taken)
    assert "replies of 80 tokens (plan.response_tokens)" in said
    assert "plan.environment_seconds" in said
    assert "load_seconds" not in said


def test_given_figures_go_before_those_of_a_run() -> None:
    plan = dataclasses.replace(GIVEN, response_tokens=10.0, turns=2.5, environment_seconds=3.0, publish_seconds=7.0)
    figures = of(config_with(plan))
    assert figures.reply_tokens == 10.0
    assert {between(2.5)(random.Random(seed)) for seed in range(20)} == {2, 3}
    assert figures.environment_seconds(random.Random(0)) == 3.0
    other = with_given(config_with(PlanConfig(from_run="x", load_seconds=9.0)), figures)
    assert dataclasses.replace(other, load_seconds=figures.load_seconds) == figures
    assert other.load_seconds == 9.0


def changes(config: Config, *, apart: bool = False) -> set[str]:
    return {" ".join(split.changes) for split in neighbours(config, apart=apart)}


def test_neighbours_change_one_thing_and_are_what_a_run_would_take() -> None:
    assert changes(config_with()) == {
        "async_generation_ratio=1",
        "max_staleness=1",
        "sync_interval=2",
        "sidecar.max_concurrency=4",
        "sidecar.max_concurrency=16",
        "rollout.train_env_manager.group_size_redundancy=1",
    }
    assert {"async_generation_ratio=1", "async_generation_ratio=3", "sync_interval=1", "sync_interval=4"} <= changes(
        config_with(async_generation_ratio=2.0, sync_interval=2)
    )


def test_devices_go_from_the_learner_to_engines_and_back() -> None:
    learner = LearnerConfig(max_tokens_per_row=101, mesh=MeshConfig(fsdp=4), rows_per_microbatch=8)
    config = config_with(learner=learner, sidecar=SidecarConfig(engine="vllm", num_engines=5, max_concurrency=8))
    found = {" ".join(split.changes): split for split in neighbours(config, apart=True)}
    moved = {name: split for name, split in found.items() if "mesh" in name}
    assert {name: split.config.learner.mesh.size for name, split in moved.items()} == {
        "learner.mesh.fsdp=2 sidecar.num_engines=7": 2,
        "learner.mesh.fsdp=8 sidecar.num_engines=1": 8,
    }
    more = one_more_engine(config)
    assert more is not None
    assert (more.changes, more.more) == (("sidecar.num_engines=6",), True)
    alone = config_with(sidecar=SidecarConfig(engine="vllm", num_engines=7, max_concurrency=8))
    assert [[change for change in changes(alone, apart=apart) if "mesh" in change] for apart in (True, False)] == [
        ["learner.mesh.fsdp=2 sidecar.num_engines=6"],
        [],
    ]
    named = SidecarConfig(engine="vllm", devices="gpu:1", max_concurrency=8)
    assert one_more_engine(config_with(sidecar=named)) is None, "where one GPU is named"


def test_the_alpha_of_the_run_is_one_to_go_back_to() -> None:
    alphas = {f"async_generation_ratio={value}" for value in range(10)}
    for before, expected in ((None, {3, 5}), (1.0, {1, 3, 5}), (3.0, {3, 5}), (4.0, {3, 5})):
        ran = None if before is None else config_with(async_generation_ratio=before)
        splits = neighbours(config_with(async_generation_ratio=4.0), False, ran)
        found = [" ".join(split.changes) for split in splits]
        assert sorted(alphas.intersection(found)) == sorted(f"async_generation_ratio={value}" for value in expected)
        assert len(found) == len(set(found))


def test_of_those_as_fast_the_freshest_is_recommended_and_nothing_where_little_is_won() -> None:
    def timing(step: float, staleness: float) -> Timing:
        return Timing(step, 1.0, 1.0, 0.0, staleness, 1)

    config = config_with()
    present, fresh, stale = (Split((name,) if name else (), config) for name in ("", "a=1", "b=2"))
    found = [(present, timing(10.0, 0.0)), (stale, timing(5.0, 3.0)), (fresh, timing(5.05, 1.0))]
    said = _recommended(found)
    assert said.startswith("recommended: --config.a=1: 5.05 s a step instead of 10, ")
    assert "staleness 1.00 instead of 0.00" in said
    assert "as configured" in _recommended([(present, timing(10.0, 0.0)), (stale, timing(9.9, 1.0))])
    assert ": 10 s a step, as now, staleness 1.00" in _recommended(
        [(present, timing(10.0, 3.0)), (fresh, timing(10.0, 1.0))]
    )
    lossy = [(dataclasses.replace(stale, drops=True), timing(2.0, 0.0)), (fresh, timing(5.05, 1.0))]
    assert "--config.a=1: 5.05 s" in _recommended([(present, timing(10.0, 0.0)), *lossy]), "it drops what is long"
    assert "--config.a=1: 10.1 s" in _recommended([(present, timing(10.0, 3.0)), (fresh, timing(10.1, 1.0))])


def test_what_a_run_was_measured_by_is_in_its_simulation() -> None:
    """8 replies of 80 tokens and prompts of as much at twice the speed: the same 8.5 s. Then the event loop's, with the
    first four waiting for each other, the ledger's and a version's that is read beside sampling.
    """
    config = config_with()
    plain = of(config)
    twice = tuple((count, 2 * speed) for count, speed in plain.engine_speeds)
    costly = dataclasses.replace(plain, engine_speeds=twice, prompt_cost=80.0)
    assert timed(Split((), config), costly).step == pytest.approx(8.5)
    shorter = with_given(config_with(PlanConfig(from_run="x", response_tokens=40.0)), costly)
    # 8 · (40 + 80) at 320 a second, and 8 · (40 + 20) trained at 200
    assert timed(Split((), config), shorter).step == pytest.approx(3.0 + 2.4 + 0.5)
    given = with_given(config, costly)
    assert (given.prompt_cost, given.engine_speeds) == (0.0, plain.engine_speeds)
    read = dataclasses.replace(plain, read_seconds=1.0)
    assert timed(Split((), config), read).step == pytest.approx(9.5)
    slow = dataclasses.replace(plain, ledger_seconds=0.2)
    assert timed(Split((), config), slow).step == pytest.approx(8.5 + 2 * 0.1 + 2 * 0.1)
    busy = dataclasses.replace(plain, explorer_seconds=0.02)
    assert 8.5 + 0.01 < timed(Split((), config), busy).step < 8.5 + 8 * 0.02


def test_a_run_that_waits_for_its_engines_is_one_that_more_engines_help() -> None:
    """Replies take 16 s where the learner takes 4 of a step: an engine more halves what it waits for."""
    plan = dataclasses.replace(GIVEN, engine_tokens_per_second="40")
    config = config_with(plan, async_generation_ratio=1.0)
    more = one_more_engine(config)
    assert more is not None
    assert timed(more, of(config)).step < 0.7 * timed(Split((), config), of(config)).step


@pytest.mark.parametrize("interval", [1, 2, 3, 6])
def test_other_intervals_have_engines_that_are_as_fast_on_average(interval: int) -> None:
    config = config_with(async_generation_ratio=1.0, sync_interval=interval)
    rough = tuple((1.0, 0.5 + place / 50) for place in range(51))
    schedule = schedule_of(Split((), config), dataclasses.replace(of(config), unevenness=rough), 0, 12)
    paces = [schedule.pace(version) for version in range(0, 12, interval)]
    assert sum(1 / pace for pace in paces) / len(paces) == pytest.approx(1.0)


def test_a_plan_says_what_it_needs_what_it_found_and_what_to_take(tmp_path: Path) -> None:
    (line,) = describe_time(config_with(PlanConfig()), None, None)
    assert line.startswith("time     unknown: write plan.from_run=RUN")
    said = list(describe_time(config_with(), None, None))
    assert said[0].startswith(
        "time     taken, since nobody says otherwise: replies of 80 tokens (plan.response_tokens)"
    )
    (present,) = [line for line in said if line.endswith("as configured")]
    assert present.split()[:5] == ["8.5", "0.47", "0.00", "(0)", "53%"]
    assert said[-2].startswith("one more engine would buy ")
    assert said[-1].startswith("recommended: --config.async_generation_ratio=1: 4")
    write_run(tmp_path / "run", config_with(async_generation_ratio=1.0))
    plan = PlanConfig(from_run=str(tmp_path / "run"), steps=4)
    config = config_with(plan, async_generation_ratio=1.0)
    said = list(describe_time(config, run_before(config), None))
    assert said[0].startswith("measured ")
    assert said[1].startswith("predicted ")
    assert "in fact 10 (" in said[1]


def test_a_plan_says_where_it_is_not_to_be_believed(tmp_path: Path) -> None:
    """A reply has 80 tokens at most."""
    write_run(tmp_path / "run", config_with(async_generation_ratio=1.0))
    plan = PlanConfig(from_run=str(tmp_path / "run"), steps=2, target="h100:2", response_tokens=500.0)
    beside, apart = Placement((("cpu:0",),), "cpu", True, False), Placement((("gpu:1",),), "gpu", False, True)
    contention, config = "learner and engines share processors: ", config_with(plan, async_generation_ratio=1.0)
    run = run_before(config)
    said = list(describe_time(config, run, beside))
    assert said[0].startswith("time     by the devices of plan.from_run=")
    assert "time     replies are cut at 80 tokens: plan.response_tokens=500 is more" in said
    assert said[-2].startswith(contention)
    assert said[-1] == "recommended: nothing by 2 steps; write plan.steps=4 or more"
    assert not any(line.startswith(contention) for line in describe_time(config, run, apart))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"plan.engine_tokens_per_second": "fast"}, "plan.engine_tokens_per_second='fast': write tokens a second"),
        ({"plan.engine_tokens_per_second": "64:1400,16:500"}, "counts must rise"),
        ({"plan.engine_tokens_per_second": "0"}, "speeds be above 0"),
        ({"plan.learner_tokens_per_second": 100.0}, "plan.engine_tokens_per_second is missing"),
        ({"plan.load_seconds": 2.0}, "plan.load_seconds: nothing reads it without"),
        ({"plan.response_tokens_std": 2.0}, "plan.response_tokens_std: nothing reads it without plan.response_tokens"),
        ({"plan.learner_tokens_per_second": 0.0}, "plan.learner_tokens_per_second"),
        ({"plan.from": "runs/x"}, "plan.from"),
    ],
)
def test_figures_that_say_nothing_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config("quickstart", {"mode": "plan", **keys})


def test_a_few_steps_stand_for_all_that_were_uneven() -> None:
    pairs = tuple((0.5 + place / 100, 1.5 - place / 100) for place in range(101))
    found = uneven(pairs, 10, random.Random(0))
    assert [sum(column) / 10 for column in zip(*found, strict=True)] == pytest.approx([1.0, 1.0])
    assert sorted(found) != found
    assert {round(a + b, 6) for a, b in found} == {2.0}, "those of one step stay together"
    assert (min(found)[0], max(found)[0]) == pytest.approx((0.55, 1.45), abs=0.011)
    assert uneven(((1.0, 1.0),), 3, random.Random(0)) == [(1.0, 1.0)] * 3


def test_where_steps_are_uneven_the_halves_wait_for_each_other() -> None:
    config = config_with(async_generation_ratio=1.0)
    even = timed(Split((), config), of(config))
    rough = dataclasses.replace(of(config), unevenness=((0.4, 1.6), (1.6, 0.4), (0.5, 0.5), (1.5, 1.5)))
    timing = timed(Split((), config), rough)
    assert timing.training == pytest.approx(even.training)
    assert timing.step > even.step + 0.2
