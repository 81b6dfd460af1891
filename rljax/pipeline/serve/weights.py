"""The weights that are served: a checkpoint, the model as it came, a published version, or the newest of a run.

A server reads the ledger and writes nothing into it: no run knows of its servers or waits for them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import shutil
from pathlib import Path

from rljax.config.schema import Config
from rljax.config.validate import ConfigError
from rljax.ledger import versions
from rljax.ledger.async_database import AsyncDatabase
from rljax.ledger.backend import backend_of
from rljax.ledger.compatibility import model_of
from rljax.ledger.database import Database
from rljax.ledger.versions import Announced
from rljax.pipeline.assemble.checkpoints import chosen_checkpoints
from rljax.pipeline.assemble.run import Model
from rljax.pipeline.evaluate import publish_checkpoint
from rljax.pipeline.run_dir import RunDir
from rljax.rollout.engine_pool import EnginePool
from rljax.weights.draft import Draft, scratch
from rljax.weights.publisher import PublishError
from sidecar.channels.chains import chain
from sidecar.channels.files import Files
from sidecar.channels.versions import VersionError, is_address
from sidecar.errors import first_line
from sidecar.protocol import WeightsGoneError, WeightUpdateError

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""Seconds between looks for a newer version."""


class CheckpointWeights:
    """A checkpoint's weights, published for the engines into a directory of their own."""

    def __init__(self, config: Config, run: RunDir, model: Model, directory: Path) -> None:
        """Writes them below ``directory``.

        Raises:
            ConfigError: there is no such checkpoint.
        """
        (steps,) = chosen_checkpoints(config, run)
        self._scratch = scratch(directory, "weights")
        try:
            self._announced = publish_checkpoint(config, run, model, steps, self._scratch.path)
        except BaseException:
            self.close()
            raise

    async def load(self, pool: EnginePool) -> None:
        """Loads them.

        Raises:
            WeightUpdateError, EngineError: the engines cannot.
        """
        await pool.load(self._announced)

    async def follow(self, pool: EnginePool) -> None:
        """Returns: a checkpoint is what it is."""

    def close(self) -> None:
        """Removes them."""
        self._scratch.delete()


class PublishedWeights:
    """A version that the ledger of a run announces: one of them, or the newest.

    Where none follows, its files are kept below a directory of the server's own: the run deletes what nobody needs, and
    an engine that takes another's place reads them again.
    """

    def __init__(self, config: Config, run: RunDir, model: Model, directory: Path) -> None:
        """Opens the ledger as it is; keeps files below ``directory``.

        Raises:
            ConfigError: the run has another model.
            LedgerError: it cannot be read.
        """
        self._follows = config.serve.follow
        wanted = config.serve.version
        self._version = None if wanted in (None, "newest") else int(wanted or 0)
        self._run = run
        self._scratch: Draft | None = None
        self._db = Database(backend_of(config, run.root), None)
        known = model_of(self._db)
        if known not in (None, model.fingerprint):
            self.close()
            raise ConfigError(
                f"model.path={config.model.path}: shape, vocabulary or end tokens of this model are not those of the "
                f"run in {run.root}; use the run's own model"
            )
        if not self._follows:
            self._scratch = scratch(directory, "weights")

    async def load(self, pool: EnginePool) -> None:
        """Loads the version.

        Raises:
            ConfigError: there is none, or it is no files.
            PublishError: it cannot be kept.
            WeightUpdateError, EngineError: the engines cannot load it.
        """
        for left in (2, 1, 0):
            found = await asyncio.to_thread(self._find)
            if found is None:
                which = "no version yet" if self._version is None else f"no version {self._version} any more, or yet"
                raise ConfigError(f"serve.version: the run has {which}; train first, or serve a checkpoint")
            usable = _of_files(found)
            try:
                kept = usable if self._scratch is None else await asyncio.to_thread(self._keep, usable)
                await pool.load(kept)
                return
            except WeightsGoneError:  # it was superseded while it was read: the next look finds its successor, or none
                if not left:
                    raise

    def _find(self) -> Announced | None:
        return versions.newest(self._db) if self._version is None else versions.find(self._db, self._version)

    async def follow(self, pool: EnginePool) -> None:
        """Loads each newer version, until cancelled. One that cannot be loaded is warned of, and passed over.

        Raises:
            EngineError: no engine is left.
            LedgerError: the ledger cannot be read any more.
        """
        if not self._follows:
            return
        ledger, refused = AsyncDatabase(self._db), pool.serving
        try:
            while True:
                newest = await ledger.call(versions.newest)
                if newest is not None and newest not in (pool.serving, refused):
                    try:
                        await pool.load(_of_files(newest))
                    except (WeightUpdateError, ConfigError) as error:
                        refused = newest
                        log.warning("version %d is not served: %s", newest.version, error)
                await ledger.notifier.wait_async(ledger.notifier.changes, LOOK_SECONDS)
        finally:
            await ledger.close()

    def close(self) -> None:
        """Closes the ledger, and removes what was kept."""
        self._db.close()
        if self._scratch is not None:
            self._scratch.delete()

    def _keep(self, announced: Announced) -> Announced:
        """Returns the version with files that the run does not delete.

        Raises:
            WeightsGoneError: it has been deleted.
            PublishError: there is no room.
        """
        assert self._scratch is not None
        source, target = self._run.root / announced.path, self._scratch.path / Path(announced.path).name
        try:
            changed, first = chain(Files(), str(source.absolute()))
            for link in (first, *changed):  # what a version was written against is kept beside it
                if not (kept := target.parent / Path(link.where).name).exists():
                    _keep_directory(Path(link.where), kept)
        except (OSError, VersionError) as error:
            if not source.exists():
                raise WeightsGoneError(f"version {announced.version} is not in {source} any more") from None
            reason = f"version {announced.version} cannot be kept in {target.parent}: {first_line(error)}"
            raise PublishError(f"{reason}; free disk space") from error
        return dataclasses.replace(announced, path=self._run.announced_path(str(target)))


def _keep_directory(source: Path, target: Path) -> None:
    try:
        shutil.copytree(source, target, copy_function=_link_or_copy)
    except OSError:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)  # a published file is never written again
    except OSError:  # it is on another file system, or this one has no links
        shutil.copyfile(source, target)


def _of_files(announced: Announced) -> Announced:
    if is_address(announced.path):
        raise ConfigError(
            f"version {announced.version} of this run is no files, and ends with its learner; serve a checkpoint, or "
            "train with sync_method=checkpoint"
        )
    return announced
