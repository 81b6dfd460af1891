"""Counts the devices that JAX makes of the processors of a machine: those that a learner of several hosts will have."""

from __future__ import annotations

import os
import re

from rljax.config.schema import Config

_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def starts_hosts_here(config: Config) -> bool:
    """Returns whether one command starts several hosts on its machine, as far as the config says it."""
    hosts = config.learner.hosts
    by_hand = hosts.rank is not None or hosts.coordinator is not None or hosts.start == "environment"
    return hosts.number > 1 and not by_hand and (config.launcher != "ray" or hosts.start == "here")


def where_hosts_are(config: Config, target: str) -> str:
    """Returns where the hosts of a learner run that ``plan.target`` has room for, for people."""
    if target != "here" or not starts_hosts_here(config):
        return "one a machine"
    return f"{config.learner.mesh.size // config.learner.hosts.number} devices each, all started here by one command"


def share_of_processors(config: Config) -> dict[str, str]:
    """Returns the environment variables by which JAX makes of the processors what one host has of the mesh."""
    if _FLAG.search(os.environ.get("XLA_FLAGS", "")):
        return {}
    return {"JAX_NUM_CPU_DEVICES": str(config.learner.mesh.size // config.learner.hosts.number)}


def processors_of_host(config: Config) -> int:
    """Returns how many devices JAX makes of the processors for a host: one, unless the environment says more."""
    share = share_of_processors(config) if starts_hosts_here(config) else {}
    number = int({**os.environ, **share}.get("JAX_NUM_CPU_DEVICES") or 0)
    flag = _FLAG.search(os.environ.get("XLA_FLAGS", ""))
    return number if number > 0 else max(1, int(flag[1])) if flag else 1  # as JAX, which asks the flag last
