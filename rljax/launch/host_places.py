"""Finds out which host of a learner this process is to be, by the config or by what has started it."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping

from rljax.config.fields import ConfigError
from rljax.config.schema import Config
from rljax.config.validate_placement import is_address
from rljax.launch.host_process import Place
from sidecar.errors import first_line

TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun sets, and others as it does."""
_BY_HAND = "learner.hosts.rank and learner.hosts.coordinator"
_OWN_GPUS = ("SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND")
"""Variables that say that the GPUs which a task sees are its own."""
_NO_GPUS = ("", "-1", "NoDevFiles")
"""Values of CUDA_VISIBLE_DEVICES of who has none; the last is SLURM's."""
_LOOPBACK = ("localhost", "127.0.0.1")


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
    found = _by_variables(config, environment) or _by_jax(config, environment)
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


def free_port() -> int:
    """Returns a port of this machine that nobody listens at."""
    with socket.socket() as unused:
        unused.bind(("", 0))
        port: int = unused.getsockname()[1]
        return port


def _by_variables(config: Config, environment: Mapping[str, str]) -> Place | None:
    if not environment.keys() >= set(TORCHRUN) or (size := _count("WORLD_SIZE", environment, 1)) == 1:
        return None
    _check_number(config, size, "WORLD_SIZE")
    rank = _count("RANK", environment, 0, size - 1)
    coordinator = config.learner.hosts.coordinator or _coordinator(environment, size)
    local = _count("LOCAL_RANK", environment, 0) if "LOCAL_RANK" in environment else None
    return Place(rank, size, coordinator, "torchrun", _devices(config, local, environment))


def _coordinator(environment: Mapping[str, str], size: int) -> str:
    """Returns the address after that at which torchrun itself listens."""
    address, port = environment["MASTER_ADDR"], _count("MASTER_PORT", environment, 1, 2**16 - 2) + 1
    if not is_address(f"{address}:{port}"):
        raise ConfigError(f"MASTER_ADDR={address!r}: must be a name or IPv4 address of host 0; or write {_BY_HAND}")
    if address in _LOOPBACK and environment.get("LOCAL_WORLD_SIZE") != str(size):
        address = socket.gethostname()  # some give host 0 this name of it: it would listen to its own machine alone
    return f"{address}:{port}"


def _count(name: str, environment: Mapping[str, str], low: int, high: int | None = None) -> int:
    """Returns the number that a variable holds.

    Raises:
        ConfigError: it holds none, or another than it may.
    """
    text = environment[name]
    number = int(text) if text.isascii() and text.isdecimal() else None
    if number is None or number < low or (high is not None and number > high):
        bounds = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ConfigError(
            f"{name}={text!r}: must be a whole number {bounds}, where the environment is to say which host this is; or "
            f"write {_BY_HAND}, or learner.hosts.start=here to have all on this machine"
        )
    return number


def _by_jax(config: Config, environment: Mapping[str, str]) -> Place | None:
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
        return Place(rank, number, coordinator, name, "" if "tpu" in name else _devices(config, local, environment))
    return None


def _check_number(config: Config, number: int, what: str) -> None:
    if number != config.learner.hosts.number:
        raise ConfigError(
            f"learner.hosts.number={config.learner.hosts.number}: {what}={number} processes were started; write "
            f"{number}"
        )


def _devices(config: Config, local: int | None, environment: Mapping[str, str]) -> str:
    """Returns the numbers of the accelerators of one of several hosts on a machine, as many for each; empty for all
    that it sees.

    Raises:
        ConfigError: it does not see so many.
    """
    if local is None:
        return ""
    each = config.learner.mesh.size // config.learner.hosts.number
    numbers, shown = range(local * each, (local + 1) * each), environment.get("CUDA_VISIBLE_DEVICES", "")
    seen = [] if shown in _NO_GPUS else shown.split(",")
    on_gpus = config.learner.devices.startswith(("auto", "gpu")) and environment.get("JAX_PLATFORMS") != "cpu"
    if on_gpus and len(seen) == each and any(name in environment for name in _OWN_GPUS):
        return ""
    if on_gpus and seen and numbers[-1] >= len(seen):
        raise ConfigError(
            f"CUDA_VISIBLE_DEVICES={shown}: process {local} of this machine is to have GPUs {_listed(numbers)} of "
            f"those, counted from 0; show every process all GPUs of the machine, or write {_BY_HAND}: "
            "then it has all that it sees"
        )
    return _listed(numbers)


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))
