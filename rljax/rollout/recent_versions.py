"""Versions that requests may still be pinned to: a successor of an engine loads them before the newest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rljax.ledger.announced import Announced
from sidecar.protocol import WeightUpdateError


class RecentVersions:
    """The newest versions that an engine pool has loaded, as many as its engines hold at once."""

    def __init__(self, most: int) -> None:
        """Remembers up to ``most`` versions; none with 1 and less, where no engine holds one beside the newest."""
        self._most = most
        self._known: dict[int, Announced] = {}

    def add(self, loaded: Announced) -> None:
        """Takes a version that engines have loaded. Those that a new lineage has lost are forgotten."""
        lost = [n for n, known in self._known.items() if known.lineage < loaded.lineage and n >= loaded.version]
        for number in lost:
            del self._known[number]
        self._known[loaded.version] = loaded
        kept = sorted(self._known)[-self._most :] if self._most > 1 else []
        self._known = {number: self._known[number] for number in kept}

    async def load_before(self, newest: Announced, load: Callable[[Announced], Awaitable[None]]) -> Announced | None:
        """Has ``load`` called for each that is older, the oldest first. One whose files are gone is left out.

        Returns:
            The oldest from which on all were loaded; None where the last one was not, or there is none.
        """
        since = None
        for known in sorted(self._known.values(), key=lambda known: known.version):
            if known.version >= newest.version:
                break
            try:
                await load(known)
                since = since or known
            except WeightUpdateError:
                since = None
        return since
