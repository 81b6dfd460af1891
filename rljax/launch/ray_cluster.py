"""Joins or starts the Ray cluster of a run, reserves resources on it, and leaves it as it was found."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import threading
import warnings
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from ipaddress import ip_address
from typing import Any

import jax
import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from rljax.config.schema import Config
from rljax.config.secrets import VARIABLES
from rljax.config.validate import ConfigError
from rljax.config.validate_placement import device_indices
from rljax.interrupts import RAY
from rljax.launch.ray_alone import ClusterError, of_this_run_alone, replaced
from rljax.launch.ray_placement import Node, Plan, add_up, cpus_needed, make_plan, swap_taken
from sidecar.hosting.ray import VISIBLE_DEVICES, EnginePlacement, Placement
from sidecar.workers.lifeline import import_path

CONNECT_SECONDS = 5.0
"""Seconds in which the head of a cluster must accept a connection; Ray itself would try for two minutes."""
LEAVE_SECONDS = 60.0
"""Seconds in which Ray must shut down; some of its calls into a wedged raylet have no deadline."""
HTTP2_SETTINGS = b"\4"
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + HTTP2_SETTINGS + b"\0" * 5
"""Preface of an HTTP/2 client; three bytes of length and this type begin the first frame of both sides (RFC 9113, 3.4).
"""
PASSED_ON = ("RLJAX_", "JAX_", "XLA_", "HF_", "TRANSFORMERS_", "VLLM_", "NCCL_")
"""Prefixes of environment variables of this process that engines and explorers need too."""

log = logging.getLogger(__name__)


class RayCluster:
    """Connects this process to a cluster, and holds what this run reserves there.

    ``started`` says whether the cluster was started for it, ``first`` whether the connection was.

    Ray ties what it starts to the life of the thread that starts it, and would take SIGTERM for itself in the main
    thread: a thread of our own connects, and lives until `close`.
    """

    def __init__(self, config: Config) -> None:
        """Joins the cluster that ``ray.address`` names, or starts one.

        Raises:
            ClusterError: no cluster answers there, the versions of Ray or Python differ, or this Ray cannot close a
                cluster to others.
            ConfigError: ``ray.address`` is no address.
        """
        self._config = config
        self._group: PlacementGroup | None = None
        self._parts = contextlib.ExitStack()
        self.started = False
        self.first = not ray.is_initialized()
        if not self.first:
            return  # the caller that connected this process also disconnects it
        address = cluster_address(config.ray.address)
        self.started = address is None
        keeper = ThreadPoolExecutor(1, RAY)
        try:
            self._parts.enter_context(_silenced())
            if self.started:
                self._parts.enter_context(of_this_run_alone())
            self._parts.callback(_leave, keeper)
            keeper.submit(_connect, address, cpus_needed(config), runtime_env(config)).result()
            _take_back_sigterm()
        except BaseException:
            self.close()
            raise

    def place(self, learner_platform: str) -> Placement:
        """Reserves resources for the learner and the engines of this process, and waits for them.

        Raises:
            ClusterError: there is not enough; the line says what is asked and what there is.
            ConfigError: devices that are named do not fit.
        """
        plan = self._plan(learner_platform)
        home, group = plan.home, self.reserve(*plan.bundles(), plan.asked())
        table = placement_group_table(group)["bundles_to_node_id"]
        check_sync_address(self._config, {table[bundle] for bundle in range(1, 1 + len(plan.engines))} - {home.id})
        swap = self._swap(plan, group)
        engine_placements = [
            EnginePlacement(
                bundle,
                engine.resources["CPU"],
                engine.accelerator,
                engine.accelerators,
                {name: amount for name, amount in engine.resources.items() if name not in ("CPU", *VISIBLE_DEVICES)},
                engine.devices,
                swap if table[bundle] == home.id else {},
            )
            for bundle, engine in enumerate(plan.engines, start=1)
        ]
        return Placement(group, tuple(engine_placements), runtime_env(self._config))

    def place_learner(self, platform: str) -> str:
        """Reserves accelerators of this node for a learner without engines; returns them as ``learner.devices``.

        Raises:
            ClusterError: the node has too few.
            ConfigError: ``learner.devices`` names others than Ray has reserved, which Ray may give to another process.
        """
        plan = self._plan(platform)
        names = _visible(*plan.learner)
        set_aside = self._set_aside(plan, self.reserve(*plan.bundles(), plan.asked()))
        try:
            places = sorted(names.index(name) if names else int(name) for name in set_aside)
        except ValueError:
            raise ClusterError(
                f"Ray sets {', '.join(set_aside)} aside for the learner, and this process sees "
                f"{', '.join(names) if names else 'devices by number'}; start it with the devices visible that Ray has"
            ) from None
        given, reserved = self._config.learner.devices, f"{platform}:{','.join(map(str, places))}"
        if device_indices(given)[1] is not None and places != list(plan.learner_devices):
            raise ConfigError(
                f"learner.devices={given!r}: on this cluster Ray sets {reserved} aside for the learner, and may give "
                "the named ones to others; write learner.devices=auto"
            )
        return reserved

    def close(self) -> None:
        """Releases what this run holds, and ends the cluster if it was started here. Closing twice is no error."""
        if self._group is not None and ray.is_initialized():
            with contextlib.suppress(RayError):
                remove_placement_group(self._group)
        self._group = None
        self._parts.close()

    def _plan(self, learner_platform: str) -> Plan:
        nodes = _nodes()
        mine = ray.get_runtime_context().get_node_id()
        home = next(node for node in nodes if node.id == mine)
        return make_plan(self._config, home, [node for node in nodes if node is not home], learner_platform)

    def reserve(
        self,
        bundles: list[dict[str, float]],
        labels: list[dict[str, str]] | None,
        asked: dict[str, float],
        strategy: str = "PACK",
    ) -> PlacementGroup:
        """Reserves bundles of resources, ``asked`` in all, and waits for them; raises ClusterError as `place` does."""
        seconds = min(self._config.ray.placement_timeout, self._config.wait_timeout)
        short = self.started and _exceeds(asked, add_up([node.resources for node in _nodes()]))
        self._group = placement_group(bundles, strategy=strategy, bundle_label_selector=labels)
        if short or not self._group.wait(seconds):
            total, free = ray.cluster_resources(), ray.available_resources()
            waited = "" if short else f" within {seconds:g} s"
            raise ClusterError(
                f"launcher=ray: no room on the cluster{waited}: asked for {_format_resources(asked)} in "
                f"{len(bundles)} bundles; the cluster has {_format_resources(total)}, free now "
                f"{_format_resources(free)}; ask for less (sidecar.num_engines, ray.cpus_per_engine, "
                "sidecar.devices=cpu), add nodes, or raise ray.placement_timeout"
            )
        return self._group

    def _swap(self, plan: Plan, group: PlacementGroup) -> dict[str, str]:
        if not plan.learner_devices:
            return {}
        names = _visible(*plan.learner)
        taken = [names[i] if names else str(i) for i in plan.learner_devices]
        return swap_taken(taken, self._set_aside(plan, group))

    def _set_aside(self, plan: Plan, group: PlacementGroup) -> list[str]:
        """Returns the names of the accelerators in the learner's bundle."""
        ((kind, count),) = plan.learner.items()
        amounts: dict[str, Any] = {"num_gpus": count} if kind == "GPU" else {"resources": {kind: count}}
        options = Placement(group, ()).options(0, {}, num_cpus=0, **amounts)
        del options["max_restarts"], options["max_task_retries"]
        asked = ray.remote(_accelerators).options(**options, max_retries=0).remote(kind)
        reserved: list[str] = ray.get(asked, timeout=self._config.ray.placement_timeout)
        return reserved


def check_sync_address(config: Config, elsewhere: Collection[str]) -> None:
    """Refuses to send weights to ``elsewhere``, other nodes with engines, from an address that only this node reaches.

    Raises:
        ConfigError: the engines could not reach the address, and would wait for it until their time-out.
    """
    if config.sync_method != "nccl" or not elsewhere or not _is_loopback(config.sync_address):
        return
    raise ConfigError(
        f"sync_address={config.sync_address!r}: engines are on {len(elsewhere)} other node(s), which cannot reach the "
        "learner there; write the address of this machine that they can reach"
    )


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def cluster_address(address: str) -> str | None:
    """Returns the ``host:port`` that ``ray.address`` stands for; None to start a cluster.

    Raises:
        ConfigError: it is no address.
        ClusterError: no cluster answers there.
    """
    where = os.environ.get("RAY_ADDRESS", "local") if address == "auto" else address
    if where == "local":
        return None
    host, colon, port = where.rpartition(":")
    if not colon or not port.isdigit() or not host or "/" in host:
        raise ConfigError(f"ray.address={where!r}: write HOST:PORT of the head node, auto or local")
    try:
        speaks_grpc = _speaks_grpc(host, int(port))
        reason = "" if speaks_grpc else "something else listens there"
    except OSError as error:
        reason = str(error)
    if reason:
        raise ClusterError(
            f"launcher=ray: no Ray cluster answers at {where} ({reason}); start one with `ray start --head`, correct "
            "ray.address or RAY_ADDRESS, or set ray.address=local"
        )
    return where


def _speaks_grpc(host: str, port: int) -> bool:
    """Returns whether a gRPC server answers there, as the head of a cluster does. Raises OSError where nothing listens.

    Ray would try for minutes to connect to another program that has taken its port.
    """
    with socket.create_connection((host, port), timeout=CONNECT_SECONDS) as connection:
        if os.environ.get("RAY_USE_TLS") == "1":
            return True  # Ray's own handshake tells
        connection.sendall(HTTP2_PREFACE)
        with connection.makefile("rb") as answer:
            return answer.read(4)[3:] == HTTP2_SETTINGS


def runtime_env(config: Config) -> dict[str, Any]:
    """Returns Ray's runtime environment of engines and explorers: what they need, and the user's above it."""
    given = dict(config.ray.runtime_env)
    passed = {
        # Ray shows its processes' environments in command lines and logs.
        name: value
        for name, value in os.environ.items()
        if name.startswith(PASSED_ON) and not name.endswith(VARIABLES)
    }
    return {**given, "env_vars": {**passed, **import_path(), **_texts(given.get("env_vars", {}))}}


def learner_platform() -> str:
    """Returns the platform that JAX computes on in this process, as `rljax.config.schema` names it."""
    platform = jax.default_backend()
    return "gpu" if platform in ("cuda", "rocm") else platform


def _connect(address: str | None, cpus: int, environment: dict[str, Any]) -> None:
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    own: dict[str, Any] = {}
    if address is None:
        own = {"num_cpus": max(os.cpu_count() or 1, cpus), "include_dashboard": False}
    try:
        with warnings.catch_warnings():
            # Ray starts its processes with fork and exec: JAX's locks are not touched in between.
            warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
            ray.init(address or "local", runtime_env=environment, log_to_driver=False, configure_logging=False, **own)
    except Exception as error:  # of a node that is slow to start Ray says so in a bare Exception
        where = f"the cluster at {address}" if address else "a cluster of one's own"
        raise ClusterError(f"launcher=ray: {where} cannot be used: {_connection_error(str(error))}") from None
    except SystemExit:  # Ray's own way to say that a node could not be started or reached
        raise ClusterError(
            f"launcher=ray: the cluster at {address or 'local'} did not answer; is this machine one of its nodes "
            "(`ray status`)?"
        ) from None


def _leave(keeper: ThreadPoolExecutor) -> None:
    ended = keeper.submit(ray.shutdown)
    try:
        ended.result(LEAVE_SECONDS)
    except TimeoutError:
        if ended.done():  # it is Ray's own
            raise
        said = "launcher=ray: Ray did not shut down within %.0f seconds; this process ends all the same"
        log.warning(said, LEAVE_SECONDS)
    finally:
        keeper.shutdown(wait=ended.done())


def _take_back_sigterm() -> None:
    """Removes Ray's SIGTERM handler below Python's, which aborts the process three seconds after the signal."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


def _connection_error(text: str) -> str:
    """Returns one line from Ray's message, above all where versions differ."""
    versions = re.findall(r"Ray: *(\S+)\s+Python: *(\S+)", text)
    if len(versions) == 2:
        (theirs, their_python), (ours, our_python) = versions
        return (
            f"it runs Ray {theirs} on Python {their_python}, this process Ray {ours} on Python {our_python}; "
            f"install ray=={theirs} under Python {their_python} here, or restart the cluster with these versions"
        )
    return " ".join(text.split())[:300]


def _silenced() -> AbstractContextManager[None]:
    """Has Ray print nothing of its own; its errors arrive here as exceptions."""
    return replaced(ray._private.worker, "print_to_stdstream", lambda *_, **__: None)


def _nodes() -> list[Node]:
    """Returns the living nodes, in an order that is the same in every process."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    nodes = [Node(node["NodeID"], node["NodeManagerAddress"], node["Resources"]) for node in alive]
    return sorted(nodes, key=lambda node: (node.address, node.id))


def _visible(kind: str) -> list[str] | None:
    """Returns the names of the accelerators that this process may use; None for all, named by number."""
    visible = os.environ.get(VISIBLE_DEVICES[kind])
    return visible.split(",") if visible else None


def _accelerators(kind: str) -> list[str]:
    return list(ray.get_runtime_context().get_accelerator_ids()[kind])


def _exceeds(asked: dict[str, float], total: dict[str, float]) -> bool:
    return any(amount > total.get(name, 0.0) for name, amount in asked.items())


def _format_resources(resources: dict[str, float]) -> str:
    hidden = ("node:", "object_store", "memory")
    shown = {n: a for n, a in resources.items() if not n.startswith(hidden) and "_group_" not in n}
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(shown.items())) or "nothing"


def _texts(values: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in dict(values).items()}
