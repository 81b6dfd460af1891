"""The program on Ray, and explorers in processes of their own: they die, and nothing is lost or left behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from program import Started, assert_balanced, assert_nothing_is_left, named, query, steps_trained

RAY = ("launcher=ray", "ray.address=local")
APART = "explorer.own_process=true"
LONG = ("max_steps=400", "eval_steps=None", "save_steps=400")


def test_a_run_on_ray_survives_the_death_of_an_engine_and_leaves_nothing_behind(tmp_path: Path, cache: Path) -> None:
    started = Started(tmp_path / "run", cache, *RAY, "max_steps=30")
    program = psutil.Process(started.process.pid)
    started.until(lambda: steps_trained(tmp_path / "run") >= 2, "two steps were trained")
    family = program.children(recursive=True)
    engine = named(program, "ray::EngineActor")
    assert engine is not None
    engine.kill()
    assert started.end() == 0, started.printed
    assert_balanced(tmp_path / "run", 30 * 4)
    faults = [text for (text,) in query(tmp_path / "run", "SELECT message FROM events WHERE kind = 'engine_died'")]
    assert len(faults) == 1
    assert "its process died" in faults[0]
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
    explorer = named(program, "ray::ExplorerActor" if launcher == RAY else "rljax.child")
    assert explorer is not None
    explorer.kill()
    assert started.end() == 1, started.printed
    lines = [line for line in started.printed.splitlines() if line.startswith("rljax:")]
    assert len(lines) == 1, started.printed
    assert "explorer explorer ended: " in lines[0]
    assert ("its process died" if launcher == RAY else "SIGKILL") in lines[0]
    assert_nothing_is_left(family)


@pytest.mark.parametrize("launcher", [RAY, ("launcher=local",)], ids=["actor", "child"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_explorer_apart_does_not_outlive_the_learner(
    launcher: tuple[str, ...], number: signal.Signals, tmp_path: Path, cache: Path
) -> None:
    started = Started(tmp_path / "run", cache, *launcher, APART, *LONG)
    started.until(lambda: steps_trained(tmp_path / "run") >= 1, "a step was trained")
    family = psutil.Process(started.process.pid).children(recursive=True)
    code = started.end(number)
    assert_nothing_is_left(family)
    if number == signal.SIGTERM:
        assert code == 0, started.printed
        assert query(tmp_path / "run", "SELECT count(*) FROM groups WHERE state = 'claimed'") == [(0,)]


@pytest.fixture
def address() -> Iterator[str]:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    cluster.add_node(num_cpus=2, resources={"second": 1})
    yield cluster.address
    assert all(node.any_processes_alive() for node in [cluster.head_node, *cluster.worker_nodes])
    cluster.shutdown()


def test_a_new_node_takes_an_explorer_that_joins_a_run(address: str, tmp_path: Path, cache: Path) -> None:
    """The trainer knows no cluster; the explorer joins one whose second node has room for its engine."""
    trainer = Started(tmp_path / "run", cache, "mode=train")
    there = ("mode=explore", "launcher=ray", f"ray.address={address}", "ray.engine_resources.second=1")
    explorer = Started(tmp_path / "run", cache, *there, "explorer.name=late")
    assert trainer.end() == 0, trainer.printed
    assert explorer.end() == 0, explorer.printed
    assert_balanced(tmp_path / "run", 6 * 4)
    assert explorer.printed == "explorer late: left; its open claims are handed back\n"
