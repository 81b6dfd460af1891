"""Times that a plan says: of figures that are given or a run's, against arithmetic by hand."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest

from rljax.config.load import load_config, publishable
from rljax.config.schema import (
    Config,
    LearnerConfig,
    MeshConfig,
    ModelConfig,
    PlanConfig,
    SidecarConfig,
    TasksConfig,
    TasksetConfig,
)
from rljax.config.validate import ConfigError
from rljax.observe.trace import Trace, part_path
from rljax.pipeline.plan.figures import Figures, between, given_figures, rate_of, uneven, with_given
from rljax.pipeline.plan.measured import Measured, measured
from rljax.pipeline.plan.splits import Split, Timing, neighbours, one_more_engine, schedule_of, settling, timed
from rljax.pipeline.plan.timing import _recommended, describe_time


def config_with(plan: PlanConfig | None = None, **keys: Any) -> Config:
    values: dict[str, Any] = {
        "rollout_batch_size": 8,
        "group_size": 4,
        "async_generation_ratio": 0.0,
        "model": ModelConfig(path="tiny", max_prompt_tokens=20, max_response_tokens=80),
        "sidecar": SidecarConfig(max_concurrency=8),
        "learner": LearnerConfig(max_tokens_per_row=101),
        "tasks": TasksConfig(train={"sums": TasksetConfig(source="add_numbers", rewards=("digits",))}),
        "plan": plan or GIVEN,
    }
    return Config(**values | keys)


GIVEN = PlanConfig(learner_tokens_per_second=200.0, engine_tokens_per_second="160", load_seconds=0.5, steps=4)
"""8 replies of 80 tokens at 160 a second: 4 s. They and 8 prompts of 20 are trained at 200 a second: 4 s."""


def of(config: Config) -> Figures:
    figures = given_figures(config)
    assert figures is not None
    return figures


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


def changes(config: Config) -> set[str]:
    return {" ".join(split.changes) for split in neighbours(config)}


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
    moved = {" ".join(split.changes): split for split in neighbours(config) if "mesh" in " ".join(split.changes)}
    assert {name: split.config.learner.mesh.size for name, split in moved.items()} == {
        "learner.mesh.fsdp=2 sidecar.num_engines=7": 2,
        "learner.mesh.fsdp=8 sidecar.num_engines=1": 8,
    }
    more = one_more_engine(config)
    assert more is not None
    assert (more.changes, more.more) == (("sidecar.num_engines=6",), True)
    named = SidecarConfig(engine="vllm", devices="gpu:1", max_concurrency=8)
    assert one_more_engine(config_with(sidecar=named)) is None, "where one GPU is named"


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
    assert "--config.a=1: 10.1 s" in _recommended([(present, timing(10.0, 3.0)), (fresh, timing(10.1, 1.0))])


def write_run(root: Path, config: Config, steps: int = 16, *, trace: bool = True) -> None:
    """A run of steps of 10 s: 4 to train 800 tokens, 1 to publish, 2 to wait, 3 for else; 640 of the tokens sampled in
    5 s on one engine, which stands still for 1 s; behind each reply a second with no engine.
    """
    root.mkdir()
    (root / "config.json").write_text(json.dumps(publishable(config)))
    rows, begin = [], 1e9
    for step in range(1, steps + 1):
        row = {"step": step, "timestamp": begin + 10.0 * step, "time/step": 10.0, "time/train": 4.0}
        row |= {
            "time/publish": 1.0,
            "publish/seconds": 3.0,
            "time/wait": 2.0,
            "time/engine_busy": 5.0,
            "tokens/all": 800.0,
        }
        row |= {"tokens/sampled": 640.0, "staleness/mean": 0.5, "staleness/max": 1.0, "response/mean_tokens": 80.0}
        rows.append(row | {"compile/programs": float(step == steps)})
    rows[-2] |= {"time/step": 100.0}  # an engine compiles
    (root / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if not trace:
        return
    written = Trace(part_path(root, "learner"), 10_000, flush_seconds=1e6)
    for step in range(steps):
        since = begin + 10.0 * step
        written.span("explorer · versions", f"load version {step}", since, since + 1.0)
        written.span("learner", "wait for the version before", since + 8.0, since + 8.25)
        written.span("learner", "wait for the version before a checkpoint", since + 9.0, since + 9.5)  # not to publish
        for group, (asked, count) in enumerate(((since, 4), (since + 2.5, 4))):
            end = since + 6.0 + group
            for member in range(count):  # more than a tenth apart, or they would be made one
                track, name = "explorer engine 0 · requests", f"sums/{step}/{group}/{member}"
                written.in_flight(track, name, asked, end, tokens=80)
                written.in_flight("explorer · attempts", name, asked, end + 1.0, reward=1.0, tokens=80)
    written.close()


def test_the_figures_of_a_run_are_those_of_its_metrics_and_its_trace(tmp_path: Path) -> None:
    config = config_with(async_generation_ratio=1.0)
    write_run(tmp_path / "run", config)
    found = measured(str(tmp_path / "run"))
    assert isinstance(found, Measured)
    assert found.steps == 16 - settling(config)
    assert found.counted == found.steps - 2  # one compiles, one is odd
    figures = found.figures
    assert figures.learner_speed == pytest.approx(200.0)
    assert (figures.prompt_tokens, figures.reply_tokens) == (20.0, 80.0)
    assert (figures.publish_seconds, figures.announce_seconds) == pytest.approx((0.75, 2.25))
    assert (figures.load_seconds, figures.between_seconds) == (1.0, 3.0)
    assert figures.environment_seconds(random.Random(0)) == pytest.approx(1.0)
    assert figures.turns(random.Random(0)) == 1
    # of 10 s of a step: 1 loads; 4 run from 1 to 2.5 and 6 to 7, 8 between; 4 · 80 tokens in 5 s, and in 4.5
    assert figures.engine_speeds[0] == (pytest.approx(4.0), pytest.approx(64.0, rel=0.12))
    assert figures.engine_speeds[-1] == (pytest.approx(8.0), pytest.approx(64.0 + 320 / 4.5))
    assert (found.fact.step, found.fact.waiting, found.fact.fraction) == (10.0, 0.2, 0.5)
    assert (found.fact.staleness, found.fact.most) == (0.5, 1)


def test_what_the_event_loop_and_the_ledger_take_is_not_the_engines(tmp_path: Path) -> None:
    """Of each 10 s: a load until 1, of which the engine computes half; it computes until 6; replies are taken at 6.5;
    environments take 2 s, in which the loop is as busy as otherwise.
    """
    run = tmp_path / "run"
    write_run(run, config_with(), trace=False)
    written = Trace(part_path(run, "learner"), 10_000, flush_seconds=1e6)
    for step in range(16):
        since = 1e9 + 10.0 * step
        written.span("explorer · versions", f"load version {step}", since, since + 1.0)
        written.span("explorer engine 0 · computation", "receive", since, since + 0.5)
        written.span("explorer engine 0 · computation", "decode", since + 0.5, since + 6.0)
        for begin, end in ((3.0, 4.0), (6.0, 6.5), (7.0, 7.375)):
            written.span("explorer · loop", "Python", since + begin, since + end)
        written.span("explorer · ledger", "transactions", since + 9.0, since + 9.5)
        for member in range(4):
            name = f"sums/{step}/{member}"
            written.in_flight("explorer engine 0 · requests", name, since, since + 6.5, tokens=80)
            written.in_flight("explorer · attempts", name, since, since + 8.5, reward=1.0, tokens=80, turns=3)
    written.close()
    figures = measured(str(run)).figures
    assert figures.engine_speeds == ((pytest.approx(4.0), pytest.approx(320 / 5.5)),)
    assert (figures.load_seconds, figures.read_seconds) == (pytest.approx(0.5), pytest.approx(0.5))
    assert figures.explorer_seconds == pytest.approx(1.875 / 4)
    assert figures.ledger_seconds == pytest.approx(0.5)
    assert figures.environment_seconds(random.Random(0)) == pytest.approx(2.0)
    assert figures.turns(random.Random(0)) == 3
    assert figures.prompt_cost == 0.0  # all replies are of one length


def test_a_prompt_costs_what_a_request_takes_beside_its_tokens(tmp_path: Path) -> None:
    """Two requests at a time: of 10 tokens in 3 s and of 30 in 5, so 2 s and a tenth of a second for each token."""
    run = tmp_path / "run"
    write_run(run, config_with(), trace=False)
    written = Trace(part_path(run, "learner"), 10_000, flush_seconds=1e6)
    for number in range(16 * 2):
        since = 1e9 + 5.0 * number
        for tokens, seconds in ((10, 3.0), (30, 5.0)):
            written.in_flight(
                "explorer engine 0 · requests", f"{number}/{tokens}", since, since + seconds, tokens=tokens
            )
    written.close()
    figures = measured(str(run)).figures
    assert figures.prompt_cost == pytest.approx(20.0)
    one, two = figures.engine_speeds[0], figures.engine_speeds[-1]
    assert one == (pytest.approx(1.0), pytest.approx(10.0))  # with 20 for each prompt
    assert two == (pytest.approx(2.0), pytest.approx(20.0))
    said = next(describe_time(config_with(PlanConfig(from_run=str(run), steps=4))))
    assert "an engine 5 at 1, " in said
    assert " 10 at 2 requests" in said


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


def test_replies_of_several_requests_are_as_many_as_requests(tmp_path: Path) -> None:
    """Each of 4 attempts has one turn, made in two requests: so many tokens as both."""
    run = tmp_path / "run"
    write_run(run, config_with(), trace=False)
    written = Trace(part_path(run, "learner"), 10_000, flush_seconds=1e6)
    for step in range(16):
        since = 1e9 + 10.0 * step
        for part in range(2):
            written.in_flight("explorer engine 0 · requests", f"{step}", since + part, since + part + 1.0, tokens=40)
        written.in_flight("explorer · attempts", f"{step}", since, since + 2.0, tokens=80, turns=1)
    written.close()
    figures = measured(str(run)).figures
    assert (figures.turns(random.Random(0)), figures.reply_tokens) == (2, 40.0)


def test_an_engine_that_says_when_it_computes_since_lately_is_taken_so_since_then(tmp_path: Path) -> None:
    """Loads of 2 s, of which it computes 1: told of the last eight steps. Before that all of a load is a halt."""
    run = tmp_path / "run"
    write_run(run, config_with(), trace=False)
    written = Trace(part_path(run, "learner"), 10_000, flush_seconds=1e6)
    for step in range(16):
        since = 1e9 + 10.0 * step
        written.span("explorer · versions", f"load version {step}", since, since + 2.0)
        written.span("explorer · loop", "Python", since + 2.0, since + 4.0)
        written.in_flight("explorer engine 0 · requests", f"{step}", since, since + 10.0, tokens=60 if step < 8 else 70)
        if step >= 8:
            written.span("explorer engine 0 · computation", "decode", since, since + 1.0)
            written.span("explorer engine 0 · computation", "reread", since + 3.0, since + 10.0)
    written.close()
    figures = measured(str(run)).figures
    assert (figures.load_seconds, figures.read_seconds) == (pytest.approx(1.0), pytest.approx(1.0))
    # of ten steps four have 60 tokens in 8 s, six 70 in 1 + 7
    assert figures.engine_speeds == ((1.0, pytest.approx((4 * 60 + 6 * 70) / 80)),)


def test_speeds_are_those_of_what_is_in_flight_wherever_it_began(tmp_path: Path) -> None:
    """Eight requests of 1600 tokens at a time, always, each of 16 s, of steps of 10 s of which every other is odd: 100
    tokens a second each, whatever is counted.
    """
    run = tmp_path / "run"
    write_run(run, config_with(), steps=24, trace=False)
    rows = [json.loads(line) | {"time/step": 10.0, "time/wait": 0.0} for line in (run / "metrics.jsonl").open()]
    for row in rows:
        row["compile/programs"] = float(row["step"] % 2)
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    written = Trace(part_path(run, "learner"), 10_000, flush_seconds=1e6)
    for number in range(8 * 16):
        since = 1e9 + 2.0 * number
        written.in_flight("explorer engine 0 · requests", f"{number}", since, since + 16.0, tokens=1600)
    written.close()
    speeds = measured(str(run)).figures.engine_speeds
    assert speeds[-1] == (pytest.approx(8.0, rel=0.02), pytest.approx(800.0, rel=0.02))


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


def test_what_is_no_run_or_too_short_a_one_is_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"plan.from_run=.*no run with metrics"):
        measured(str(tmp_path / "nothing"))
    write_run(tmp_path / "short", config_with(), steps=5)
    with pytest.raises(ConfigError, match="4 are needed"):
        measured(str(tmp_path / "short"))
    write_run(tmp_path / "blind", config_with(), trace=False)
    with pytest.raises(ConfigError, match="there is no trace of requests"):
        measured(str(tmp_path / "blind"))
    metrics = tmp_path / "blind" / "metrics.jsonl"
    metrics.write_text(json.dumps({"step": 1, "time/train": 1.0}) + "\n")
    with pytest.raises(ConfigError, match="nothing is sampled and trained there"):
        measured(str(tmp_path / "blind"))
    with pytest.raises(ConfigError, match=r"plan.from_run=.*no run with metrics"):
        measured(str(metrics))
    (tmp_path / "blind" / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"^plan.from_run="):
        measured(str(tmp_path / "blind"))


def test_a_plan_says_what_it_needs_what_it_found_and_what_to_take(tmp_path: Path) -> None:
    (line,) = describe_time(config_with(PlanConfig()))
    assert line.startswith("time     unknown: write plan.from_run=RUN")
    said = list(describe_time(config_with()))
    assert said[0].startswith(
        "time     taken, since nobody says otherwise: replies of 80 tokens (plan.response_tokens)"
    )
    (present,) = [line for line in said if line.endswith("as configured")]
    assert present.split()[:5] == ["8.5", "0.47", "0.00", "(0)", "53%"]
    assert said[-2].startswith("one more engine would buy ")
    assert said[-1].startswith("recommended: --config.async_generation_ratio=1: 4")
    write_run(tmp_path / "run", config_with(async_generation_ratio=1.0))
    plan = PlanConfig(from_run=str(tmp_path / "run"), steps=4)
    said = list(describe_time(config_with(plan, async_generation_ratio=1.0)))
    assert said[0].startswith("measured ")
    assert said[1].startswith("predicted ")
    assert "in fact 10 (" in said[1]


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
