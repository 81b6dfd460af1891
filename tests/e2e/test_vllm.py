"""The program with real vLLM engines on this machine's CPU: each test starts one to three, for tens of seconds each."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import psutil
import pytest
from program import Started, assert_balanced, assert_nothing_is_left, named, query, run, steps_trained, warn_once
from ray.cluster_utils import Cluster
from shells import explorer_first

pytestmark = pytest.mark.vllm

STEPPED = ("sidecar.engine=vllm", "wait_timeout=600")
EXPERTS = ("model.tiny.family=qwen3_moe", "model.tiny.num_experts=4", "model.tiny.moe_intermediate_size=48")
"""An expert's hidden width is one that vLLM pads to pack it for the CPU."""


def rows_of(run_dir: Path) -> list[dict[str, float]]:
    """The metrics of the steps so far."""
    path = run_dir / "metrics.jsonl"
    written = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in written if line.endswith("\n")]


def parity_of(run_dir: Path) -> list[tuple[float, float]]:
    """The largest and the mean gap of every row that has one."""
    names = ("parity/max_abs_logprob_gap", "parity/mean_abs_logprob_gap")
    return [(row[names[0]], row[names[1]]) for row in rows_of(run_dir) if names[0] in row]


def engine_on(raylet: psutil.Process) -> list[psutil.Process]:
    """The actor of an engine, and what it has started."""
    actor = named(raylet, "ray::EngineActor")
    assert actor is not None
    return [actor, *actor.children(recursive=True)]


@pytest.mark.ray
def test_on_ray_tokens_of_several_versions_stand_in_one_trajectory(tmp_path: Path, cache: Path) -> None:
    """Few end early in a larger vocabulary, and few run at once, so that a version finds trajectories under way: once
    the first steps are over, of which one compiles while the engine generates all that it may.
    """
    run_dir, ray = tmp_path / "run", ("launcher=ray", "ray.address=local")
    long = ("model.tiny.characters=none", "model.max_response_tokens=200", "sidecar.max_concurrency=2")
    few = ("async_generation_ratio=2.0", "max_steps=1000", "eval_steps=none", "observe.samples_per_step=16")
    started = Started(run_dir, cache, *STEPPED, *ray, *long, *few)
    program = psutil.Process(started.process.pid)
    started.until(lambda: any(row["response/mixed_versions"] > 0 for row in rows_of(run_dir)), "tokens of two versions")
    family = program.children(recursive=True)
    assert named(program, "ray::EngineActor") is not None
    assert started.end(signal.SIGTERM) == 0, started.printed
    steps = steps_trained(run_dir)
    assert_balanced(run_dir, 4 * steps)
    assert_nothing_is_left(family)

    files = (run_dir / "samples").glob("*.jsonl")
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    versions = [[span["version"] for span in row["spans"] if span["version"] >= 0] for row in lines if "spans" in row]
    assert len(versions) == steps * 16
    assert all(spans == sorted(spans) for spans in versions)
    assert max(len(set(spans)) for spans in versions) >= 2
    assert all(mean <= largest < 1e-3 for largest, mean in parity_of(run_dir))


def test_trajectories_are_pinned_to_the_version_that_they_begin_with(tmp_path: Path, cache: Path) -> None:
    """As above, a version finds trajectories under way, which end with the one that they have."""
    run_dir = tmp_path / "run"
    pinned = ("sidecar.update_policy=pin", "model.lora.rank=4", "model.lora.alpha=8", "sidecar.max_concurrency=6")
    long = ("model.tiny.characters=none", "model.max_response_tokens=200", "observe.samples_per_step=16")
    ahead = ("async_generation_ratio=2.0", "max_steps=10", "eval_steps=4")
    done = run(run_dir, cache, *STEPPED, *pinned, *long, *ahead)
    assert done.returncode == 0, done.stderr
    assert_balanced(run_dir, 10 * 4)
    rows = [row for row in rows_of(run_dir) if row["step"]]
    assert [row["response/mixed_versions"] for row in rows] == [0.0] * 10
    assert max(row["staleness/max"] for row in rows) == 2
    assert all(mean <= largest < 1e-3 for largest, mean in parity_of(run_dir))
    spans = query(run_dir, "SELECT min_version, max_version, step FROM groups WHERE state = 'trained'")
    assert all(0 <= step - oldest <= 2 for oldest, _, step in spans)


def test_a_tied_head_that_is_not_rebuilt_stops_the_run(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine starts with the run's first weights, so that it is the first update that goes wrong."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    planted = "sidecar.engine_args.worker_extension_cls=stale_head.StaleHead"
    done = run(tmp_path / "run", cache, *STEPPED, planted, "sidecar.load_format=auto", "eval_steps=none")
    assert done.returncode == 1, done.stderr
    assert "parity: learner at version 1 and engine at version 1 differ by" in warn_once(done.stderr)
    ((first,), (second,)) = query(tmp_path / "run", "SELECT gap FROM versions WHERE gap IS NOT NULL ORDER BY version")
    assert first < 1e-3 < second


def test_experts_are_trained_at_parity_where_they_were_chosen(tmp_path: Path, cache: Path) -> None:
    done = run(tmp_path / "run", cache, *STEPPED, *EXPERTS, "algorithm.router_replay=replay", "eval_steps=none")
    assert done.returncode == 0, done.stderr
    rows = [row for row in rows_of(tmp_path / "run") if row["step"]]
    assert [row["router/routes_known"] for row in rows] == [1.0] * len(rows), "all that tokens were sampled from"
    assert max(row["router/routes_differing"] for row in rows) < 0.01, "rounding may decide between two"
    assert max(row["policy/approx_kl"] for row in rows) < 1e-6
    gaps = query(tmp_path / "run", "SELECT version, gap FROM versions WHERE gap IS NOT NULL ORDER BY version")
    assert len(gaps) >= 6
    assert all(gap < 1e-3 for _, gap in gaps)


def test_explorer_first_then_trainer(tmp_path: Path, cache: Path) -> None:
    explorer_first(tmp_path / "run", cache, *STEPPED)


def test_the_concurrent_engine_dies_with_its_driver_and_with_its_actor_and_the_run_goes_on(
    cluster: Cluster, tmp_path: Path, cache: Path
) -> None:
    """The run begins without Ray and is resumed on somebody else's cluster, which does not look after vLLM's core. Its
    model has experts. Its worker is in its core's process at first, and then one of its own, as on several devices.
    """
    run_dir, on_ray = tmp_path / "run", ("launcher=ray", f"ray.address={cluster.address}")
    steps = 24  # more than pass while the test looks for processes
    # An engine has half of the last one to start.
    apart = "sidecar.engine_args.distributed_executor_backend=mp"
    concurrent = ("sidecar.engine=vllm_async", *EXPERTS, f"max_steps={steps}", "wait_timeout=600")
    killed = Started(run_dir, cache, *concurrent)
    program = psutil.Process(killed.process.pid)
    killed.until(lambda: steps_trained(run_dir) >= 3, "three steps")
    family = program.children(recursive=True)
    assert named(program, "EngineCore") is not None
    assert killed.end(signal.SIGKILL) == -signal.SIGKILL
    assert_nothing_is_left(family)

    served = "SELECT version FROM versions WHERE gap IS NOT NULL AND lineage = 2"
    resumed = Started(run_dir, cache, *concurrent, apart, *on_ray)
    resumed.until(lambda: bool(query(run_dir, served)), "an engine that serves what was published again")
    raylet = psutil.Process(cluster.head_node.all_processes["raylet"][0].process.pid)
    assert named(raylet, "EngineCore") is not None
    actor, *started = engine_on(raylet)
    actor.kill()
    assert_nothing_is_left([actor, *started])
    resumed.until(lambda: named(raylet, "EngineCore") is not None, "vLLM's core in a successor")
    family = engine_on(raylet)
    assert resumed.end() == 0, resumed.printed
    assert_nothing_is_left(family)
    assert_balanced(run_dir, steps * 4)
    # One that is published again while its groups are stored already may reach no engine; the first life measured it.
    gaps = query(run_dir, "SELECT version, max(gap), max(mean_gap) FROM versions GROUP BY version ORDER BY version")
    assert [version for version, _, _ in gaps] == list(range(steps + 1))
    assert all(mean <= gap < 1e-3 for _, gap, mean in gaps)
    assert all(mean <= largest < 1e-3 for largest, mean in parity_of(run_dir))
