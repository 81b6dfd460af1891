"""Where engines are started, by the name that ``config.launcher`` gives."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping

from rljax.config import Config
from rljax.config_checks import ConfigError
from sidecar.hosting import EngineHouse


def _local(config: Config) -> EngineHouse:
    from sidecar.process_house import ProcessHouse

    return ProcessHouse()


def check_ray() -> None:
    """Raises ConfigError where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError('launcher=ray: Ray is not installed; pip install -e ".[ray]"')


def _ray(config: Config) -> EngineHouse:
    check_ray()
    from rljax.launch.ray_launcher import OwnRayHouse

    return OwnRayHouse(config)


HOUSES: Mapping[str, Callable[[Config], EngineHouse]] = {"local": _local, "ray": _ray}
"""Opens a house; closing it is the caller's."""
