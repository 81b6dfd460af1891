"""Ray clusters that runs start for themselves: nobody else's, and no larger than a run needs."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
from collections.abc import Iterator
from typing import Any

import ray


@contextlib.contextmanager
def of_this_run_alone() -> Iterator[None]:
    """Has Ray start clusters that listen on loopback alone, know their clients by a token, and start no worker ahead.

    Ray's processes inherit the token. By itself Ray would leave one in the user's home, for everybody to read. A worker
    that it starts beforehand lacks `runtime_env`, and is never used. All have our priority, and not Ray's lower one.
    """
    constants: Any = ray._private.ray_constants
    raylet: Any = ray._raylet
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
        os.environ.update(ours)
        take_effect()
        try:
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

    `ray.init` waits for the last. Together they take two fifths of its time, and some 280 MB.
    """
    parameter: Any = ray._private.parameter
    parameters = functools.partial(parameter.RayParams, no_monitor=True, include_log_monitor=False)
    with (
        replaced(parameter, "RayParams", parameters),
        replaced(ray._private.node.Node, "start_api_server", lambda *_, **__: None),
    ):
        yield


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Gives an attribute of Ray's own another value for a while."""
    former = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, former)
