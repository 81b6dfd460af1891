"""`python -m bench.accelerator`: its arithmetic, its budget, what it says of parts that fail; and that it runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bench.accelerator.__main__ as main_module
from bench.accelerator import process
from bench.accelerator.__main__ import CUDA, further_attempts, is_bad, nvidia_smi, run_parts, write
from bench.accelerator.learner import make_groups
from bench.accelerator.peaks import parameters
from bench.accelerator.plan import PARTS, SCALES, Part, make_parts
from bench.accelerator.process import Outcome, run_part
from bench.accelerator.quickstart import facts
from bench.accelerator.report import markdown, table
from bench.accelerator.shapes import MODELS, SHARE, Shape, Way, bytes_needed, first_way, ways
from rljax.learner.packing import pack
from rljax.learner.rows import row_shapes
from tests.waiting import HANGS

ROOT = Path(__file__).parents[2]
SHAPE = Shape("quick", 128, 256, 128, "fp32", 1)
FACTS = {
    "kind": "a device",
    "machine": "",
    "packages": "",
    "commit": "",
    "command": "",
    "seconds": 1,
    "peak": {"flops": 100e12, "source": "somebody"},
    "notes": [],
}


def part(worker: str = "learner", case: str = "m, rows of 8", **arguments: Any) -> Part:
    return Part("learner", worker, case, arguments, 60)


@pytest.mark.parametrize("row", [2048, 8192, 32768])
def test_rows_are_packed_full_and_no_shorter(row: int) -> None:
    shape = Shape("Qwen2.5-1.5B", row, 65536, 16384, "bf16", 3)
    groups = make_groups(shape)
    trajectories = [t for group in groups for t in group.trajectories]
    rows = ways(shape)[0].rows
    shapes = row_shapes(row + 1, rows, len(trajectories))
    zeros = [np.zeros(len(t.token_ids), np.float32) for t in trajectories]
    packed = pack(trajectories, zeros, np.ones(len(trajectories)), shapes)
    assert packed.batch.token_ids.shape[1:] == (rows, row)
    assert (packed.fill, packed.trained_tokens) == (1.0, 65536)


def test_ways_halve_rows_before_they_recompute_layers() -> None:
    shape = Shape("SmolLM2-135M", 2048, 65536, 8192, "bf16", 3)
    assert ways(shape) == [Way(remat, rows) for remat in (False, True) for rows in (4, 2, 1)]
    assert ways(replace(shape, row=32768)) == [Way(False, 1), Way(True, 1)]


def test_the_first_way_is_one_that_may_fit() -> None:
    shape = Shape("Qwen2.5-1.5B", 8192, 65536, 16384, "bf16", 3)
    assert first_way(shape, None) == 0
    assert first_way(shape, 1e12) == 0
    assert first_way(shape, 1e9) == len(ways(shape)) - 1
    between = (bytes_needed(shape, ways(shape)[0]) + bytes_needed(shape, ways(shape)[1])) / 2
    assert first_way(shape, between / SHARE) == 1


def test_the_most_important_parts_come_first_and_all_shapes_are_there() -> None:
    parts = make_parts(SCALES["accelerator"], "gpu", PARTS)
    first = [(p.group, p.worker) for p in parts[: len(PARTS) + 2]]
    assert first == [
        ("kernels", "kernels"),
        ("learner", "learner"),
        ("quickstart", "quickstart"),
        ("engine", "engine"),
        *[("first-step", "learner")] * 2,
        ("agreement", "agreement"),
        ("learner", "torch_learner"),
    ]
    assert parts[1].case == "Qwen2.5-1.5B, rows of 8192"
    assert {p.group for p in parts} == set(PARTS)
    measured = {(model, row) for model in list(MODELS)[:3] for row in (2048, 8192, 32768)}
    assert {
        (p.arguments["shape"]["model"], p.arguments["shape"]["row"]) for p in parts if p.group == "learner"
    } == measured


def test_a_part_that_the_time_does_not_suffice_for_is_left_out_and_said(tmp_path: Path) -> None:
    parts = make_parts(SCALES["accelerator"], "gpu", ["kernels", "engine"])
    found = list(run_parts(parts, SCALES["accelerator"], time.monotonic() + 9, tmp_path))
    assert [outcome.status for outcome in found] == ["skipped"] * 4
    assert found[0].why.endswith("s were left, and it takes some 75")
    assert "kernels: skipped: " in markdown(FACTS, found)


def test_a_part_that_fails_says_why_and_the_next_one_runs(tmp_path: Path) -> None:
    parts = [part("no such worker"), part("device", "")]
    failed, done = run_parts(parts, SCALES["quick"], time.monotonic() + HANGS, tmp_path)
    assert (failed.status, failed.why) == ("failed", "ended with 1: KeyError: 'no such worker'")
    assert (done.status, done.rows[0]["platform"]) == ("done", "cpu")
    assert [is_bad(failed), is_bad(done)] == [True, False]


def test_what_goes_wrong_around_a_part_costs_this_part_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise OSError("Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", refused)
        parts = [part("device", "a"), part("device", "b")]
        found = list(run_parts(parts, SCALES["quick"], time.monotonic() + HANGS, tmp_path))
    assert [(outcome.status, outcome.why) for outcome in found] == [("failed", "OSError: Cannot allocate memory")] * 2


def test_a_process_that_cannot_be_killed_does_not_stop_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for its device in the kernel: the signal is not heard."""
    started: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", lambda pid, number: started.append(pid))
        patch.setattr(process, "KILL_SECONDS", 0.01)
        outcome = run_part(part("device"), 0.01, tmp_path)
    assert outcome.status == "timed out"
    assert outcome.why.startswith("could not be ended, and keeps the device, after 0 s")
    os.killpg(started[0], signal.SIGKILL)


@pytest.mark.parametrize("script", ["exec sleep 60", "echo Unable to determine the device handle; exit 9"])
def test_an_nvidia_smi_that_does_not_answer_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """As where a GPU has fallen off its bus."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n{script}\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(main_module, "SMI_SECONDS", 0.2)
    assert nvidia_smi().startswith("nvidia-smi does not answer: Command ")


def test_a_table_that_cannot_be_made_leaves_what_was_measured(tmp_path: Path) -> None:
    outcome = Outcome(Part("kernels", "kernels", "", {}, 1), "done", 1.0, [{"case": "no figure"}])
    assert write(tmp_path, FACTS, SCALES["quick"], [outcome]).startswith("the table cannot be made, see result.json: ")
    assert json.loads((tmp_path / "result.json").read_text())["parts"][0]["rows"] == [{"case": "no figure"}]


def test_the_extra_that_is_named_is_the_one_that_is_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["cuda12"][0].startswith(CUDA.partition(",")[0])


def refusing(what: str) -> str:
    """A program's first lines, by which it cannot import what has such a ``top``, its first name."""
    return f"""
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if {what}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Refused())
"""


def test_it_starts_with_jax_and_numpy_alone() -> None:
    """What needs more is a part, whose line says what is missing."""
    allowed = ["jax", "jaxlib", "numpy", "scipy", "ml_dtypes", "opt_einsum", "bench", "rljax", "sidecar", "envs"]
    code = refusing(f"top not in {{*{allowed!r}, *sys.stdlib_module_names}}")
    code += "import bench.accelerator.__main__, bench.accelerator.worker"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("begin", "brought"),
    [
        ("import bench.accelerator.kernels", set()),
        (
            "from bench.accelerator.learner import Way, learner_config\n"
            "from bench.accelerator.shapes import Shape\n"
            "shape, way = Shape('quick', 128, 256, 128, 'fp32', 1), Way(False, 1)\n"
            "learner_config(shape, way)",
            {"safetensors", "tensorstore", "xxhash"},
        ),
        (
            "import bench.accelerator.engines, rljax.sampler.engine, rljax.weights.memory, rljax.models.hf_names",
            {"safetensors", "tensorstore", "xxhash"},
        ),
    ],
    ids=["kernels", "learner", "engine"],
)
def test_a_part_needs_no_more_packages_than_the_command_says(begin: str, brought: set[str]) -> None:
    """Of those that pyproject.toml lists: a machine that is lent has few of them."""
    given = {"jax", "flax", "optax", "jaxtyping", "numpy", "ml-dtypes", "pyyaml", "rich"}  # the last two are flax's
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    named = {re.split(r"[^\w-]", line)[0] for line in lines} - given
    # pyarrow is of the extra data
    refused = {name.removesuffix("-checkpoint").replace("-", "_") for name in {*named, "pyarrow"}} - brought
    assert len(refused) > 15
    code = f"{refusing(f'top in {refused!r}')}\n{begin}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_part_that_hangs_is_ended(tmp_path: Path) -> None:
    outcome = run_part(part("device"), 0.01, tmp_path)
    assert outcome.status == "timed out"
    assert is_bad(outcome)


def test_a_package_that_is_missing_is_said_and_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ml_collections.py").write_text("raise ModuleNotFoundError(\"No module named 'ml_collections'\")")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome = run_part(replace(part("quickstart", overrides=[], target=0.9), group="quickstart"), HANGS, tmp_path)
    assert (outcome.status, outcome.why) == ("skipped", "the package ml_collections is not installed")
    assert not is_bad(outcome)


def test_out_of_memory_is_a_row_and_the_next_way_is_tried() -> None:
    arguments = {"shape": vars(replace(SHAPE, microbatch=256)), "attempt": None}
    row = {"side": "rljax", "way": "no remat, microbatches of 2 rows", "out_of_memory": "RESOURCE_EXHAUSTED", "next": 1}
    outcome = Outcome(part(**arguments), "done", 1.0, [row])
    assert [again.arguments["attempt"] for again in further_attempts(outcome)] == [1]
    assert further_attempts(replace(outcome, rows=[row | {"next": 4}])) == []
    assert not is_bad(outcome)
    ((_, _, ours, theirs, ratio, note),) = table([outcome], None)
    assert (ours, theirs, ratio) == ("out of memory", "–", "")
    assert note == "rljax: out of memory with no remat, microbatches of 2 rows"


def test_the_table_compares_both_sides_of_a_shape() -> None:
    """1000 tokens in 2 s and 100 TFLOP are half of a peak of 100 TFLOP/s."""
    ours = {"side": "rljax", "way": "remat", "tokens": 1000, "seconds": 2.0, "flops": 100e12}
    ours |= {"peak_bytes": 3 * 2**30, "peak_from": "the device", "first_step_seconds": 9.0}
    theirs = ours | {"side": "torch", "seconds": 3.0, "body": "flex_attention", "failed": ["sdpa: OSError: no"]}
    outcomes = [Outcome(part(), "done", 1.0, [ours]), Outcome(part("torch_learner"), "done", 1.0, [theirs])]
    assert list(table(outcomes, 100e12)) == [
        (
            "learner",
            "m, rows of 8",
            "500 tokens/s, MFU 50.0%, 3 GiB",
            "333 tokens/s, MFU 33.3%, 3 GiB",
            "1.50",
            "rljax: remat; torch: remat, flex_attention, not sdpa: OSError: no",
        )
    ]
    assert next(iter(table(outcomes, None)))[2] == "500 tokens/s, 3 GiB"
    assert "MFU is left out" in markdown(FACTS | {"peak": None}, outcomes)


@pytest.mark.parametrize(("error", "bad"), [(1e-5, False), (1e-3, True), (float("nan"), True)])
def test_an_error_beyond_its_bound_fails_the_run(error: float, bad: bool) -> None:
    outcome = Outcome(
        Part("kernels", "kernels", "", {}, 1), "done", 1.0, [{"case": "c", "error": error, "bound": 1e-4}]
    )
    assert is_bad(outcome) == bad
    assert next(iter(table([outcome], None)))[-1] == ("WRONG" if bad else "right")


def test_seconds_of_the_quickstart_count_from_its_start_to_the_rows_that_show_it() -> None:
    name = "val/reverse_digits/score"
    rows = [
        {"step": 0, "timestamp": 103.0, name: 0.05},
        {"step": 1, "timestamp": 110.0},
        {"step": 20, "timestamp": 130.0, name: 0.93},
        {"step": 40, "timestamp": 150.0, name: 0.99},
    ]
    assert facts({"rows": rows, "begin": 100.0}) == {
        "steps": 40,
        "first_step_seconds": 10.0,
        "steps_to_target": 20,
        "seconds_to_target": 30.0,
    }
    assert facts({"rows": rows[:1], "begin": 100.0})["first_step_seconds"] is None


def run_quick(out: Path, *only: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.accelerator", "--quick", "--out", str(out), "--only", *only]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=2 * HANGS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (out / "table.md").read_text() in done.stdout
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    assert [p["status"] for p in result["parts"]] == ["done"] * len(result["parts"]), done.stdout
    return result


@pytest.mark.slow
def test_kernels_learners_and_engines_run_on_a_cpu(tmp_path: Path) -> None:
    result = run_quick(tmp_path, "kernels", "learner", "engine", "agreement")
    rows = {p["part"]["worker"]: p["rows"] for p in result["parts"]}
    assert rows.keys() == {"kernels", "learner", "torch_learner", "engine", "torch_engine", "agreement"}
    assert all(row["error"] < row["bound"] for row in (*rows["kernels"], *rows["agreement"]) if "error" in row)
    assert len(rows["kernels"]) == 9
    assert [row["tokens"] for row in (*rows["learner"], *rows["torch_learner"])] == [256, 256]
    assert rows["learner"][0]["peak_bytes"] > 12 * parameters(MODELS["quick"])  # masters and moments in float32
    assert [row["sequences"] for row in (*rows["engine"], *rows["torch_engine"])] == [1, 4, 1, 4]
    report = (tmp_path / "table.md").read_text()
    assert "MFU is left out: the peak of 'cpu'" in report
    assert "WRONG" not in report


@pytest.mark.slow
def test_the_quickstart_is_started_twice(tmp_path: Path) -> None:
    cold, warm = run_quick(tmp_path, "quickstart")["parts"][0]["rows"]
    assert (cold["case"], warm["case"]) == ("cold compile cache", "warm compile cache")
    assert 0 <= cold["score"] <= 1
    assert cold["first_step_seconds"] > 0
    assert warm["first_step_seconds"] > 0
