"""Which versions a successor loads before the newest, and of which it then serves whoever is pinned to them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from rljax.ledger.announced import Announced
from rljax.rollout.recent_versions import RecentVersions
from sidecar.protocol import WeightsGoneError


def version(number: int, lineage: int = 1) -> Announced:
    return Announced(number, lineage, f"weights/v{number}-{lineage}")


def loaded(recent: RecentVersions, newest: Announced, gone: Collection[int] = ()) -> tuple[list[int], int | None]:
    """The versions that were asked for, and that from which on all are there."""
    asked: list[int] = []

    async def load(announced: Announced) -> None:
        asked.append(announced.version)
        if announced.version in gone:
            raise WeightsGoneError(f"version {announced.version} is not there")

    since = asyncio.run(recent.load_before(newest, load))
    return asked, None if since is None else since.version


def known(most: int, *versions: Announced) -> RecentVersions:
    recent = RecentVersions(most)
    for one in versions:
        recent.add(one)
    return recent


def test_the_oldest_comes_first_and_a_gap_counts_for_all_before_it() -> None:
    recent = known(3, *map(version, range(5)))
    assert loaded(recent, version(5)) == ([2, 3, 4], 2)
    assert loaded(recent, version(5), gone={2}) == ([2, 3, 4], 3)
    assert loaded(recent, version(5), gone={3}) == ([2, 3, 4], 4)
    assert loaded(recent, version(5), gone={4}) == ([2, 3, 4], None)
    assert loaded(recent, version(4)) == ([2, 3], 2), "the newest comes after them"


def test_an_engine_that_holds_one_version_is_given_no_other() -> None:
    assert loaded(known(0, version(1), version(2)), version(3)) == ([], None)
    assert loaded(known(1, version(1), version(2)), version(3)) == ([], None)


def test_what_a_new_lineage_has_lost_is_not_loaded() -> None:
    recent = known(4, version(1), version(2), version(3), version(2, lineage=2))
    assert loaded(recent, version(4, lineage=2)) == ([1, 2], 1)


def test_a_version_that_is_validated_late_is_in_its_place() -> None:
    assert loaded(known(4, version(2), version(4), version(3)), version(5)) == ([2, 3, 4], 2)
