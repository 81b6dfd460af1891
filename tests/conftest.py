"""What tests of several rooms share."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
from hypothesis import settings

from rljax.algorithms import registry
from rljax.config import names
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
    monkeypatch.setattr(names, "_own", copy.deepcopy(names._own))
    monkeypatch.setattr(rewards, "_registered", dict(rewards._registered))
    for slot in (registry.advantages, registry.policy_losses, registry.aggregations, registry.filters):
        slot.names()  # the built-in ones are there, and stay
        for kept in ("_entries", "_needs"):
            monkeypatch.setattr(slot, kept, dict(getattr(slot, kept)))
