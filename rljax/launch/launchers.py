"""Registry of launchers, by the name that ``config.launcher`` gives."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from rljax.config.schema import Config
from rljax.launch.local import start_locally
from rljax.launch.protocol import Launched, Launcher


def _start_on_ray(*given: Any, **named: Any) -> Launched:
    from rljax.launch.ray_launcher import start_on_ray

    start: Launcher = start_on_ray
    return start(*given, **named)


LAUNCHERS: Mapping[str, Launcher] = {"local": start_locally, "ray": _start_on_ray}


def learner_placement(config: Config) -> contextlib.AbstractContextManager[Config]:
    """Reserves the devices of a learner without an explorer while the context lasts; yields the config, whose
    ``learner.devices`` are the learner's own.

    With ``launcher=ray`` others ask the same cluster for accelerators: those of the learner are set aside there. In
    mode both the launcher does that, and who started the hosts of a learner has done it.
    """
    if config.mode != "train" or config.launcher != "ray" or config.has_hosts:
        return contextlib.nullcontext(config)
    from rljax.launch.ray_launcher import learner_placed_on_ray

    return learner_placed_on_ray(config)
