from __future__ import annotations

import contextlib
import gc
import importlib

import pytest

from sidecar.garbage import MADE, collected_seldom, uncollected_imports


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
    ("before", "within"),
    [((700, 11, 12), (MADE, 11, 12)), ((MADE + 1, 2, 3), (MADE + 1, 2, 3)), ((0, 10, 10), (0, 10, 10))],
)
def test_the_collector_looks_seldom_for_as_long_as_it_is_asked_to(
    before: tuple[int, int, int], within: tuple[int, int, int]
) -> None:
    real = gc.get_threshold()
    try:
        gc.set_threshold(*before)  # 0: never by itself
        with contextlib.suppress(ZeroDivisionError), collected_seldom():
            assert gc.get_threshold() == within
            raise ZeroDivisionError
        assert gc.get_threshold() == before
    finally:
        gc.set_threshold(*real)
