"""Which devices the engines compute on."""

from __future__ import annotations

import jax

from rljax.config import Config
from rljax.config_checks import ConfigError
from rljax.learner.sharding import named_devices, select_devices


def engine_devices(config: Config) -> list[jax.Device]:
    """What ``sidecar.devices`` names; engine i computes on the i-th, beginning again where they end.

    ``auto`` stands for every device of this process, and beside a learner for those that it leaves free. A CPU is
    shared where there is no other.

    Raises:
        ConfigError: a device is not there, or the learner of this process has it too and it is no CPU.
    """
    key, devices = "sidecar.devices", config.sidecar.devices
    named = named_devices(key, devices)
    if config.mode != "both":
        return named
    taken = set(select_devices(config.learner.devices, config.learner.mesh.size))
    free = [device for device in named if device not in taken]
    if devices == "auto" and free:
        return free
    if any(device in taken and device.platform != "cpu" for device in named):
        raise ConfigError(
            f"{key}={devices!r}: the learner has {', '.join(sorted(map(str, taken)))}; an engine needs an accelerator "
            "of its own, or cpu"
        )
    return named
