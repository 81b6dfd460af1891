"""The race measures the same rewards and tasks on both sides, and what a command takes."""

import argparse
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import race as races
from bench import race_trl
from bench.machine import CHANGED
from bench.race import CONFIG, Run, job_of, race, take
from rljax.config.load import load_config
from rljax.tasks.rewards.text import digits, exact
from rljax.tasks.task import Task
from rljax.tasks.tasksets import load_tasksets
from rljax.trajectory import TaskId

ROOT = Path(__file__).parents[2]
TEXTS = st.text(alphabet="0123456789 .<|>ab", max_size=12) | st.text(max_size=6)


@given(answer=TEXTS, response=TEXTS)
def test_both_sides_score_alike(answer: str, response: str) -> None:
    task = Task(TaskId("sums", 0, 0), (), answer)
    assert race_trl.exact(answer, response) == exact(task, response)
    assert race_trl.digits(answer, response) == digits(task, response)


def test_both_sides_train_the_same_tasks_in_the_same_order(tmp_path: Path) -> None:
    config = load_config(str(ROOT / CONFIG), {"max_steps": 3, "seed": 7, "model.path": "tiny"})
    job = job_of(config, tmp_path)
    (ours,) = load_tasksets(config.tasks.train, 7, "fail", role="train").values()
    assert len(job["train"]) == 3 * 8
    assert [row["answer"] for row in job["train"]] == [ours.task(0, index).answer for index in range(24)]
    assert job["train"][5]["prompt"] == [dict(message) for message in ours.task(0, 5).messages]
    assert len(job["held_out"]) == 128
    assert not {row["prompt"][-1]["content"] for row in job["train"]} & {
        row["prompt"][-1]["content"] for row in job["held_out"]
    }


TAKER = """
import subprocess, sys, time
if len(sys.argv) > 2:
    held = bytearray(b"x" * (192 << 20))
    with open(sys.argv[1], "wb") as file:
        file.write(b"y" * (32 << 20))
    time.sleep(3)
else:
    subprocess.run([sys.executable, __file__, sys.argv[1], "below"], check=True)
"""


@pytest.mark.slow
def test_what_a_command_takes_is_that_of_all_its_processes(tmp_path: Path) -> None:
    """The one below holds 192 MiB and writes 32."""
    script = tmp_path / "taker.py"
    script.write_text(TAKER)
    found = take([sys.executable, str(script), str(tmp_path / "written")], tmp_path / "log", {})
    assert found.peak_mib > 192
    assert found.ended - found.launched >= 3
    assert found.cpu_seconds > 0
    assert found.written_mib >= 0  # nothing where a file lies in memory


def test_a_command_that_fails_is_named_with_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"exit code 3: .'no'"):
        take([sys.executable, "-c", "print('no'); raise SystemExit(3)"], tmp_path / "log", {})


def test_a_step_counts_where_nothing_else_was_done() -> None:
    """Steps of 50 (compiles), 40, 5, 6, 7 and, after the validation of version 5, 100 seconds, then 9."""
    ends, at = [], 1000.0
    for seconds in (50, 40, 5, 6, 7, 100, 9):
        at += seconds
        ends.append(at)
    held_out = ((1010.0, 0, 0.1), (1110.0, 5, 0.36), (1220.0, 7, 0.5))
    run = Run(990.0, 1000.0, 1300.0, tuple(ends), held_out, 1.0, 1.0, 1.0, 1.0)
    assert run.step_seconds(5) == pytest.approx(6.5)  # 5, 6, 7 and 9
    assert run.to_good == 120.0


def test_a_race_that_was_stopped_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two sides and two seeds three runs are there, one of them of other keys."""
    asked: list[tuple[str, str]] = []

    def run(place: Path, keys: list[str], cold: bool) -> Run:
        asked.append((place.name, " ".join(keys)))
        return Run(0.0, 1.0, 9.0, (2.0, 3.0), ((1.5, 0, 0.2),), 1.0, 1.0, 1.0, float(len(asked)))

    monkeypatch.setattr(races, "run_rljax", run)
    monkeypatch.setattr(races, "commit", lambda: "clean")
    file, sides = tmp_path / "rows.jsonl", ["rljax", "rljax_alpha1"]

    def go(*seeds: int, keys: tuple[str, ...] = ("max_steps=2",)) -> None:
        options = argparse.Namespace(seeds=list(seeds), sides=sides, rows=file, cold=False, eval_steps=5)
        race(options, keys, tmp_path)

    go(0)
    go(1, keys=("max_steps=3",))
    go(0, 1)
    zero, one = "async_generation_ratio=0", "async_generation_ratio=1"
    assert asked == [
        ("rljax-0", f"max_steps=2 {zero} seed=0"),
        ("rljax_alpha1-0", f"max_steps=2 {one} seed=0"),
        ("rljax-1", f"max_steps=3 {zero} seed=1"),
        ("rljax_alpha1-1", f"max_steps=3 {one} seed=1"),
        ("rljax_alpha1-1", f"max_steps=2 {one} seed=1"),  # who begins changes with the seed
        ("rljax-1", f"max_steps=2 {zero} seed=1"),
    ]
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [Run.of(row["run"]).cpu_seconds for row in rows] == [1, 2, 3, 4, 5, 6]
    for number, of_another in enumerate(("commit", "processor"), start=1):
        monkeypatch.setattr(races, of_another, lambda: "another")
        go(0)
        assert len(asked) == 6 + 2 * number, f"a run of another {of_another}"
    monkeypatch.setattr(races, "commit", lambda: f"another{CHANGED}")
    go(0)
    go(0)
    assert len(asked) == 14, "nobody knows whether the changes are the same"


def test_what_an_unfinished_run_left_is_neither_gone_on_with_nor_deleted(tmp_path: Path) -> None:
    (tmp_path / "rljax-0").mkdir()
    options = argparse.Namespace(seeds=[0], sides=["rljax"], rows=tmp_path / "rows.jsonl", cold=False, eval_steps=5)
    with pytest.raises(SystemExit, match=r"rljax-0: a run that is no line of --rows left this; delete it"):
        race(options, ("max_steps=2",), tmp_path)
    assert (tmp_path / "rljax-0").is_dir()
