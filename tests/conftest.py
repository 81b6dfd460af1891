"""What tests of several rooms share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from rljax.algorithms import registry
from rljax.config.names import Registry
from rljax.tasks.rewards import registry as rewards
from tests import postgres

if settings.get_current_profile_name() == "default":  # a list of planted bugs brings its own
    settings.register_profile("rljax", deadline=None)  # on a busy machine any example may take long
    settings.load_profile("rljax")


@pytest.fixture(scope="session")
def server() -> Iterator[postgres.Server]:
    """A PostgreSQL server; it fails, and says what to install, where there is none."""
    with postgres.running() as started:
        yield started


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes out again what a test registers: others, of whatever file, ask what there is."""
    monkeypatch.setattr(rewards, "_registered", dict(rewards._registered))
    for slot in {one for one in vars(registry).values() if isinstance(one, Registry)}:
        monkeypatch.setattr(slot, "_own", dict(slot._own))
