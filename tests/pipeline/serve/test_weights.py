"""Which weights are served, and what is refused of them, before an engine is asked."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from rljax.config.schema import ServeConfig
from rljax.config.validate import ConfigError
from rljax.ledger import versions
from rljax.ledger.compatibility import check_model
from rljax.pipeline.serve.weights import CheckpointWeights, PublishedWeights
from tests.pipeline.serve.lab import Versions, config_of

NO_POOL: Any = None


def loaded(run: Versions, **serve: Any) -> None:
    config = dataclasses.replace(run.config, serve=ServeConfig(**serve))
    weights = PublishedWeights(config, run.run, run.model)
    try:
        asyncio.run(weights.load(NO_POOL))
    finally:
        weights.close()


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


def test_reading_the_ledger_changes_nothing_in_it(tmp_path: Path) -> None:
    run = Versions(config_of(tmp_path / "run", max_steps=6))
    longer = dataclasses.replace(run.config, max_steps=60, serve=ServeConfig(follow=True))
    before = run.db.read(lambda tx: [tuple(row) for row in tx.execute(_everything())])
    PublishedWeights(longer, run.run, run.model).close()
    assert run.db.read(lambda tx: [tuple(row) for row in tx.execute(_everything())]) == before


def _everything() -> Any:
    from sqlalchemy import select

    from rljax.ledger import schema

    return select(schema.run)
