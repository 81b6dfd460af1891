"""A learner of several hosts on a Ray cluster: one command starts them, and starts them again where one is lost."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from program import Started, assert_balanced, named, steps_trained
from ray.cluster_utils import Cluster

pytestmark = pytest.mark.ray

FEW = ("mode=both", "learner.mesh.fsdp=4", "learner.hosts.number=2", "observe.report=false", "eval_steps=none")


def test_a_host_and_then_a_node_are_lost_and_the_run_ends_all_the_same(
    cluster: Cluster, tmp_path: Path, cache: Path
) -> None:
    """Each host is on a node of its own, with the engine beside one. A third takes the place of one that is lost."""
    run_dir = tmp_path / "run"
    nodes = [cluster.add_node(num_cpus=2) for _ in range(2)]
    on_ray = ("launcher=ray", f"ray.address={cluster.address}")
    run = Started(run_dir, cache, *FEW, *on_ray, failpoint="agree:2")
    run.until(lambda: "restart 1 of 3" in run.printed and steps_trained(run_dir) >= 3, "a restart and three steps")
    hosts = [node for node in (cluster.head_node, *nodes) if _actor(node) is not None]
    assert len(hosts) == 2
    cluster.remove_node(next(node for node in nodes if node in hosts), allow_graceful=False)
    assert run.end() == 0, run.printed
    first, second = (line for line in run.printed.splitlines() if "start again" in line)
    assert first.startswith("rljax: host 1 (")
    assert "was ended by SIGKILL: all hosts start again" in first
    assert second.startswith("rljax: host ")  # by its supervisor or by Ray, whoever is first
    assert_balanced(run_dir, groups=24)


def _actor(node: object) -> psutil.Process | None:
    raylet = node.all_processes["raylet"][0].process  # type: ignore[attr-defined]
    return named(psutil.Process(raylet.pid), "HostActor")
