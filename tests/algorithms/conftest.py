"""What tests of algorithms share."""

from __future__ import annotations

import pytest

from rljax.algorithms import registry


@pytest.fixture
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes out again what a test registers: other tests ask what there is."""
    for slot in (registry.advantages, registry.policy_losses, registry.filters):
        slot.names()  # the built-in ones are there, and stay
        for kept in ("_entries", "_needs"):
            monkeypatch.setattr(slot, kept, dict(getattr(slot, kept)))
