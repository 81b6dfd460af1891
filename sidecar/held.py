"""Versions that an engine holds at once, so that a request may keep the one that it began with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class HeldVersions(Generic[T]):
    """Holds versions, each with what an engine has of it: as many as may be in use, and the one that serves.

    Attributes:
        serving: the version that serves whoever is pinned to none; -1 before the first.
    """

    def __init__(self, most: int) -> None:
        """Holds up to ``most`` versions, and one more while an older one than these serves (a validation's)."""
        self.serving = -1
        self._most = most
        self._items: dict[int, tuple[int, T]] = {}

    def add(self, version: int, lineage: int, item: T) -> list[T]:
        """Makes a version the one that serves. Returns the items that are dropped: of the oldest versions beyond
        ``most``; of versions that a new lineage replaces or has lost; and the given one, where the version is held.
        """
        lost = [held for held, (its, _) in self._items.items() if its < lineage and held >= version]
        dropped = [self._items.pop(held)[1] for held in lost]
        if version in self._items:
            dropped.append(item)
        else:
            self._items[version] = lineage, item
        self.serving = version
        old = sorted(self._items)[: -self._most]
        return dropped + [self._items.pop(held)[1] for held in old if held != version]

    def __contains__(self, version: int) -> bool:
        return version in self._items

    def __getitem__(self, version: int) -> T:
        return self._items[version][1]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._items))
