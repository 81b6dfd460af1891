"""Registry of the channels by which weights reach engines, by the name that ``config.sync_method`` gives."""

from __future__ import annotations

from pathlib import Path

from rljax.weights.deltas import DeltaPublisher
from rljax.weights.memory import MemoryPublisher, RayPublisher, SharedDevicePublisher
from rljax.weights.nccl import NcclPublisher
from rljax.weights.publisher import OrbaxPublisher, Publisher


def open_publisher(
    sync_method: str,
    directory: Path,
    *,
    on_ray: bool,
    host: str,
    shares_device: bool = False,
    adopted: bool = False,
    deltas: int = 0,
) -> Publisher:
    """Opens the learner's end of the channel that ``config.sync_method`` names.

    Args:
        sync_method: ``checkpoint``, ``memory`` or ``nccl``.
        directory: the run's ``weights``.
        on_ray: ``memory``: whether the engines are in processes of the Ray cluster that this process has joined.
        host: ``nccl``: the address of this machine by which engines reach it.
        shares_device: ``checkpoint``: whether the engines are threads of this process on the learner's only device.
        adopted: ``memory``: whether they compute there with the very arrays of a version.
        deltas: ``checkpoint``, and ``memory`` on Ray: versions in a row that may be written as what has changed; 0: all
            are whole.

    Raises:
        PublishError: the channel cannot be opened.
    """
    if sync_method == "memory":
        return RayPublisher(directory, deltas) if on_ray else MemoryPublisher(directory, adopted)
    if sync_method == "nccl":
        return NcclPublisher(directory, host)
    if deltas:
        return DeltaPublisher(directory, deltas)
    return SharedDevicePublisher(directory) if shares_device else OrbaxPublisher(directory)
