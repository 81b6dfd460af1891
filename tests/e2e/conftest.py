"""What the end-to-end tests share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Several processes that wait for each other: `program.LIMIT` and `lives.SECONDS` are what ends those that hang."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(2400))


@pytest.fixture(scope="session")
def cache() -> Path:
    """Compiled programs, shared by all the processes of all sessions."""
    return Path(os.environ["JAX_COMPILATION_CACHE_DIR"])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Somebody else's cluster, with room for one engine. Whoever joins it leaves it running. Like those before Ray 2.57
    it does not clean up what an actor has started. It starts no worker beforehand and no autoscaler: both would idle.
    Its workers have the priority of everybody else, not Ray's lower one: another test would starve them.
    """
    monkeypatch.setenv("RAY_process_group_cleanup_enabled", "0")
    monkeypatch.setenv("RAY_prestart_worker_first_driver", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "no_monitor": True})
    yield made
    assert all(node.any_processes_alive() for node in [made.head_node, *made.worker_nodes])
    made.shutdown()
