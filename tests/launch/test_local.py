"""An explorer in a thread, what its neighbours see while it ends; or in a process, what it is told of devices."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import jax
import pytest

from rljax.config.load import from_plain
from rljax.config.schema import ExplorerConfig, JudgeConfig, SidecarConfig
from rljax.config.validate import ConfigError
from rljax.config.validate_placement import shares_gpu_memory
from rljax.launch import explorer_thread
from rljax.launch.explorer_thread import ExplorerThread
from rljax.launch.local import LocalProcess
from rljax.pipeline.assemble.judges import places_of_judges
from rljax.pipeline.run_dir import RunDir
from sidecar.hosting.local import LocalEngineLauncher
from tests.config.making import make
from tests.waiting import HANGS


class EndsWhenAsked:
    """An explorer that ends over the first question for its gauges, and leaves that question open."""

    waiting_for = "credit"

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self.running = threading.Event()

    async def run(self) -> None:
        self.running.set()
        await self._asked.wait()

    def ran(self, begin: float, end: float, used: float) -> None:
        pass

    async def gauges(self) -> dict[str, float]:
        self._asked.set()
        await asyncio.Event().wait()
        return {}

    def stop(self) -> None:
        self._asked.set()


class NoWorkflows:
    def __init__(self) -> None:
        self.discarded = 0

    async def close(self) -> None: ...

    def discard(self) -> None:
        self.discarded += 1


def test_gauges_asked_for_while_the_explorer_ends_are_the_last_known_ones() -> None:
    explorer: Any = EndsWhenAsked()
    workflows: Any = NoWorkflows()
    db: Any = None
    thread = ExplorerThread(db, "e", explorer, workflows, LocalEngineLauncher(), needed=True)
    thread.start()
    assert explorer.running.wait(HANGS)
    assert thread.gauges() == {}
    thread.close()
    assert thread.error is None


def test_an_explorer_that_never_starts_leaves_no_workers_of_rewards() -> None:
    workflows = NoWorkflows()
    anything: Any = workflows
    nothing: Any = None
    thread = ExplorerThread(nothing, "e", nothing, anything, LocalEngineLauncher(), needed=True)
    thread.close()
    assert workflows.discarded == 1


def test_nor_does_one_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workflows = NoWorkflows()
    nothing: Any = None

    def fails(*_: Any) -> None:
        raise ValueError("no such taskset")

    monkeypatch.setattr(explorer_thread, "Workflows", lambda *_: workflows)
    monkeypatch.setattr(explorer_thread, "make_explorer", fails)
    launcher = LocalEngineLauncher()
    with pytest.raises(ValueError, match=r"^no such taskset$"):
        explorer_thread.explorer_thread(make(), RunDir(tmp_path), *[nothing] * 4, launcher, needed=True)
    assert workflows.discarded == 1


class Gpu:
    platform = "gpu"

    def __init__(self, id: int) -> None:
        self.id = id


@pytest.mark.parametrize(
    ("gpus", "sidecar", "named"),
    [
        (2, SidecarConfig(), "gpu:1"),
        (3, SidecarConfig(engine="vllm"), "gpu:1,2"),
        (1, SidecarConfig(colocate=True), "gpu:0"),
        (2, SidecarConfig(engine="vllm", colocate=True), "gpu:0"),
    ],
)
def test_an_explorers_process_is_told_its_engines_devices(
    gpus: int, sidecar: SidecarConfig, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not know the learner's: with a share of a GPU for each they may be the same."""
    there = [Gpu(i) for i in range(gpus)]
    monkeypatch.setattr(jax, "devices", lambda _=None: there)
    child = LocalProcess(make(explorer=ExplorerConfig(own_process=True), sidecar=sidecar), RunDir(tmp_path))
    told = from_plain(json.loads(child._config))
    assert (told.mode, told.sidecar.devices) == ("explore", named)
    assert shares_gpu_memory(told) == sidecar.colocate
    only_cpu = {"JAX_PLATFORMS": "cpu"} if sidecar.engine == "vllm" else {}
    assert child._environment == only_cpu, "JAX would take of a GPU, in a process that does not compute with it"


def test_an_explorers_process_is_told_the_learners_devices_where_it_has_judges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "devices", lambda _=None: [Gpu(i) for i in range(3)])
    apart, judges = ExplorerConfig(own_process=True), {"mine": JudgeConfig(path="small")}
    config = make(explorer=apart, sidecar=SidecarConfig(devices="gpu:2"), judges=judges)
    told = from_plain(json.loads(LocalProcess(config, RunDir(tmp_path))._config))
    assert (told.learner.devices, told.sidecar.devices) == ("gpu:0", "gpu:2")
    assert places_of_judges(told)["mine"].before.taken == {"gpu:0", "gpu:2"}


def test_one_gpu_is_not_shared_by_two_processes_that_were_given_no_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = [Gpu(0)]
    monkeypatch.setattr(jax, "devices", lambda _=None: there)
    with pytest.raises(ConfigError, match=r"or write sidecar\.colocate=true"):
        LocalProcess(make(explorer=ExplorerConfig(own_process=True)), RunDir(tmp_path))
