from __future__ import annotations

import gc
import importlib
import sys

import pytest

from sidecar.garbage import FULL, collect_seldom, uncollected_imports


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


@pytest.mark.parametrize(
    ("before", "after"), [((700, 11, 12), FULL), ((700, 11, FULL + 1), FULL + 1), ((0, 1, 2), FULL)]
)
def test_all_objects_are_gone_through_seldom_and_the_young_as_often_as_before(
    before: tuple[int, int, int], after: int
) -> None:
    real = gc.get_threshold()
    try:
        gc.set_threshold(*before)
        collect_seldom()
        youngest, middle, oldest = gc.get_threshold()
        assert (youngest, middle) == before[:2]
        assert oldest == after or sys.version_info >= (3, 14)  # where there is no such generation
    finally:
        gc.set_threshold(*real)
