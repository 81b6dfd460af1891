"""Engines on a real cluster of two nodes of this machine, with GPUs that are only counted. It outlives everybody."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table

from rljax.config.load import load_config
from rljax.config.schema import Config
from rljax.config.validate import ConfigError
from rljax.launch.ray_alone import ClusterError
from rljax.launch.ray_cluster import RayCluster
from rljax.ledger.versions import Announced
from rljax.models.files import load_directory
from rljax.models.hf_names import to_hf
from rljax.pipeline.assemble.run import Model, open_model
from rljax.pipeline.run_dir import RunDir
from rljax.rollout.engine_pool import EnginePool
from rljax.weights.publisher import OrbaxPublisher
from sidecar.hosting.ray import RayEngineLauncher
from sidecar.hosting.spec import EngineSpec
from sidecar.protocol import EngineError, GenerateRequest, RequestError, SamplingParams, WeightUpdate, WeightUpdateError
from tests.rollout.heard import Heard
from tests.waiting import HANGS

SMALLEST = Path(__file__).parents[1] / "e2e" / "smallest.py"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    logged = os.environ.get("RAY_ADDRESS")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "num_gpus": 4, "no_monitor": True})
    made.add_node(num_cpus=2, num_gpus=0, resources={"second": 1})
    yield made
    made.shutdown()
    assert os.environ.get("RAY_ADDRESS") == logged


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def model(directory: Path) -> Model:
    config = load_config(str(SMALLEST), {"run_dir": str(directory)})
    return open_model(config, RunDir.create(config))


@pytest.fixture(scope="module")
def published(directory: Path, model: Model) -> WeightUpdate:
    architecture, params = load_directory(model.directory)
    tensors = {name: np.asarray(tensor) for name, tensor in to_hf(params, architecture).items()}
    path = OrbaxPublisher(directory / "weights").publish(0, 1, tensors, model="tiny", dtype="fp32")
    return WeightUpdate(0, 1, str(path))


def configured(cluster: Cluster, **overrides: Any) -> Config:
    chosen = {"launcher": "ray", "ray.address": cluster.address, "sidecar.devices": "cpu"}
    return load_config(str(SMALLEST), chosen | overrides)


def spec(model: Model, index: int = 0) -> EngineSpec:
    arguments = {"model": str(model.directory), "slots": 4, "max_length": 2048, "decode_steps": 4, "dtype": "fp32"}
    return EngineSpec(f"engine {index}", index, "rljax.sampler.hosted:open_engine", arguments, {"JAX_PLATFORMS": "cpu"})


@contextlib.asynccontextmanager
async def at_home(config: Config) -> AsyncIterator[RayEngineLauncher]:
    with contextlib.closing(RayCluster(config)) as joined:
        engine_launcher = RayEngineLauncher(joined.place("cpu"))
        with contextlib.closing(engine_launcher):
            yield engine_launcher
    assert not joined.started


def request(name: str, tokens: int = 8, prompt: int = 3, **given: Any) -> GenerateRequest:
    return GenerateRequest(
        name, np.arange(1, prompt + 1, dtype=np.int32), SamplingParams(max_new_tokens=tokens, **given)
    )


def test_an_engine_in_an_actor_is_the_engine(
    cluster: Cluster, model: Model, published: WeightUpdate, monkeypatch: pytest.MonkeyPatch
) -> None:
    actors: list[psutil.Process] = []
    requests = [request(f"r{seed}", seed=seed, prompt=2 + seed) for seed in range(6)]

    async def main() -> None:
        local = spec(model).open(None)
        await local.update_weights(published)
        async with at_home(configured(cluster)) as engine_launcher:
            engine = await engine_launcher.start(spec(model))
            with pytest.raises(WeightUpdateError, match="did not load version 7"):
                await engine.update_weights(WeightUpdate(7, 1, "/nowhere"))
            await engine.update_weights(published)
            for one in requests:
                here, there = await local.generate(one), await engine.generate(one)
                np.testing.assert_array_equal(here.token_ids, there.token_ids)
                np.testing.assert_allclose(here.logprobs, there.logprobs, atol=1e-5)
                assert (there.finish_reason, there.versions.tolist()) == (here.finish_reason, here.versions.tolist())
            ids = np.asarray([1, 2, 3, 4], np.int32)
            np.testing.assert_allclose(await engine.score(ids), await local.score(ids), atol=1e-5)
            with pytest.raises(RequestError, match="exceed the engine's context of 2048"):
                await engine.generate(request("long", 2046))
            cancelled = asyncio.ensure_future(engine.generate(request("endless", 2000)))
            await until(engine, running=1)
            cancelled.cancel()
            await until(engine, running=0)
            actors.append(psutil.Process(await engine.pid()))
            with monkeypatch.context() as patched:  # a kill arrives in its own time
                real, loop = ray.kill, asyncio.get_running_loop()
                patched.setattr(ray, "kill", lambda actor: loop.call_later(0.5, real, actor))
                await engine.close()
            with pytest.raises(EngineError, match="engine 0: its actor is gone"):
                await engine.status()
            await engine.close()
        await local.close()

    asyncio.run(main())
    ended, alive = psutil.wait_procs(actors, timeout=HANGS)  # Ray ends it in its own time
    assert (len(ended), alive) == (1, [])


async def until(engine: Any, running: int) -> None:
    async with asyncio.timeout(60):
        while (await engine.status()).running != running:  # noqa: ASYNC110 (the state of another process)
            await asyncio.sleep(0.01)


def test_what_cannot_be_made_there_says_why(cluster: Cluster, model: Model) -> None:
    async def main() -> None:
        async with at_home(configured(cluster)) as engine_launcher:
            with pytest.raises(EngineError, match=r"engine 0 did not start: .*nowhere"):
                await engine_launcher.start(EngineSpec("engine 0", 0, "rljax.nowhere:open"))

    asyncio.run(main())


def test_requests_of_a_killed_worker_are_answered_by_its_successor(
    cluster: Cluster, model: Model, published: WeightUpdate, directory: Path
) -> None:
    faults: list[str] = []
    pids: list[tuple[int, int]] = []

    async def main() -> None:
        async with at_home(configured(cluster, **{"sidecar.num_engines": 2})) as engine_launcher:

            async def start(index: int) -> Any:
                engine = await engine_launcher.start(spec(model, index))
                pids.append((index, await engine.pid()))
                return engine

            pool = EnginePool(start, 2, directory, Heard(lambda _, message: faults.append(message)))
            await pool.start()
            await pool.load(Announced(0, 1, "weights/v0-1"))
            asked = [asyncio.ensure_future(pool.generate(request(f"r{i}", 500, seed=i), 1)) for i in range(4)]
            while (await pool.gauges())["running"] < 4 and not any(one.done() for one in asked):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            os.kill(dict(pids)[0], signal.SIGKILL)
            async with asyncio.timeout(120):
                done = await asyncio.gather(*asked)
                while len(pids) < 3:  # noqa: ASYNC110 (the other engine may be through before the successor is there)
                    await asyncio.sleep(0.01)
            assert [len(one.token_ids) for one in done] == [500] * 4
            await pool.close()

    asyncio.run(main())
    assert len(pids) == 3, "the dead engine's place was free for its successor"
    (said,) = set(faults)
    assert said.startswith("engine 0: engine 0: its process died: Worker unexpectedly exits")
    assert "\n" not in said


def test_a_new_nodes_resources_take_an_explorers_engines_there_and_are_given_back(cluster: Cluster) -> None:
    with contextlib.closing(
        RayCluster(configured(cluster, **{"ray.engine_resources": {"second": 1}, "mode": "explore"}))
    ) as joined:
        placement = joined.place("cpu")
        second = next(node["NodeID"] for node in ray.nodes() if "second" in node["Resources"])
        home = ray.get_runtime_context().get_node_id()
        assert placement_group_table(placement.group)["bundles_to_node_id"] == {0: home, 1: second}
    assert not ray.is_initialized()
    with contextlib.closing(RayCluster(configured(cluster))):
        states = {group["state"] for group in placement_group_table().values()}
        assert states == {"REMOVED"}, "the cluster goes on, and holds nothing of ours"


class Shows:
    """What an engine's process sees of accelerators, as an engine."""

    async def status(self) -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]


def open_shows(name: str) -> Any:
    return Shows()


def shows(index: int) -> EngineSpec:
    path = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parent)])}
    return EngineSpec(f"e{index}", index, "test_ray_cluster:open_shows", environment=path)


@pytest.mark.parametrize(("devices", "seen"), [("gpu:3,1", ["1", "3"]), ("auto", ["2", "3"])])
def test_engines_see_the_accelerators_that_the_config_names_and_never_the_learners(
    cluster: Cluster, devices: str, seen: list[str]
) -> None:
    learner = {"learner.devices": "gpu:0,2" if devices != "auto" else "auto", "learner.mesh.fsdp": 2}
    config = configured(cluster, **{**learner, "sidecar.devices": devices, "sidecar.num_engines": 2})

    async def main() -> list[Any]:
        with contextlib.closing(RayCluster(config)) as joined:
            engine_launcher = RayEngineLauncher(joined.place("gpu"))
            return [await (await engine_launcher.start(shows(i))).status() for i in range(2)]

    assert sorted(asyncio.run(main())) == seen


def test_a_learner_alone_computes_on_what_ray_sets_aside_and_explorers_get_the_rest(cluster: Cluster) -> None:
    two = {"learner.mesh.fsdp": 2, "sidecar.devices": "auto"}
    explorer = {**two, "mode": "explore", "ray.placement_timeout": 1.0}

    async def seen(engines: int) -> list[Any]:
        config = configured(cluster, **explorer, **{"sidecar.num_engines": engines})
        with contextlib.closing(RayCluster(config)) as joined:
            engine_launcher = RayEngineLauncher(joined.place("cpu"))
            return [await (await engine_launcher.start(shows(i))).status() for i in range(engines)]

    with contextlib.closing(RayCluster(configured(cluster, **two, mode="train"))) as trainers:
        reserved = trainers.place_learner("gpu")
        mine = reserved.removeprefix("gpu:").split(",")
        assert len(mine) == 2
        assert sorted([*mine, *asyncio.run(seen(2))]) == ["0", "1", "2", "3"]
        with pytest.raises(ClusterError, match="no room on the cluster within 1 s: asked for 3 CPU, 3 GPU"):
            asyncio.run(seen(3))
        taken = configured(cluster, **two, **{"mode": "train", "learner.devices": reserved})
        with (
            contextlib.closing(RayCluster(taken)) as second,
            pytest.raises(ConfigError, match=rf"learner\.devices='{reserved}': on this cluster Ray sets gpu:.* aside"),
        ):
            second.place_learner("gpu")


def test_a_cluster_without_room_is_one_line(cluster: Cluster) -> None:
    crowd = configured(cluster, **{"sidecar.num_engines": 50, "ray.placement_timeout": 1.0})
    with contextlib.closing(RayCluster(crowd)) as joined, pytest.raises(ClusterError) as info:
        joined.place("cpu")
    assert "no room on the cluster within 1 s: asked for 50 CPU in 51 bundles; the cluster has 6 CPU, 4 GPU" in str(
        info.value
    )
    assert "\n" not in str(info.value)


def test_a_cluster_of_another_version_is_one_line(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "__version__", "2.50.1")
    with pytest.raises(ClusterError, match=r"it runs Ray 2\.\S+ on Python 3\.\S+, this process Ray 2.50.1") as info:
        RayCluster(configured(cluster))
    assert "\n" not in str(info.value)
    assert not ray.is_initialized()


def test_an_address_where_nobody_answers_and_one_that_is_none(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ClusterError, match=r"no Ray cluster answers at 127\.0\.0\.1:1 .*ray start --head"):
        RayCluster(configured(cluster, **{"ray.address": "127.0.0.1:1"}))
    monkeypatch.setenv("RAY_ADDRESS", "ray://somewhere:10001")
    with pytest.raises(ConfigError, match=r"ray\.address='ray://somewhere:10001': write HOST:PORT"):
        RayCluster(configured(cluster, **{"ray.address": "auto"}))
