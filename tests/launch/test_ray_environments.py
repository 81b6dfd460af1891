"""Workers of environments as actors on the nodes of a cluster: what local workers are, and no less."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from rljax.config.load import load_config
from rljax.config.validate import ConfigError
from rljax.pipeline.assemble.workflows import _hosts
from rljax.rollout.environments.hosts import LoopHost, ProcessHost
from rljax.rollout.environments.session import EnvironmentDied, EnvironmentRaised, EnvironmentSpec

LAKE = str(Path(__file__).parents[2] / "configs" / "frozen_lake.py")
BAD = EnvironmentSpec("tests.rollout.environments.bad:Bad-v0")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "no_monitor": True})
    made.add_node(num_cpus=1, resources={"second": 4})
    # who has joined it before has said nothing of where our modules are
    ray.init(made.address, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": "/nowhere"}})
    yield made
    ray.shutdown()
    made.shutdown()


def hosts(tmp_path: Path, **keys: Any) -> Any:
    given = {"launcher": "ray", "rollout.env_place": "ray", "ray.env_worker_resources": {"second": 1.0}}
    config = load_config(LAKE, {**given, **keys})
    assert {env.place for env in config.environments.values()} == {"ray"}
    return _hosts(config, 2, tmp_path / "environments.log")["ray"]


async def does(host: ProcessHost, action: str) -> None:
    async with host.session(BAD) as session:
        await session.reset(0)
        await session.step(action)


async def walk(any_host: Any) -> list[str]:
    async with any_host.session(EnvironmentSpec("rljax/FrozenLake-v0", {"size": 4})) as session:
        seen = [await session.reset(5), await session.step("Left")]
    return [f"{o.text} {o.reward} {o.valid}" for o in seen]


def test_environments_compute_on_another_node_as_they_do_here(cluster: Cluster, tmp_path: Path) -> None:
    async def main() -> None:
        host = hosts(tmp_path)
        try:
            walks = await asyncio.gather(*(walk(host) for _ in range(3)))
            assert walks == [await walk(LoopHost())] * 3
            assert host.workers == 2, "two environments to a worker"
            actors = ray._private.state.actors().values()
            nodes = {actor["Address"]["NodeID"] for actor in actors if actor["State"] == "ALIVE"}
            (second,) = (node["NodeID"] for node in ray.nodes() if node["Resources"].get("second"))
            assert nodes == {second}
            with pytest.raises(EnvironmentRaised, match="the door is locked"):
                await does(host, "raise")
        finally:
            await host.close()

    asyncio.run(main())


def test_paths_begin_where_the_run_was_started(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(**keys: Any) -> str:
        host = hosts(tmp_path, **keys)
        try:
            async with host.session(BAD) as session:
                await session.reset(0)
                return str((await session.step("where")).text)
        finally:
            await host.close()

    monkeypatch.chdir(tmp_path)
    assert asyncio.run(main(**{"ray.runtime_env": {"env_vars": {"NUMBER": 7}}})) == str(tmp_path)
    monkeypatch.setattr(os, "getcwd", lambda: "/not/on/that/node")
    assert asyncio.run(main()) not in ("/not/on/that/node", str(tmp_path))


def test_the_death_of_an_actor_costs_its_own_environments_alone(cluster: Cluster, tmp_path: Path) -> None:
    async def main() -> None:
        host: ProcessHost = hosts(tmp_path)
        try:
            with pytest.raises(EnvironmentDied, match="environment worker in a Ray actor: it ended"):
                await does(host, "die")
            assert host.workers == 0
            assert await walk(host) == await walk(LoopHost()), "a fresh actor takes its place"
        finally:
            await host.close()
        assert host.workers == 0

    asyncio.run(main())


def test_without_a_cluster_workers_on_its_nodes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"rollout.env_place='ray': launcher=local joins no cluster; write launcher="):
        load_config(LAKE, {"rollout.env_place": "ray"})


def test_workers_may_be_asked_for_where_the_tags_ask_for_none(tmp_path: Path) -> None:
    config = load_config(LAKE, {"rollout.env_place": "process", "rollout.train_env_manager.max_env_num_per_worker": 2})
    assert config.custom_envs["FrozenLake"].place == "loop"
    assert config.environments["FrozenLake"].place == "process"
