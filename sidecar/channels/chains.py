"""Versions that were written as what has changed since another, over any channel: followed back to one that is whole or
at hand, and put together again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sidecar.channels.changes import unpacked_changes, with_changes
from sidecar.channels.versions import (
    Manifest,
    PublishedVersion,
    VersionDamagedError,
    VersionError,
    VersionGoneError,
    checked,
    gone,
)
from sidecar.errors import first_line

_last: dict[str, PublishedVersion] = {}
"""The version that was read last, by what its path or address begins with."""


class Source(Protocol):
    """The versions of a channel, each by its path or address, which ends in ``/v<version>-<lineage>``.

    The methods raise `VersionGoneError` where the version is not there, but for `is_there`, and `VersionError` where
    that, or what is asked for, cannot be read.
    """

    def manifest(self, where: str) -> Manifest:
        """Returns a version's manifest."""
        ...

    def arrays(self, where: str, manifest: Manifest) -> Mapping[str, np.ndarray]:
        """Returns the tensors of a version that is whole, by name, not yet checked."""
        ...

    def changes(self, where: str) -> Mapping[str, np.ndarray]:
        """Returns what has changed of the others; see `sidecar.channels.changes.packed_changes`."""
        ...

    def is_there(self, where: str) -> bool:
        """Returns whether a version is still there."""
        ...


@dataclass(frozen=True, slots=True)
class Link:
    """A version, by its path or address, as one of those that a version needs."""

    where: str
    manifest: Manifest


def chain(source: Source, where: str, held: Manifest | None = None) -> tuple[list[Link], Link]:
    """Returns those versions, from the one at ``where`` back, that were written as changes, and the one before them,
    which is whole or ``held``.

    Raises:
        VersionGoneError: the version is gone.
        VersionError: a manifest cannot be read, or the version is there and one that it needs is not.
    """
    wanted, changed = where, list[Link]()
    while True:
        with _needed_by(wanted, source, where):
            link = Link(where, source.manifest(where))
        base = link.manifest.base
        if base is None or link.manifest == held:
            return changed, link
        if base >= link.manifest.identity:
            raise VersionError(f"the manifest of {where} is damaged: its base is not before it; publish it again")
        changed.append(link)
        where = f"{where.rpartition('/')[0]}/v{base[0]}-{base[1]}"


def read(source: Source, where: str, held: PublishedVersion | None = None) -> PublishedVersion:
    """Reads every tensor of a version and checks it against its manifest.

    Args:
        source: what the channel has of it, and of those that it was written against.
        where: its path or address.
        held: a version of the same run that is not read again where they come to it. Its arrays stay as they are.

    Raises:
        VersionError: the version is gone, or a tensor is missing, mis-shaped or corrupted; the line names it.
    """
    changed, first = chain(source, where, None if held is None else held.manifest)
    tensors: Mapping[str, np.ndarray]
    if held is not None and first.manifest == held.manifest:
        if not changed:
            return held
        tensors = held.tensors
    else:
        with _needed_by(where, source, first.where):
            tensors = source.arrays(first.where, first.manifest)
    for link in reversed(changed):
        with _needed_by(where, source, link.where):
            packed = source.changes(link.where)
        tensors = _with_changes(tensors, packed, link.where)
    return checked(PublishedVersion((changed or [first])[0].manifest, tensors), where)


def read_following(source: Source, where: str) -> PublishedVersion:
    """Reads a version by the one that this process read last, where they are of one run.

    A version that others will be written against is kept on the host until the next is read, which then is what has
    changed alone. Where what is kept does not lead to what the manifest says, the version is read without it.

    Raises:
        VersionGoneError, VersionError: as `read`.
    """
    run = where.rpartition("/")[0]
    held = _last.get(run)
    try:
        published = read(source, where, held)
    except VersionDamagedError:
        if held is None:
            raise
        published = read(source, where)
    _last.clear()  # of one run alone: what one before it left is let go
    if published.manifest.followed:
        _last[run] = published
    return published


@contextlib.contextmanager
def _needed_by(wanted: str, source: Source, where: str) -> Iterator[None]:
    """Has what is gone of one version be said of the one that is wanted: a version goes before those that it needs."""
    try:
        yield
    except VersionGoneError as error:
        if where == wanted:
            raise
        if not source.is_there(wanted):
            raise VersionGoneError(gone(wanted)) from error
        raise VersionError(
            f"{wanted} has what changed since {where.rpartition('/')[2]}, which is not there; load a version that is "
            "whole, or start the learner again, which publishes one"
        ) from error


def _with_changes(
    before: Mapping[str, np.ndarray], packed: Mapping[str, np.ndarray], where: str
) -> dict[str, np.ndarray]:
    after = dict(before)
    try:
        for name, changes in unpacked_changes(packed):
            after[name] = with_changes(after[name], changes)
    except (ValueError, IndexError, KeyError) as error:
        raise VersionDamagedError(
            f"what has changed in {where} cannot be read: {first_line(error)}; publish the version again"
        ) from error
    return after
