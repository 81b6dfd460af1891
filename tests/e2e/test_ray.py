"""The program on Ray, and explorers in processes of their own: they die, and nothing is lost or left behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from program import Started, assert_balanced, assert_nothing_is_left, audit_of, named, query, steps_trained
from ray.cluster_utils import Cluster
from shells import groups_of

from rljax.observe.metrics import read_metrics

pytestmark = pytest.mark.ray

RAY = ("launcher=ray", "ray.address=local")
APART = "explorer.own_process=true"
LONG = ("max_steps=400", "eval_steps=None", "save_steps=400", "observe.report=false")


@pytest.fixture(scope="module")
def agents() -> Iterator[list[psutil.Process]]:
    """Ray's own, of a node that was killed: each tries for a minute to tell the dead head. The other tests need not
    wait for it.
    """
    to_end: list[psutil.Process] = []
    yield to_end
    assert_nothing_is_left(to_end)


def is_agent(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[:1] in (["ray::DashboardAgent"], ["ray::RuntimeEnvAgent"])
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("launcher", "number"),
    [
        (RAY, signal.SIGKILL),
        ((*RAY, "sync_method=memory"), signal.SIGTERM),
        (("launcher=local",), signal.SIGKILL),
        (("launcher=local",), signal.SIGTERM),
    ],
    ids=["actor-SIGKILL", "actor-SIGTERM", "child-SIGKILL", "child-SIGTERM"],
)
def test_an_explorer_apart_does_not_outlive_the_learner(
    launcher: tuple[str, ...],
    number: signal.Signals,
    agents: list[psutil.Process],
    tmp_path: Path,
    cache: Path,
) -> None:
    """One that is an actor reads versions out of the object store, on policy: each step is of the version before it."""
    started = Started(tmp_path / "run", cache, *launcher, APART, *LONG)
    started.until(lambda: steps_trained(tmp_path / "run") >= 3, "steps of versions that were sent were trained")
    family = psutil.Process(started.process.pid).children(recursive=True)
    rays = [process for process in family if is_agent(process)]
    assert len(rays) == (2 if "launcher=ray" in launcher else 0)
    code = started.end(number)
    assert_nothing_is_left([process for process in family if process not in rays])
    agents += rays
    if number == signal.SIGTERM:
        assert code == 0, started.printed
        assert query(tmp_path / "run", "SELECT count(*) FROM groups WHERE state = 'claimed'") == [(0,)]
        assert_balanced(tmp_path / "run", 4 * steps_trained(tmp_path / "run"))
    if "sync_method=memory" in launcher:
        assert not list((tmp_path / "run" / "weights").iterdir()), "no version was written"


def test_a_run_on_ray_survives_the_death_of_an_engine_and_leaves_nothing_behind(tmp_path: Path, cache: Path) -> None:
    """Versions are in the object store, most of them as what has changed: the engine's successor joins far from one
    that is whole.
    """
    sent = ("sync_method=memory", "sync_deltas=40", "sync_dtype=bf16", "learner.optimizer.learning_rate=1e-6")
    started = Started(tmp_path / "run", cache, *RAY, *sent, "max_steps=30", "save_steps=30", "observe.report=false")
    program = psutil.Process(started.process.pid)
    started.until(lambda: steps_trained(tmp_path / "run") >= 6, "six steps were trained")
    family = program.children(recursive=True)
    engine = named(program, "ray::EngineActor")
    assert engine is not None
    engine.kill()
    assert started.end() == 0, started.printed
    assert_balanced(tmp_path / "run", 30 * 4)
    faults = [text for (text,) in query(tmp_path / "run", "SELECT message FROM events WHERE kind = 'engine_died'")]
    assert len(faults) == 1
    assert "its process died" in faults[0]
    whole = [row["publish/whole"] for row in read_metrics(tmp_path / "run") if "publish/whole" in row]
    assert whole.count(0.0) > 15, "most were sent as what had changed"
    assert "raylet" not in started.printed
    assert "RuntimeWarning" not in started.printed
    assert_nothing_is_left(family)


@pytest.mark.parametrize("launcher", [RAY, ("launcher=local",)], ids=["actor", "child"])
def test_an_explorer_apart_that_is_killed_fails_the_run_in_one_line(
    launcher: tuple[str, ...], tmp_path: Path, cache: Path
) -> None:
    started = Started(tmp_path / "run", cache, *launcher, APART, *LONG)
    program = psutil.Process(started.process.pid)
    started.until(lambda: steps_trained(tmp_path / "run") >= 2, "two steps were trained")
    family = program.children(recursive=True)
    explorer = named(program, "ray::ExplorerActor" if launcher == RAY else "rljax.child_main")
    assert explorer is not None
    explorer.kill()
    assert started.end() == 1, started.printed
    lines = [line for line in started.printed.splitlines() if line.startswith("rljax:")]
    assert len(lines) == 1, started.printed
    assert "explorer ended: " in lines[0]
    assert ("its process died" if launcher == RAY else "SIGKILL") in lines[0]
    assert_nothing_is_left(family)


def test_a_node_that_joins_under_a_run_takes_a_second_explorer(cluster: Cluster, tmp_path: Path, cache: Path) -> None:
    """The head has room for the first explorer's engine and no more; neither has slots for all that may be claimed."""
    run_dir = tmp_path / "run"
    few = ("async_generation_ratio=1.0", "sidecar.max_concurrency=4", "max_steps=2000", "save_steps=2000")
    long = (*few, "eval_steps=none", "observe.report=false", "rollout.claim_timeout=60")
    there = (*long, "mode=explore", "launcher=ray", f"ray.address={cluster.address}")
    trainer = Started(run_dir, cache, *long, "mode=train")
    first = Started(run_dir, cache, *there, "explorer.name=first")
    trainer.until(lambda: groups_of(run_dir, "first", "trained") >= 4, "groups of the first explorer to be trained")

    joined = cluster.add_node(num_cpus=1)
    second = Started(run_dir, cache, *there, "explorer.name=second")
    trainer.until(lambda: groups_of(run_dir, "second", "trained") >= 8, "groups of the second to be trained")
    assert query(run_dir, "SELECT claims - (SELECT count(*) FROM groups) FROM run") == [(0,)], (
        "no task was claimed twice"
    )
    for node in (cluster.head_node, joined):  # of one CPU each
        assert named(psutil.Process(node.all_processes["raylet"][0].process.pid), "ray::EngineActor") is not None
    for started in (second, first, trainer):  # last the one that writes the audit
        assert started.end(signal.SIGTERM) == 0, started.printed
    assert second.printed.endswith("explorer second: left; its open claims are handed back\n")
    report = audit_of(run_dir)
    assert report["balanced"], report["problems"]
    assert report["trained_twice"] == 0
    tasks = query(run_dir, "SELECT taskset, epoch, task_index FROM groups")
    assert len(tasks) == len(set(tasks)) == report["claimed"]
