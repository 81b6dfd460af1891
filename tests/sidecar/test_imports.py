from __future__ import annotations

import gc
import importlib

import pytest

from sidecar.imports import uncollected_imports


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_rests_meanwhile_and_is_left_as_it_was_though_an_import_fails(was_enabled: bool) -> None:
    before, frozen = gc.isenabled(), gc.get_freeze_count()
    try:
        (gc.enable if was_enabled else gc.disable)()
        kept: list[list[int]] = [[]]
        with pytest.raises(ModuleNotFoundError), uncollected_imports():
            importlib.import_module("nobodys_module" if not gc.isenabled() else "gc")
        assert gc.isenabled() == was_enabled
        assert gc.get_freeze_count() > frozen
        assert not any(one is kept for one in gc.get_objects()), "what is there is passed over"
    finally:
        (gc.enable if before else gc.disable)()
