"""Versions that are written beside the next step: real ledger and files; when a write goes on is the test's to say."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.config.load import load_config
from rljax.config.schema import Config, TasksConfig, TasksetConfig
from rljax.learner.learner import Learner
from rljax.ledger import leases, processes, versions
from rljax.ledger.database import Database, StaleWriterError
from rljax.ledger.run_spec import RunSpec
from rljax.ledger.sqlite import SqliteFile
from rljax.pipeline.publishing import Named, Publishing
from rljax.pipeline.run_dir import RunDir
from rljax.run import Run
from rljax.weights.memory import MemoryPublisher
from rljax.weights.publisher import OrbaxPublisher, PublishError
from sidecar.channels.files import read_version
from sidecar.channels.versions import VersionGoneError, receive
from tests.waiting import HANGS

CONFIG = Config(
    rollout_batch_size=16,
    group_size=8,
    tasks=TasksConfig(train={"digits": TasksetConfig(source="reverse_digits", rewards=("digits",))}),
)
SMALLEST = Path(__file__).parents[1] / "e2e" / "smallest.py"
PROBE = np.float32([-1.0, -2.0])


class Gated(OrbaxPublisher):
    """Writes a version once it may."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.may = threading.Event()

    def publish(self, *args: Any, **kwargs: Any) -> str:
        assert self.may.wait(HANGS)
        return super().publish(*args, **kwargs)


class Kept(MemoryPublisher):
    """Keeps a version in memory, and then waits until it may be announced."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, adopted=True)
        self.kept, self.may = threading.Event(), threading.Event()

    def publish(self, *args: Any, **kwargs: Any) -> str:
        path = super().publish(*args, **kwargs)
        self.kept.set()
        assert self.may.wait(HANGS)
        return path


class Lab:
    """The learner's end."""

    def __init__(self, root: Path, publisher: Callable[[Path], Any] = Gated, **keys: Any) -> None:
        config = Config(run_dir=str(root), tasks=CONFIG.tasks, rollout_batch_size=16, group_size=8, **keys)
        self.run = RunDir.create(config)
        self.db = Database(SqliteFile(root / "ledger.db"), RunSpec.of(CONFIG))
        self.lineage = leases.begin_lineage(self.db, 0)
        self.publisher = publisher(self.run.weights)
        observers: Any = SimpleNamespace(recorded=lambda *_: contextlib.nullcontext())
        self.publishing = Publishing(config, self.db, self.run, self.publisher, observers)

    def begin(self, version: int) -> None:
        tensors = {"w": jnp.full((2, 3), float(version))}
        named = Named(version, self.lineage, "tiny", "fp32", None)
        self.publishing.begin(named, tensors, PROBE, validate=version == 1)
        tensors["w"] = jnp.full((2, 3), -1.0)  # what a tensor is that is only read when the learner has gone on

    def announced(self) -> int | None:
        newest = versions.newest(self.db)
        return newest and newest.version


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path / "run")
    yield made
    made.publisher.may.set()
    made.db.close()


def test_nothing_is_announced_before_it_is_whole_and_then_it_is_with_its_probe(lab: Lab) -> None:
    lab.begin(0)
    lab.publishing.check()  # it is under way: no failure, and nobody waits
    assert lab.announced() is None
    assert not list(lab.run.weights.iterdir())
    lab.publisher.may.set()
    lab.publishing.wait()
    newest = versions.newest(lab.db)
    assert newest is not None
    assert np.array_equal(newest.probe, PROBE)
    assert read_version(lab.run.root / newest.path).tensors["w"].tolist() == [[0.0] * 3] * 2
    assert lab.publishing.metrics["publish/seconds"] > 0.0
    assert lab.publishing.metrics["publish/version"] == 0.0


def test_room_is_made_of_what_engines_have_left_and_never_of_what_is_under_way(tmp_path: Path) -> None:
    """The batch that a version's step waits for may be there before the ledger names the version."""
    lab = Lab(tmp_path / "run", Kept)
    lab.begin(0)
    assert lab.publisher.kept.wait(HANGS)
    lab.publishing.make_room(lab.lineage)
    lab.publisher.may.set()
    lab.publishing.wait()
    first = versions.newest(lab.db)
    assert first is not None
    assert receive(first.path).tensors["w"].tolist() == [[0.0] * 3] * 2
    token = processes.register(lab.db, "explorer", "explorer")
    paths = [first.path]
    for version in (2, 3):
        processes.heartbeat(lab.db, "explorer", token, version=0)
        lab.begin(version)
        lab.publishing.wait()
        newest = versions.newest(lab.db)
        assert newest is not None
        assert newest.version == version
        paths.append(newest.path)
    lab.publishing.make_room(lab.lineage)
    assert receive(paths[0]), "an engine computes with it"
    processes.heartbeat(lab.db, "explorer", token, version=3)
    assert receive(paths[0])
    lab.publishing.make_room(lab.lineage)
    assert receive(paths[2]).tensors["w"].tolist() == [[3.0] * 3] * 2
    for path in paths[:2]:
        with pytest.raises(VersionGoneError):
            receive(path)
    lab.begin(4)
    lab.publishing.wait()
    assert receive(paths[2]), "the explorer has it still"
    processes.heartbeat(lab.db, "explorer", token, version=4)
    lab.publisher.may.clear()
    lab.begin(5)
    with pytest.raises(VersionGoneError):
        receive(paths[2])
    lab.publisher.may.set()
    lab.publishing.wait()
    lab.db.close()


def test_versions_that_the_ledger_no_longer_names_are_withdrawn(lab: Lab) -> None:
    lab.publisher.may.set()
    for version in (0, 2, 3, 4):
        lab.publishing.wait()
        lab.begin(version)
    lab.publishing.wait()
    assert lab.publisher.published() == [(3, 1), (4, 1)]


def test_what_was_handed_over_is_not_what_the_next_update_makes_of_it(tmp_path: Path) -> None:
    """The arrays of an export are let go, and those of the state are given away, while the version is still written."""
    state: dict[str, jax.Array] = {}

    class Export(dict[str, Any]):
        """Makes a tensor of the state as it is read."""

        def __getitem__(self, name: str) -> jax.Array:
            return jax.jit(jnp.copy)(state[name])

        def values(self) -> Any:
            return [self[name] for name in self]

    for publisher in (OrbaxPublisher(tmp_path), MemoryPublisher(tmp_path)):
        state["w"] = jnp.arange(3.0)
        taken = publisher.take(Export(w=None))
        state["w"] = jax.jit(lambda x: x + 1, donate_argnums=0)(state["w"])
        path = publisher.publish(1, 1, taken, model="", dtype="fp32")
        assert receive(path).tensors["w"].tolist() == [0.0, 1.0, 2.0]


def test_a_failure_reaches_the_learner_and_wakes_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> str:
        raise PublishError("version 0 cannot be published: no space left")

    monkeypatch.setattr(lab.publisher, "publish", full)
    seen = lab.db.notifier.changes
    lab.begin(0)
    lab.db.notifier.wait(seen, HANGS)
    with pytest.raises(PublishError, match="no space left"):
        lab.publishing.check()
    assert lab.announced() is None
    lab.publishing.wait()  # it is told once


def test_a_replaced_learner_announces_nothing_and_removes_what_it_wrote(lab: Lab) -> None:
    lab.begin(0)
    assert leases.begin_lineage(lab.db, 0) == 2
    lab.publisher.may.set()
    with pytest.raises(StaleWriterError):
        lab.publishing.wait()
    assert lab.announced() is None
    assert not list(lab.run.weights.iterdir())


def test_a_disk_that_hangs_is_named_and_waited_for_once(lab: Lab) -> None:
    lab.publishing._patience = 0.0
    lab.begin(3)
    assert lab.publishing.unannounced().startswith("; version 3 has been on its way to ")
    named = r"waited 0 s for version 3 to be written and announced; .*weights lies on"
    with pytest.raises(TimeoutError, match=named), lab.publishing:
        lab.publishing.wait()
    assert lab.publishing.unannounced() == ""


def test_of_two_failures_the_first_is_raised_and_the_other_logged(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lab.publisher, "publish", _raiser(PublishError("disk full")))
    trains = _raiser(ValueError("first"))
    lab.begin(2)
    with caplog.at_level(logging.WARNING), pytest.raises(ValueError, match="first"), lab.publishing:
        trains()
    assert caplog.messages == ["version 2 is not published: disk full"]


def test_one_that_is_under_way_at_the_end_is_waited_for_and_its_failure_raised(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab.publisher, "publish", _raiser(PublishError("disk full")))
    with pytest.raises(PublishError, match="disk full"), lab.publishing:
        lab.begin(2)


def test_without_room_for_a_copy_the_line_says_what_to_set(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab.publisher, "take", _raiser(RuntimeError("RESOURCE_EXHAUSTED: 9 GiB")))
    with pytest.raises(
        PublishError,
        match=r"version 1 cannot be kept beside the next step: .*; .*sync_overlap=false, or cut",
    ):
        lab.begin(1)


def test_without_overlap_it_is_announced_when_the_learner_goes_on(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "run", sync_overlap=False)
    lab.publisher.may.set()
    lab.begin(0)
    assert lab.announced() == 0
    lab.db.close()


def _raiser(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


@pytest.mark.slow
def test_the_next_step_trains_while_a_version_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 1 is not written before step 1 has been trained: a learner that waited for it would never get there."""
    trained, train, publish = threading.Event(), Learner.train, OrbaxPublisher.publish

    def trains(self: Learner, *args: Any, **kwargs: Any) -> dict[str, float]:
        metrics = train(self, *args, **kwargs)
        if self.steps == 2:
            trained.set()
        return metrics

    def publishes(self: OrbaxPublisher, version: int, *args: Any, **kwargs: Any) -> str:
        assert version != 1 or trained.wait(HANGS)
        return publish(self, version, *args, **kwargs)

    monkeypatch.setattr(Learner, "train", trains)
    monkeypatch.setattr(OrbaxPublisher, "publish", publishes)
    keys = {"run_dir": str(tmp_path / "run"), "max_steps": 4, "async_generation_ratio": 1.0, "eval_steps": None}
    with Run(load_config(str(SMALLEST), keys)) as run:
        rows = list(run)
        audit = run.audit()
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert audit["balanced"]
    assert audit["trained_twice"] == 0
    assert max(row["staleness/max"] for row in rows) <= 1
    assert rows[-1]["publish/seconds"] > 0.0
