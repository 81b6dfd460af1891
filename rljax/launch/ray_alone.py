"""Ray clusters that runs start for themselves: nobody else's, and no larger than a run needs."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
from collections.abc import Iterator
from typing import Any

import ray

KNOWN = "2.60.0"
"""Version of Ray whose own names are used here."""


class ClusterError(RuntimeError):
    """The cluster cannot be used: one line with what, where and what to do."""


@contextlib.contextmanager
def of_this_run_alone() -> Iterator[None]:
    """Has Ray start clusters that listen on loopback alone, know their clients by a token, and start no worker ahead.

    Ray's processes inherit the token. By itself Ray would leave one in the user's home, for everybody to read. A worker
    that it starts beforehand lacks `runtime_env`, and is never used. All have our priority, and not Ray's lower one.

    Raises:
        ClusterError: this version of Ray has no longer what closes a cluster to others.
    """
    constants: Any = ray._private.ray_constants
    raylet: Any = ray._raylet
    closing = {
        constants: ("ENABLE_RAY_CLUSTER", "ENABLE_RAY_CLUSTERS_ENV_VAR"),
        raylet: ("Config", "AuthenticationTokenLoader"),
    }
    if missing := [name for owner, names in closing.items() for name in names if not hasattr(owner, name)]:
        raise ClusterError(
            f"launcher=ray: Ray {ray.__version__} has no {', '.join(missing)}, by which a run closes its cluster to "
            f"others; install ray=={KNOWN}, or start a cluster by `ray start` and name it in ray.address"
        )
    ours = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_prestart_worker_first_driver": "0",
        "RAY_worker_niceness": os.environ.get("RAY_worker_niceness", "0"),  # noqa: SIM112
        constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0",
    }
    former = {name: os.environ.get(name) for name in ours}

    def take_effect() -> None:
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()

    with replaced(constants, "ENABLE_RAY_CLUSTER", False), _lean():
        try:
            os.environ.update(ours)
            take_effect()
            yield
        finally:
            for name, value in former.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
            take_effect()


@contextlib.contextmanager
def _lean() -> Iterator[None]:
    """Has a head start none of three processes that would have nothing to do: one scales clusters, one prints what
    workers log, which nobody reads, and without a dashboard one reports Ray's use, which is switched off.

    `ray.init` waits for the last. Together they take two fifths of its time, and some 280 MB. Where Ray has given one
    of these names up, it starts what it starts.
    """
    private: Any = ray._private
    made = getattr(private.parameter, "RayParams", None)
    parameters = functools.partial(made, no_monitor=True, include_log_monitor=False) if made else None
    with (
        replaced(private.parameter, "RayParams", parameters),
        replaced(private.node.Node, "start_api_server", lambda *_, **__: None),
    ):
        yield


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Gives an attribute of Ray's own another value for a while, if it has that attribute."""
    if not hasattr(owner, name):
        yield
        return
    former = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, former)
