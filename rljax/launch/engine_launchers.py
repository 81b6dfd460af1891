"""Registry of engine launchers, by the name that ``config.launcher`` gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rljax.config.schema import Config
from sidecar.hosting.spec import EngineLauncher


def _local(config: Config) -> EngineLauncher:
    from sidecar.hosting.local import LocalEngineLauncher

    return LocalEngineLauncher()


def _ray(config: Config) -> EngineLauncher:
    from rljax.launch.ray_engines import OwnRayEngineLauncher

    return OwnRayEngineLauncher(config)


ENGINE_LAUNCHERS: Mapping[str, Callable[[Config], EngineLauncher]] = {"local": _local, "ray": _ray}
"""Opens the engine launcher of a config; closing it is the caller's."""
