"""Which weights are served, and what is refused of them, before an engine is asked."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from sqlalchemy import select

from rljax.config.schema import ServeConfig
from rljax.config.validate import ConfigError
from rljax.ledger import schema, versions
from rljax.ledger.compatibility import check_model
from rljax.pipeline.serve.weights import CheckpointWeights, PublishedWeights
from rljax.weights.deltas import DeltaPublisher
from sidecar.channels.files import read_version
from sidecar.protocol import WeightsGoneError
from tests.pipeline.serve.lab import Served, Versions, config_of

NO_POOL: Any = None


def loaded(run: Versions, **serve: Any) -> None:
    config = dataclasses.replace(run.config, serve=ServeConfig(**serve))
    weights = PublishedWeights(config, run.run, run.model, run.run.root / "serve")
    try:
        asyncio.run(weights.load(NO_POOL))
    finally:
        weights.close()
    assert not list(run.run.root.glob("serve/weights-*"))


def test_what_a_run_has_not_published_is_refused(tmp_path: Path) -> None:
    run = Versions(config_of(tmp_path / "run"))
    for serve in ({"follow": True}, {"version": "newest"}):
        with pytest.raises(ConfigError, match=r"^serve\.version: the run has no version yet; train first"):
            loaded(run, **serve)
    versions.announce(run.db, 0, 0, "memory://1234/0")
    with pytest.raises(ConfigError, match=r"^serve\.version: the run has no version 7 any more, or yet"):
        loaded(run, version="7")
    with pytest.raises(ConfigError, match=r"^version 0 of this run is no files, and ends with its learner"):
        loaded(run, version="0")


def test_a_version_whose_files_are_gone_is_refused(tmp_path: Path) -> None:
    run = Versions(config_of(tmp_path / "run"))
    versions.announce(run.db, 0, 0, "weights/v0-0")
    with pytest.raises(WeightsGoneError, match=r"^version 0 is not in .*/weights/v0-0 any more$"):
        loaded(run, version="0")


def test_what_a_version_was_written_against_is_kept_with_it(tmp_path: Path) -> None:
    run = Versions(config_of(tmp_path / "run"))
    publisher, tensors = DeltaPublisher(run.run.weights, most=8), {"a": np.zeros((32, 32), ml_dtypes.bfloat16)}
    for version in range(3):
        tensors = {"a": tensors["a"].copy()}
        tensors["a"][version] = version + 1
        publisher.publish(version, 0, tensors, model="", dtype="bf16")
    versions.announce(run.db, 0, 2, "weights/v2-0")

    class Late:
        """Loads as an engine does that takes another's place, when the run has deleted what nobody needs."""

        async def load(self, announced: versions.Announced) -> None:
            publisher.prune((), 0)
            self.found = read_version(run.run.root / announced.path).tensors["a"]

    pool: Any = Late()
    weights = PublishedWeights(
        dataclasses.replace(run.config, serve=ServeConfig(version="2")), run.run, run.model, run.run.root / "serve"
    )
    try:
        asyncio.run(weights.load(pool))
    finally:
        weights.close()
    assert not list(run.run.weights.iterdir())
    np.testing.assert_array_equal(pool.found, tensors["a"])


def test_a_run_with_another_model_is_not_followed(tmp_path: Path) -> None:
    run = Versions(config_of(tmp_path / "run"))
    check_model(run.db, "another model", "elsewhere")
    with pytest.raises(ConfigError, match=r"^model\.path=tiny: shape, vocabulary or end tokens of this model are not"):
        loaded(run, version="newest")


def test_a_checkpoint_that_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    run = Versions(config_of(tmp_path / "run", checkpoint="3"))
    with pytest.raises(ConfigError, match="checkpoint=3: write latest"):
        CheckpointWeights(run.config, run.run, run.model, tmp_path)
    assert not list(tmp_path.glob("weights-*"))


def test_what_killed_servers_have_left_is_removed_and_nothing_of_those_that_live(tmp_path: Path) -> None:
    run = Versions(config_of(tmp_path / "run", checkpoint="initial"))
    serve = run.run.root / "serve"
    (serve / "weights-former" / "v0-0").mkdir(parents=True)
    (serve / "key").touch()
    one = CheckpointWeights(run.config, run.run, run.model, serve)
    (of_one,) = serve.glob("weights-*")
    assert list(of_one.glob("v0-0/*"))
    other = CheckpointWeights(run.config, run.run, run.model, serve)
    assert len(list(serve.glob("weights-*/v0-0"))) == 2
    one.close()
    assert not of_one.exists()
    other.close()
    assert [path.name for path in serve.iterdir()] == ["key"]


@pytest.mark.slow
def test_to_load_and_to_follow_changes_nothing_in_the_ledger(tmp_path: Path) -> None:
    run = Versions(config_of(tmp_path / "run", max_steps=6))
    run.announce()
    before = everything(run)
    served = Served(config_of(tmp_path / "run", max_steps=60, **{"serve.follow": True}), run)
    try:
        served.client().completions.create(model="tiny", prompt="ab", max_tokens=2)
        assert everything(run) == before
        run.announce()
        before = everything(run)
        served.until(lambda: served.service.pool.serving.version == 1, "version 1 to be served")
        served.client().completions.create(model="tiny", prompt="ab", max_tokens=2)
    finally:
        served.close()
    assert everything(run) == before
    run.db.close()


def everything(run: Versions) -> dict[str, list[tuple[Any, ...]]]:
    tables = schema.metadata.sorted_tables
    return run.db.read(lambda tx: {t.name: [tuple(row) for row in tx.execute(select(t))] for t in tables})
