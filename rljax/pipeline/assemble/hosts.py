"""Joins the hosts of a learner, and sees that all of them are of one run."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
from jax._src import distributed  # JAX has no public names for its coordination service
from jax._src.lib import _jax

import envs
import rljax
import sidecar
from rljax.config.fields import ConfigError
from rljax.config.learner import OF_ONE_HOST
from rljax.config.load import as_plain
from rljax.config.schema import Config
from rljax.interrupts import HOST_LOST, REFUSED, end_at_once
from rljax.learner.hosts import JAX_LATER, HostLost, Hosts, HostsError, means_loss
from rljax.learner.sharding import select_devices
from rljax.tasks.task import BadRow
from sidecar.errors import first_line
from sidecar.workers.pulse import Pulse
from sidecar.workers.pulse import current as current_pulse

END, STOP = "end", "stop"
"""Announcements of host 0 at its end: that it is done, and that it cannot go on, with the reason."""
_FAREWELL = 5.0
"""Seconds in which the others are to hear that host 0 cannot go on: of its death JAX tells less."""
_SHUTDOWN = 30
"""Seconds that the hosts wait for each other at their end."""
_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
"""Distributions whose version bears on what a host computes or saves."""

log = logging.getLogger(__name__)


@contextlib.contextmanager
def joined(config: Config) -> Iterator[Hosts | None]:
    """Joins the other hosts of the learner while the context lasts; yields this one's end, None where it has no others.
    Handlers of signals are to be set within.

    Raises:
        ConfigError: the mesh leaves a host out.
        HostLost: the hosts do not find each other, or one is lost.
        HostsError: another host runs something else; and what is raised within on another host.
    """
    if not config.has_hosts:
        yield None
        return
    pulse = current_pulse()
    try:
        with _met(config, pulse) as hosts:
            yield hosts
    except HostsError as error:
        if pulse is not None and error.exit_code == HOST_LOST:
            pulse.tell(f"lost {first_line(error)}")
        raise


@contextlib.contextmanager
def _met(config: Config, pulse: Pulse | None) -> Iterator[Hosts]:
    """See `joined`."""
    initialise(config, pulse.service if pulse is not None else "")
    keys = config.learner.hosts
    hosts = Hosts(distributed.global_state.client, jax.process_index(), keys.number, config.wait_timeout)
    if pulse is not None:
        hosts.doing = lambda what: pulse.tell(f"doing {what}")
    try:
        hosts.exchange_names(socket.gethostname())
        if hosts.leads:
            hosts.announce("start")
        else:
            hosts.hear()
        hosts.agree("start", identity(config))
        check_mesh(config, hosts)
        yield hosts
    except BaseException as error:
        tell(hosts, error)
        end_at_once()
        if means_loss(error) and not isinstance(error, HostLost):
            lost = f"{hosts.names[hosts.rank]}: another host does not exchange arrays any more ({first_line(error)})"
            raise HostLost(lost) from error
        raise
    finally:
        hosts.close()
    if hosts.leads:
        hosts.announce(END)
    jax.distributed.shutdown()


def tell(hosts: Hosts, error: BaseException) -> None:
    """Tells the other hosts, as far as they listen, why this one ends."""
    why = first_line(error) if isinstance(error, Exception) else type(error).__name__
    code = _exit_code(error)
    with contextlib.suppress(Exception):
        if hosts.leads:
            hosts.refuse(why, code)
            hosts.announce(STOP, {"why": why, "exit_code": code})
            hosts.gather("end", b"", _FAREWELL)
        elif not isinstance(error, HostsError):
            hosts.fail(why, code)


def _exit_code(error: BaseException) -> int:
    """Returns the code that all hosts end with where one ends by an error. Who is interrupted has been lost."""
    if means_loss(error) or not isinstance(error, Exception):
        return HOST_LOST
    if isinstance(error, ConfigError | BadRow):
        return REFUSED
    return error.exit_code if isinstance(error, HostsError) else HostsError.exit_code


def initialise(config: Config, service: str) -> None:
    """Connects this process to the others, as `jax.distributed.initialize` does. But JAX's coordination service is not
    in the process of host 0: it is in its supervisor, at ``service``. JAX aborts who loses the service, in many lines
    that do not say why; so nobody is aborted when host 0 is lost.

    Raises:
        HostLost: they did not come together in time.
    """
    keys = config.learner.hosts
    assert keys.coordinator is not None  # the supervisor has written it
    assert keys.rank is not None
    # On CPUs two programs under way at once may exchange their arrays in another order on each host, and wait for ever.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if devices := os.environ.get("JAX_LOCAL_DEVICE_IDS"):
        jax.config.update("jax_cuda_visible_devices", devices)
    seconds, connected = int(min(config.wait_timeout, 10 * 60)), False

    def lost(status: Any) -> None:
        """Ends this process as JAX does, in many lines, but for hosts that have not met: then `connect` raises."""
        if connected:
            log.critical("JAX's coordination service: %s", status)
            os.abort()

    client = _jax.get_distributed_runtime_client(
        service or keys.coordinator,
        keys.rank,
        init_timeout=seconds,
        heartbeat_timeout=JAX_LATER * keys.heartbeat_timeout,
        shutdown_timeout=_SHUTDOWN,
        use_compression=True,
        missed_heartbeat_callback=lost,
    )
    try:
        client.connect()
        connected = True
    except RuntimeError as error:
        advice = "; start all of them with the same coordinator"
        if service:
            reach = f"let all reach JAX's service {service}, whose port is another at each start"
            advice = (
                f", though its supervisor has met host 0's; start all, and {reach}"
                if keys.rank
                else f"{advice}, and {reach}"
            )
        raise HostLost(
            f"learner.hosts.coordinator={keys.coordinator}: host {keys.rank} of {keys.number} did not meet the others "
            f"within {seconds} s{advice}"
        ) from error
    state = distributed.global_state
    state.client, state.process_id, state.num_processes = client, keys.rank, keys.number
    state.coordinator_address = service or keys.coordinator


def check_mesh(config: Config, hosts: Hosts) -> None:
    """Checks that the mesh has devices of every host.

    Raises:
        ConfigError: it has none of some.
    """
    chosen = select_devices(config.learner.devices, config.learner.mesh.size)
    left_out = sorted(set(range(hosts.number)) - {device.process_index for device in chosen})
    if left_out:
        raise ConfigError(
            f"learner.mesh: multiplies to {len(chosen)} devices, none of them of {hosts.names[left_out[0]]}; the "
            f"{hosts.number} hosts have {jax.device_count()}: write a mesh of as many"
        )


def own_output_of_libraries(run_dir: Path, rank: int) -> None:
    """Has ``logs/host-RANK-libraries.log`` of a run take what libraries write to the standard output of this process by
    themselves: gloo says there whenever it has connected. What Python prints goes where it went, and so do all errors.
    """
    log = run_dir / "logs" / f"host-{rank}-libraries.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    kept = os.dup(sys.stdout.fileno())
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
    sys.stdout = os.fdopen(kept, "w", buffering=1, encoding=sys.stdout.encoding, errors=sys.stdout.errors)


def identity(config: Config) -> dict[str, str]:
    """Returns what all hosts have to have in common, by names for messages: hashes of every key of the config, of the
    program and of the user's own functions of the objective, and the versions of libraries.

    Raises:
        ConfigError: a function that the config names is not there.
    """
    said = {f"config.{path}": _hash(json.dumps(value)) for path, value in _flat(as_plain(config))}
    for path in OF_ONE_HOST:
        said.pop(f"config.{path}")
    libraries = {f"version of {name}": version(name) for name in _LIBRARIES}
    return {**said, "program (rljax)": _program(), **_own_functions(config), **libraries}


def _flat(plain: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in plain.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def _program() -> str:
    """Returns a hash of the version and the sources of this program."""
    folders = [Path(str(package.__file__)).parent for package in (rljax, sidecar, envs)]
    files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
    return _hash(rljax.__version__, *(file.read_text() for file in files))


def _own_functions(config: Config) -> dict[str, str]:
    """Returns hashes of the files of the functions that the objective names by ``module:function``: of the module, and
    of where the function is written, if that is another. Rewards and workflows run where explorers do.
    """
    said = {}
    for named in config.algorithm.functions():
        if ":" not in named.name:
            continue
        found = next(entry for slot in named.slots if (entry := slot.find(named.name, named.key)))
        modules = [named.name.partition(":")[0], getattr(inspect.unwrap(found.function), "__module__", None)]
        files = [getattr(sys.modules.get(module or ""), "__file__", None) for module in dict.fromkeys(modules)]
        said[f"file of {named.key}={named.name}"] = _hash(*(Path(file).read_bytes().hex() for file in files if file))
    return said


def _hash(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
