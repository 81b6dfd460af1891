"""The command line: what it refuses, what it leaves behind, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from program import LIMIT, Started, audit_of, query, run

STEP_KEYS = {
    "step",
    "reward/mean",
    "staleness/mean",
    "staleness/max",
    "time/step",
    "time/wait",
    "time/lease",
    "tokens_per_second",
    "bound/fraction",
    "parity/max_abs_logprob_gap",
    "parity/mean_abs_logprob_gap",
}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("max_step=3", "max_step: unknown key; did you mean max_steps?"),
        ("max_steps=many", "max_steps=many: expected an integer"),
        ("async_generation_ratio=-1", "async_generation_ratio=-1.0: must be at least 0"),
        ("group_size=5", "rollout_batch_size=16: not a multiple of group_size=5"),
        ("model.path=/nowhere/at/all", "no such directory"),
        ("run_dir=/dev/null/run", "cannot be written"),
        ("run_dir=/dev/null", "/dev/null is a file; choose another run_dir"),
        ("algorithm.pg_variant=pop", "closest: ppo"),
        ("tasks.train.digits.source=reverse_digit", "reverse_digits"),
        ("learner.devices=cpu:0-63", "learner.mesh"),
    ],
)
def test_refusal_is_one_line_with_exit_code_2(override: str, words: str, tmp_path: Path, cache: Path) -> None:
    named = override.removeprefix("run_dir=")
    done = run(tmp_path / "run", cache, override) if named == override else run(Path(named), cache)
    lines = [line for line in done.stderr.splitlines() if line.startswith("rljax:")]
    assert done.returncode == 2, done.stderr
    assert len(lines) == 1, done.stderr
    assert words in lines[0]
    assert "Traceback" not in done.stderr


def test_run_leaves_everything_behind_and_a_second_one_says_so(tmp_path: Path, cache: Path) -> None:
    run_dir = tmp_path / "run"
    done = run(run_dir, cache, "async_generation_ratio=1.0", "observe.tensorboard=true")
    assert done.returncode == 0, done.stderr
    assert "audit: balanced" in done.stdout
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(7))
    for row in rows[1:]:
        assert set(row) >= STEP_KEYS, STEP_KEYS - set(row)
        assert row["parity/mean_abs_logprob_gap"] <= row["parity/max_abs_logprob_gap"] < 1e-3
    assert [row["step"] for row in rows if "val/digits/score" in row] == [0, 3, 6]
    report = audit_of(run_dir)
    assert report["balanced"], report["problems"]
    assert report["max_staleness"] <= 1
    for name in ("config.json", "report.html", "trace.json", "samples", "checkpoints", "weights", "tensorboard"):
        assert (run_dir / name).exists(), name
    assert json.loads((run_dir / "trace.json").read_text())["traceEvents"]
    again = run(run_dir, cache, "async_generation_ratio=1.0", "observe.tensorboard=true")
    assert again.returncode == 0
    assert "this run is finished" in again.stdout
    config = (run_dir / "config.json").read_text()
    refused = run(run_dir, cache, "async_generation_ratio=1.0", "max_steps=9", "learner.devices=gpu:0")
    assert refused.returncode == 2, refused.stderr
    assert (run_dir / "config.json").read_text() == config, "a config that is refused must not replace the run's own"
    audited = run(run_dir, cache, "async_generation_ratio=1.0", "mode=audit")
    assert audited.returncode == 0, audited.stderr
    replayed = run(run_dir, cache, "async_generation_ratio=1.0", "mode=replay")
    assert replayed.returncode == 0, replayed.stderr
    assert "bit for bit the same" in replayed.stdout
    assert "not as the run was trained" not in replayed.stdout
    evaluated = run(run_dir, cache, "async_generation_ratio=1.0", "mode=evaluate", "checkpoint=all")
    assert evaluated.returncode == 0, evaluated.stderr
    scores = {row["step"]: row["val/digits/score"] for row in json.loads((run_dir / "evaluation.json").read_text())}
    assert scores[6] == pytest.approx(rows[6]["val/digits/score"])
    assert scores[0] == pytest.approx(rows[0]["val/digits/score"])


def test_sigterm_saves_and_the_same_command_resumes(tmp_path: Path, cache: Path) -> None:
    run_dir, kept = tmp_path / "run", ("save_steps=1000", "eval_steps=none", "observe.report=false")
    first = Started(run_dir, cache, "max_steps=4000", *kept)
    first.until(lambda: (query(run_dir, "SELECT trained FROM run") or [(0,)])[0][0] >= 3, "three steps")
    assert first.end(signal.SIGTERM) == 0, first.printed
    assert "the same command resumes" in first.printed
    steps = query(run_dir, "SELECT trained FROM run")[0][0]
    assert (run_dir / "checkpoints" / str(steps)).exists()
    done = run(run_dir, cache, f"max_steps={steps + 2}", *kept)
    assert done.returncode == 0, done.stderr
    report = audit_of(run_dir)
    assert report["balanced"], report["problems"]
    assert report["steps"] == steps + 2
    assert report["lineages"][-1]["from_version"] == steps
    more = run(run_dir, cache, f"max_steps={steps + 3}", *kept)
    assert more.returncode == 0, more.stderr
    assert audit_of(run_dir)["steps"] == steps + 3, "a finished run goes on when more steps are asked for"


def test_second_trainer_is_refused(tmp_path: Path, cache: Path) -> None:
    run_dir, long = tmp_path / "run", ("max_steps=4000", "eval_steps=none", "observe.report=false")
    first = Started(run_dir, cache, *long)
    living = "SELECT count(*) FROM processes WHERE name = 'trainer' AND alive"
    first.until(lambda: query(run_dir, living) == [(1,)], "the first trainer")
    second = run(run_dir, cache, *long)
    assert second.returncode == 1
    assert "trainer named 'trainer' is alive here" in second.stderr
    assert first.end(signal.SIGTERM) == 0, first.printed


def test_an_explorer_that_is_refused_harms_nobody(tmp_path: Path, cache: Path) -> None:
    run_dir, long = tmp_path / "run", ("max_steps=4000", "eval_steps=none", "save_steps=1000", "observe.report=false")
    first = Started(run_dir, cache, *long)
    trained = lambda: (query(run_dir, "SELECT trained FROM run") or [(0,)])[0][0]  # noqa: E731
    first.until(lambda: trained() >= 1, "a step")
    second = run(run_dir, cache, *long, "mode=explore")
    assert second.returncode == 1
    assert "an explorer named 'explorer' is alive here" in second.stderr
    other = run(run_dir, cache, *long, "mode=explore", "explorer.name=other", "tasks.train.digits.limit=5")
    assert other.returncode == 1
    assert "taskset digits: 5 tasks, but this run began with 90" in other.stderr
    steps = trained()
    first.until(lambda: trained() >= steps + 2, "more steps")
    assert first.end(signal.SIGTERM) == 0, first.printed


def test_a_trainer_alone_gives_up_in_time_and_says_what_it_waited_for(tmp_path: Path, cache: Path) -> None:
    alone = run(tmp_path / "run", cache, "mode=train", "wait_timeout=3")
    assert alone.returncode == 1
    assert "waited 3 s for" in alone.stderr
    assert "an explorer: 0 of" in alone.stderr


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("rljax, rljax.main, rljax.config.load", ("jax", "torch", "ray", "vllm", "flax", "transformers")),
        ("rljax.run", ("torch", "ray", "vllm", "gguf", "plotly", "pandas")),
    ],
    ids=["before the config is known", "a run"],
)
def test_import_is_light(modules: str, heavy: tuple[str, ...]) -> None:
    """What a process does not need at once costs each of them seconds: a refused config loads no accelerator library,
    and a run no package of one engine, one model or the report.
    """
    code = f"import sys, {modules}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LIMIT)
    assert done.stdout.strip() == "[]"
