"""Lays out the run directory, and reports where it cannot be written."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljax.config.learner import OF_ONE_HOST
from rljax.config.load import publishable
from rljax.config.schema import Config
from rljax.config.validate import ConfigError
from rljax.ledger.backend import backend_of
from rljax.ledger.database import ledger_exists
from rljax.observe.atomic_write import atomic_path
from rljax.observe.report.data import flat
from sidecar.channels.versions import is_address


@dataclass(frozen=True)
class RunDir:
    """Paths inside ``root``."""

    root: Path

    @property
    def checkpoints(self) -> Path:
        """Learner states, by batches completed."""
        return self.root / "checkpoints"

    @property
    def weights(self) -> Path:
        """Published versions."""
        return self.root / "weights"

    @property
    def teachers(self) -> Path:
        """Answers of served teachers, by name and step."""
        return self.root / "teachers"

    def announced_path(self, published: str) -> str:
        """Returns a version's location as the ledger announces it: an address, or a path relative to the run."""
        return published if is_address(published) else str(Path(published).relative_to(self.root.absolute()))

    @property
    def config(self) -> Path:
        """The resolved config, as JSON."""
        return self.root / "config.json"

    @classmethod
    def at(cls, config: Config) -> RunDir:
        """Returns the directory that a config names, be it there or not."""
        return cls(Path(config.run_dir or "runs/unnamed"))

    @contextlib.contextmanager
    def sign(self) -> Iterator[str]:
        """Leaves a sign in the directory while the context lasts; yields its name, by which other hosts know the
        directory.
        """
        for left in self.root.glob(".hosts-*"):  # by a start that was killed
            left.unlink(missing_ok=True)
        path = self.root / f".hosts-{uuid.uuid4().hex}"
        path.write_bytes(b"")
        try:
            yield path.name
        finally:
            path.unlink(missing_ok=True)

    def is_seen(self, sign: str) -> bool:
        """Returns whether this is the directory in which that sign was left."""
        return (self.root / sign).exists()

    @classmethod
    def create(cls, config: Config) -> RunDir:
        """Creates the directory and checks that it can be written.

        Raises:
            ConfigError: it cannot be written.
        """
        run = cls.at(config)
        try:
            for path in (run.root, run.weights, run.checkpoints):
                path.mkdir(parents=True, exist_ok=True)
            probe = run.root / f".writable-{uuid.uuid4().hex}"
            probe.write_bytes(b"")
            probe.unlink()
        except FileExistsError as error:
            raise ConfigError(f"run_dir={run.root}: {error.filename} is a file; choose another run_dir") from error
        except OSError as error:
            reason = f"cannot be written ({error.strerror}); choose another run_dir or mend its permissions"
            raise ConfigError(f"run_dir={run.root}: {reason}") from error
        return run

    @classmethod
    @contextlib.contextmanager
    def created(cls, config: Config) -> Iterator[RunDir]:
        """Creates the directory as `create`; where the body raises, what was not there goes again, unless it holds a
        file.
        """
        run = cls.at(config)
        with removed_if_refused(run.weights, run.checkpoints, run.root, *run.root.parents):
            yield cls.create(config)

    @classmethod
    def existing(cls, config: Config) -> RunDir:
        """Returns the directory of a run that has begun.

        Raises:
            ConfigError: there is none.
            LedgerError: the ledger's server cannot be asked.
        """
        run = cls.at(config)
        if not ledger_exists(backend_of(config, run.root)):
            raise ConfigError(f"run_dir={run.root}: no run here; train first, or correct run_dir")
        return run

    @classmethod
    @contextlib.contextmanager
    def of_checkpoint(cls, config: Config) -> Iterator[RunDir]:
        """Yields the directory that holds ``config.checkpoint``; for ``initial``, which needs no run, as `created`.

        Raises:
            ConfigError: there is no run, or the directory cannot be written.
        """
        if config.checkpoint == "initial":
            with cls.created(config) as run:
                yield run
        else:
            yield cls.existing(config)

    def former_config(self, steps: int) -> Path:
        """Returns the path of the config that trained the first ``steps`` batches, where a resume changed it."""
        return self.root / f"config.step-{steps}.json"

    def changes(self, config: Config) -> list[str]:
        """Returns the differences of a config from the run's own, a line a key."""
        return _changes(_read(self.config), json.dumps(publishable(config)))

    def write_config(self, config: Config, steps: int, check: Callable[[], None]) -> list[str]:
        """Writes the resolved config of a learner that begins at ``steps``, without the ledger's password.

        Returns the differences from the previous config, a line a key, and keeps that one as `former_config`: the
        first of several, which has made a checkpoint. At step 0 there is nothing that it could explain.
        ``check`` is called before a file is replaced, and raises where another learner has taken over.
        """
        text = json.dumps(publishable(config), indent=2) + "\n"
        former = _read(self.config)
        changes = _changes(former, text)
        written = {self.config: text}
        if changes and steps and not self.former_config(steps).exists():
            written = {self.former_config(steps): former, **written}
        for path, content in written.items():
            with atomic_path(path) as draft:
                draft.write_text(content, encoding="utf-8")
                check()
        return changes


@contextlib.contextmanager
def removed_if_refused(*paths: Path) -> Iterator[None]:
    """Removes, where the body raises, those files and empty directories, in this order, that were not there before."""
    new = [path for path in paths if not path.exists()]
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for path in new:
                path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        raise


def _changes(former: str, text: str) -> list[str]:
    try:
        before, after = flat(json.loads(former)), flat(json.loads(text))
    except (ValueError, AttributeError):  # there is none, or a crash of the machine has torn it
        return []
    both = [(key, _format_value(before, key), _format_value(after, key)) for key in dict.fromkeys([*before, *after])]
    return [f"{key} {old} -> {new}" for key, old, new in both if old != new and key not in OF_ONE_HOST]


def _format_value(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key]) if key in values else "unset"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
