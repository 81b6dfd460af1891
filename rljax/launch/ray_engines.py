"""Starts engines on a Ray cluster, in a placement group of the run's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rljax.config.schema import Config
from rljax.launch.ray_cluster import RayCluster, learner_platform
from sidecar.hosting.ray import Placement, RayEngineLauncher


@contextlib.contextmanager
def reserve(config: Config) -> Iterator[Placement]:
    """Reserves resources for the engines of a config, and for what runs beside them, while the context lasts.

    Raises:
        ClusterError, ConfigError: the cluster cannot be used, or has no room.
    """
    with contextlib.closing(RayCluster(config)) as cluster:
        yield cluster.place(learner_platform() if config.mode == "both" and cluster.first else "cpu")


class OwnRayEngineLauncher(RayEngineLauncher):
    """Starts engines in a placement group of its own, and connects to the cluster where this process had not."""

    def __init__(self, config: Config) -> None:
        """Reserves the placement group. Raises ClusterError or ConfigError: the cluster is unusable, or has no room."""
        self._parts = contextlib.ExitStack()
        super().__init__(self._parts.enter_context(reserve(config)))

    def close(self) -> None:
        """Ends what is left of the engines, and releases the placement group. Closing twice is no error."""
        with self._parts:
            super().close()
