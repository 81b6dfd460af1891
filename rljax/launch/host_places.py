"""Finds out which host of a learner this process is to be, by the config or by what has started it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from rljax.config.fields import ConfigError
from rljax.config.schema import Config
from rljax.launch.host_process import Place
from sidecar.errors import first_line

TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun sets, and others as it does."""
_BY_HAND = "learner.hosts.rank and learner.hosts.coordinator"


def place_of(config: Config, environment: Mapping[str, str]) -> Place | None:
    """Returns which host of the learner this process is to be; None where it is to start all of them: on this machine,
    or with ``launcher=ray`` on the cluster.

    Raises:
        ConfigError: other processes than those that the config speaks of were started, or it is not known which.
    """
    keys = config.learner.hosts
    if keys.rank is not None and keys.coordinator is not None:
        return Place(keys.rank, keys.number, keys.coordinator)
    if keys.start == "here" or (config.launcher == "ray" and keys.start == "auto"):
        return None
    found = _by_variables(config, environment) or _by_jax(config)
    if found is None and keys.start == "environment":
        raise ConfigError(
            f"learner.hosts.start=environment: nothing says which of {keys.number} hosts this process is; start it by "
            f"torchrun, SLURM, Open MPI, or on the hosts of a TPU slice, or write {_BY_HAND}"
        )
    if found is None and keys.coordinator is not None:
        raise ConfigError(
            f"learner.hosts.coordinator={keys.coordinator!r}: nothing says which of {keys.number} hosts this process "
            "is; write learner.hosts.rank, or leave the coordinator out to have all on this machine"
        )
    return found


def share_of_processors(config: Config) -> dict[str, str]:
    """Returns the environment variables by which JAX makes of the processors what one host has of the mesh."""
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return {}
    return {"JAX_NUM_CPU_DEVICES": str(config.learner.mesh.size // config.learner.hosts.number)}


def free_port() -> int:
    """Returns a port of this machine that nobody listens at."""
    with socket.socket() as unused:
        unused.bind(("", 0))
        port: int = unused.getsockname()[1]
        return port


def _by_variables(config: Config, environment: Mapping[str, str]) -> Place | None:
    rank, size, address, port = (environment.get(name) for name in TORCHRUN)
    if rank is None or size is None or address is None or port is None or int(size) == 1:
        return None
    _check_number(config, int(size), "WORLD_SIZE")
    # torchrun itself listens at its port.
    coordinator = config.learner.hosts.coordinator or f"{address}:{int(port) + 1}"
    return Place(int(rank), int(size), coordinator, "torchrun", _devices(config, environment.get("LOCAL_RANK")))


def _by_jax(config: Config) -> Place | None:
    """Asks JAX, which knows SLURM, Open MPI, Kubernetes and TPU slices."""
    from jax._src.clusters import ClusterEnv  # JAX has no public name for asking without connecting

    for cluster in ClusterEnv._cluster_types:
        if cluster.opt_in_only_method or not cluster.is_env_present():
            continue
        name = cluster.name or cluster.__name__
        try:
            number = int(cluster.get_process_count())
            if number == 1:
                return None
            _check_number(config, number, name)
            rank, local = int(cluster.get_process_id()), cluster.get_local_process_id()
            coordinator = config.learner.hosts.coordinator or cluster.get_coordinator_address(60, None)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"learner.hosts: {name} does not say which host this is ({first_line(error)}); write {_BY_HAND}, or "
                "learner.hosts.start=here to have all on this machine"
            ) from error
        return Place(rank, number, coordinator, name, "" if "tpu" in name else _devices(config, local))
    return None


def _check_number(config: Config, number: int, what: str) -> None:
    if number != config.learner.hosts.number:
        raise ConfigError(
            f"learner.hosts.number={config.learner.hosts.number}: {what}={number} processes were started; write "
            f"{number}"
        )


def _devices(config: Config, local: str | int | None) -> str:
    """Returns the numbers of the accelerators of one of several hosts on a machine, as many for each."""
    if local is None:
        return ""
    each = config.learner.mesh.size // config.learner.hosts.number
    return ",".join(str(int(local) * each + i) for i in range(each))
