"""The figures of a run, from its metrics and its trace, against arithmetic by hand."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from rljax.config.schema import ObserveConfig, PlanConfig
from rljax.config.validate import ConfigError
from rljax.observe.trace import Trace, part_path
from rljax.pipeline.plan.measured import Measured, measured
from rljax.pipeline.plan.splits import settling
from rljax.pipeline.plan.timing import describe_time, run_before
from tests.pipeline.plan.runs import config_with, traced, write_run


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
    assert (figures.publish_seconds, figures.announce_seconds) == pytest.approx((0.75, 2.5))
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
    with traced(run) as written:
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
    with traced(run) as written:
        for number in range(16 * 2):
            since = 1e9 + 5.0 * number
            for tokens, seconds in ((10, 3.0), (30, 5.0)):
                written.in_flight(
                    "explorer engine 0 · requests", f"{number}/{tokens}", since, since + seconds, tokens=tokens
                )
    figures = measured(str(run)).figures
    assert figures.prompt_cost == pytest.approx(20.0)
    one, two = figures.engine_speeds[0], figures.engine_speeds[-1]
    assert one == (pytest.approx(1.0), pytest.approx(10.0))  # with 20 for each prompt
    assert two == (pytest.approx(2.0), pytest.approx(20.0))
    planned = config_with(PlanConfig(from_run=str(run), steps=4))
    said = next(describe_time(planned, run_before(planned), None))
    assert "an engine 5 at 1, " in said
    assert " 10 at 2 requests" in said


def test_replies_of_several_requests_are_as_many_as_requests(tmp_path: Path) -> None:
    """An attempt a step has one turn, made in two requests of 40 tokens."""
    run = tmp_path / "run"
    with traced(run) as written:
        for step in range(16):
            since = 1e9 + 10.0 * step
            for part in range(2):
                written.in_flight(
                    "explorer engine 0 · requests", f"{step}", since + part, since + part + 1.0, tokens=40
                )
            written.in_flight("explorer · attempts", f"{step}", since, since + 2.0, tokens=80, turns=1)
    figures = measured(str(run)).figures
    assert (figures.turns(random.Random(0)), figures.reply_tokens) == (2, 40.0)


def test_an_engine_that_says_when_it_computes_since_lately_is_taken_so_since_then(tmp_path: Path) -> None:
    """Loads of 2 s, of which it computes 1: told of the last eight steps. Before that all of a load is a halt."""
    run = tmp_path / "run"
    with traced(run) as written:
        for step in range(16):
            since = 1e9 + 10.0 * step
            written.span("explorer · versions", f"load version {step}", since, since + 2.0)
            written.span("explorer · loop", "Python", since + 2.0, since + 4.0)
            written.in_flight(
                "explorer engine 0 · requests", f"{step}", since, since + 10.0, tokens=60 if step < 8 else 70
            )
            if step >= 8:
                written.span("explorer engine 0 · computation", "decode", since, since + 1.0)
                written.span("explorer engine 0 · computation", "reread", since + 3.0, since + 10.0)
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


def test_steps_that_the_trace_has_lost_do_not_count(tmp_path: Path) -> None:
    """Replies grow from 40 to 80 tokens; a trace keeps its newest events, here of the last eight steps, and of the run
    before it was resumed, which was whole.
    """
    run = tmp_path / "run"
    with traced(run) as written:
        rows = [json.loads(line) for line in (run / "metrics.jsonl").open()]
        for row in rows[2:8]:
            row |= {"tokens/sampled": 320.0, "tokens/all": 400.0}
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for step in (0, 1, *range(8, 16)):
            since = 1e9 + 10.0 * step
            written.span("learner", f"train step {step}", since, since + 4.0)
            written.in_flight("explorer engine 0 · requests", f"{step}", since, since + 5.0, tokens=80)
    found = measured(str(run))
    assert (found.steps, found.counted) == (16 - settling(found.config), 6)  # of eight one compiles, one is odd
    assert found.figures.learner_speed == pytest.approx(200.0)
    assert (found.figures.prompt_tokens, found.figures.reply_tokens) == (20.0, 80.0)


def test_requests_of_validations_alone_are_refused_in_a_line(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with traced(run) as written:
        written.span("explorer · validations", "validate version 0", 1e9, 1e9 + 5.0)
        written.in_flight("explorer engine 0 · requests", "held_out", 1e9, 1e9 + 5.0, tokens=80)
    with pytest.raises(ConfigError, match="with requests are needed"):
        measured(str(run))


def test_prompts_of_groups_that_are_trained_again_count(tmp_path: Path) -> None:
    """Two groups of four are new and two are not, so that 320 of 1280 tokens are sixteen prompts."""
    run = tmp_path / "run"
    write_run(run, config_with())
    rows = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    for row in rows:
        row |= {"batch/reused_groups": 2.0, "tokens/all": 1280.0, "tokens/sampled": 960.0}
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert measured(str(run)).figures.prompt_tokens == 20.0


def test_a_run_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir()
    write_run(tmp_path / "runs" / "mine", config_with())
    monkeypatch.chdir(tmp_path)
    assert measured("mine").fact == measured(str(tmp_path / "runs" / "mine")).fact


def test_what_is_no_run_or_too_short_a_one_is_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"plan.from_run=.*no run with metrics"):
        measured(str(tmp_path / "nothing"))
    write_run(tmp_path / "short", config_with(), steps=5)
    with pytest.raises(
        ConfigError, match=r"only 0 of the steps after the first 4 are in .*; 4 with requests are needed"
    ):
        measured(str(tmp_path / "short"))
    write_run(tmp_path / "blind", config_with(), trace=False)
    with pytest.raises(ConfigError, match="there is no trace of requests; let it run longer"):
        measured(str(tmp_path / "blind"))
    write_run(tmp_path / "untraced", config_with(observe=ObserveConfig(trace=False)), trace=False)
    with pytest.raises(ConfigError, match=r"there is no trace of requests; write a run with observe\.trace=true"):
        measured(str(tmp_path / "untraced"))
    metrics = tmp_path / "blind" / "metrics.jsonl"
    metrics.write_text(json.dumps({"step": 1, "time/train": 1.0}) + "\n")
    with pytest.raises(ConfigError, match="nothing is sampled and trained there"):
        measured(str(tmp_path / "blind"))
    with pytest.raises(ConfigError, match=r"plan.from_run=.*no run with metrics"):
        measured(str(metrics))
    (tmp_path / "blind" / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"^plan.from_run="):
        measured(str(tmp_path / "blind"))
