"""Versions that an engine holds at once: which stay, and which go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sidecar.held import HeldVersions


def held_after(most: int, *loads: tuple[int, int]) -> tuple[list[int], list[list[str]]]:
    """What is held after these loads of (version, lineage), and what each of them dropped."""
    held = HeldVersions[str](most)
    dropped = [held.add(version, lineage, f"{version}-{lineage}") for version, lineage in loads]
    return list(held), dropped


def test_the_newest_stay() -> None:
    assert held_after(2, (0, 1), (1, 1), (2, 1)) == ([1, 2], [[], [], ["0-1"]])


def test_an_older_one_that_serves_stays_beside_them_until_a_newer_one_does() -> None:
    assert held_after(2, (4, 1), (5, 1), (3, 1)) == ([3, 4, 5], [[], [], []])
    assert held_after(2, (4, 1), (5, 1), (3, 1), (5, 1)) == ([4, 5], [[], [], [], ["5-1", "3-1"]])


def test_what_is_held_is_not_taken_again() -> None:
    held = HeldVersions[str](2)
    held.add(3, 1, "first")
    assert held.add(3, 1, "again") == ["again"]
    assert (held[3], held.serving, 3 in held, 4 in held) == ("first", 3, True, False)


def test_a_new_lineage_drops_what_it_replaces_and_what_was_lost() -> None:
    assert held_after(3, (2, 1), (3, 1), (4, 1), (3, 2)) == ([2, 3], [[], [], [], ["3-1", "4-1"]])


@given(st.integers(1, 4), st.lists(st.integers(0, 3), max_size=20))
def test_of_a_run_that_goes_on_the_last_ones_are_held(most: int, steps: list[int]) -> None:
    held, version, loaded = HeldVersions[int](most), 0, [0]
    held.add(0, 1, 0)
    for step in steps:  # a step of 0 loads the same again; an explorer may miss some
        version += step
        loaded.append(version)
        held.add(version, 1, version)
    assert list(held) == sorted(set(loaded))[-most:]


def test_an_older_version_of_an_earlier_lineage_drops_none_that_came_after() -> None:
    """Two versions of lineage 2, and then a validation of one that lineage 1 has left."""
    held = HeldVersions[str](3)
    for version, lineage in ((6, 2), (7, 2), (4, 1)):
        assert held.add(version, lineage, f"{version}-{lineage}") == []
    assert list(held) == [4, 6, 7]
