"""Starts the hosts of a learner on a Ray cluster: a supervisor is an actor, and the host its child.

Where the cluster has a node for each host, no two are on one. The driver computes nothing; it waits for supervisors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from rljax.config.fields import ConfigError
from rljax.config.load import as_plain, from_plain
from rljax.config.schema import Config
from rljax.config.validate_placement import device_indices
from rljax.interrupts import HOST_LOST
from rljax.launch.host_news import say
from rljax.launch.host_places import free_port
from rljax.launch.host_process import Place
from rljax.launch.ray_alone import ClusterError
from rljax.launch.ray_cluster import RayCluster, runtime_env
from rljax.launch.ray_placement import ACCELERATORS, add_up, of_hosts
from rljax.launch.supervisor import GRACE, End, Supervisor
from rljax.pipeline.assemble.processors import share_of_processors
from rljax.pipeline.run_dir import RunDir
from sidecar.errors import first_line
from sidecar.hosting.ray import Placement, why_it_died
from sidecar.workers.child_process import redirect_output
from sidecar.workers.lifeline import end_group_with_process

LOOK = 0.5
"""Seconds between looks at what host 0 has printed and at signals."""


class HostActor:
    """Supervises a host in a process of the cluster."""

    def __init__(self, log: str, directory: str) -> None:
        os.chdir(directory)
        redirect_output(log)
        self._size = os.path.getsize(log)  # what attempts before this one have printed stays
        end_group_with_process()
        self._log = log
        self._supervisor: Supervisor | None = None
        self._stopped = 0

    def address(self) -> str:
        """Returns where host 0 may listen on this node."""
        return f"{ray.util.get_node_ip_address()}:{free_port()}"

    def supervise(self, config: dict[str, Any], place: Place) -> tuple[int, str, bool]:
        """Runs the host to its end; returns the fields of `End`. Ray carries plain data: an error is a line."""
        try:
            read = from_plain(config)
            self._supervisor = Supervisor(read, [place], share_of_processors(read), linked=True)
            if self._stopped:  # while it was being started
                self._supervisor.stop(self._stopped)
            end = self._supervisor.run()
        except ConfigError as error:  # another program has taken the port meanwhile
            return HOST_LOST, str(error), False
        except Exception as error:
            say(f"the supervisor of host {place.rank}: {type(error).__name__}: {first_line(error)}")
            return 1, "", False
        return end.code, end.lost, end.held

    def stop(self, number: int) -> None:
        """Passes a signal on to the host, at its start where it has not begun."""
        self._stopped = number
        if self._supervisor is not None:
            self._supervisor.stop(number)

    def printed(self, start: int) -> bytes:
        """Returns what the host has printed in this attempt, from a byte on."""
        with open(self._log, "rb") as log:
            log.seek(self._size + start)
            return log.read()


class OnRay:
    """Holds the place of the hosts on a cluster for all attempts."""

    def __init__(self, config: Config) -> None:
        """Joins the cluster, and reserves a bundle for each host.

        Raises:
            ClusterError, ConfigError: the cluster cannot be used, or has no room.
        """
        number = config.learner.hosts.number
        with contextlib.ExitStack() as parts:
            cluster = parts.enter_context(contextlib.closing(RayCluster(config)))
            self._kind = _kind(config)
            self._accelerators = of_hosts(config, self._kind)
            each = {"CPU": 1.0, **{name: count / number for name, count in self._accelerators.items()}}
            apart = sum(map(functools.partial(_has, each), ray.nodes())) >= number
            strategy = "STRICT_SPREAD" if apart else "PACK"
            group = cluster.reserve([each] * number, None, add_up([each] * number), strategy)
            # Host 0 is a process that joins the cluster for its engines.
            address: str = ray.get_runtime_context().gcs_address
            self._config = dataclasses.replace(config, ray=dataclasses.replace(config.ray, address=address))
            self._placement = Placement(group, (), runtime_env(config))
            self._parts = parts.pop_all()

    def start(self) -> RayAttempt:
        """Starts the supervisor of each host, and again as long as Ray takes a lost node for one that it has. See
        `rljax.launch.gang.run_again_where_lost`.

        Raises:
            ClusterError: they did not start in ``ray.placement_timeout``.
        """
        seconds = min(self._config.ray.placement_timeout, self._config.wait_timeout)
        deadline = time.monotonic() + seconds
        while True:
            actors = self._supervisors()
            try:
                answers = [actor.address.remote() for actor in actors]
                addresses = ray.get(answers, timeout=max(deadline - time.monotonic(), LOOK))
                return RayAttempt(self._config, actors, addresses[0])
            except RayError as error:
                _kill(actors)
                if time.monotonic() > deadline:
                    raise ClusterError(
                        f"launcher=ray: hosts did not start within {seconds:g} s (the smaller of ray.placement_timeout "
                        f"and wait_timeout): {why_it_died(error)}; look at the cluster (`ray status`), or raise it"
                    ) from None
            time.sleep(LOOK)

    def _supervisors(self) -> list[Any]:
        number, logs = self._config.learner.hosts.number, RunDir.at(self._config).root.absolute() / "logs"
        count = next(iter(self._accelerators.values()), 0.0) / number
        amounts: dict[str, Any] = {"num_gpus": count} if self._kind == "gpu" else {}
        if self._kind == "tpu":
            amounts = {"resources": {"TPU": count}}
        actors = []
        for rank in range(number):
            options = self._placement.options(rank, {}, num_cpus=1, max_concurrency=4, **amounts)
            actors.append(ray.remote(HostActor).options(**options).remote(str(logs / f"host-{rank}.log"), os.getcwd()))
        return actors

    def close(self) -> None:
        """Leaves the cluster."""
        self._parts.close()


class RayAttempt:
    """Supervisors of one attempt. See `rljax.launch.gang.Attempt`."""

    def __init__(self, config: Config, actors: Sequence[Any], coordinator: str) -> None:
        self._config, self._actors, self._coordinator = config, actors, coordinator
        self._signals: list[int] = []
        self._printed = 0

    def run(self) -> End:
        """See `Attempt`; shows what host 0 prints meanwhile."""
        ends: list[End] = []
        try:
            plain, number = as_plain(self._config), len(self._actors)
            places = [Place(rank, number, self._coordinator) for rank in range(number)]
            waiting = {a.supervise.remote(plain, p): p.rank for a, p in zip(self._actors, places, strict=True)}
            deadline: float | None = None
            while waiting and (deadline is None or time.monotonic() < deadline):
                done, _ = ray.wait(list(waiting), timeout=LOOK)
                for ended in done:
                    ends.append(_end(waiting.pop(ended), ended))
                    deadline = deadline or time.monotonic() + 3 * GRACE  # the supervisors' own are shorter
                self._pass_on()
                self._show()
            ends += [End(HOST_LOST, f"the supervisor of host {rank} does not end") for rank in waiting.values()]
        finally:
            _kill(self._actors)
        ends.sort(key=lambda end: not end.held)
        lost = next((end for end in ends if end.lost), End(0))
        said = [end for end in ends if not end.lost and end.code]  # by a host itself: others may have lost it by that
        return max(said, key=lambda end: end.code, default=lost)

    def stop(self, number: int) -> None:
        """See `Attempt`."""
        self._signals.append(number)

    def _pass_on(self) -> None:
        while self._signals:
            self._actors[0].stop.remote(self._signals.pop(0))

    def _show(self) -> None:
        with contextlib.suppress(RayError, TimeoutError):
            printed = ray.get(self._actors[0].printed.remote(self._printed), timeout=10 * LOOK)
            self._printed += len(printed)
            sys.stdout.write(printed.decode(errors="replace"))
            sys.stdout.flush()


def _has(amounts: Mapping[str, float], node: Mapping[str, Any]) -> bool:
    """Returns whether a node has room for a host."""
    return node["Alive"] and all(node["Resources"].get(name, 0.0) >= amount for name, amount in amounts.items())


def _kill(actors: Sequence[Any]) -> None:
    for actor in actors:
        with contextlib.suppress(RayError, RuntimeError, ValueError):  # it is dead, or the cluster is
            ray.kill(actor)


def _end(rank: int, ended: Any) -> End:
    try:
        return End(*ray.get(ended))
    except RayError as error:
        return End(HOST_LOST, f"host {rank}: {why_it_died(error)}")


def _kind(config: Config) -> str:
    """Returns the platform of the hosts: this process does not compute and may have none."""
    named, _ = device_indices(config.learner.devices)
    if named != "auto":
        return named
    total = ray.cluster_resources()
    return next((kind for kind, name in ACCELERATORS.items() if total.get(name, 0) >= config.learner.mesh.size), "cpu")
