"""Where engines are started, by the name that ``config.launcher`` gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rljax.config import Config
from sidecar.hosting import EngineHouse


def _local(config: Config) -> EngineHouse:
    from sidecar.process_house import ProcessHouse

    return ProcessHouse()


HOUSES: Mapping[str, Callable[[Config], EngineHouse]] = {"local": _local}
"""Opens a house; closing it is the caller's."""
