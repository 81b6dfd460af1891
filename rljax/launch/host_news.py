"""Prints what is to be said of hosts: above all what hinders them as long as they have not met."""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
from collections.abc import Sequence
from typing import Any

from rljax.launch.host_links import trouble_at, why_not_reached
from rljax.launch.host_process import Place
from sidecar.errors import printable


def say(line: str) -> None:
    """Prints what the program has to say of its hosts."""
    print(printable(f"rljax: {line}"), file=sys.stderr, flush=True)


def say_that_it_waits(place: Place, missing: Sequence[int], service: str, trouble: str, seconds: float) -> None:
    """Prints whom a host waits for.

    Args:
        place: of the host.
        missing: ranks of those whose supervisors have not come to host 0's; there alone that is known.
        service: HOST:PORT of JAX's, where the hosts meet whose supervisors have met; empty before they have.
        trouble: what hinders it, where that is known.
        seconds: that it has waited.
    """
    whom, where, known = "the others", f"JAX's service {service}", "the supervisors have met"
    if service and place.rank:  # another host may not have come: only host 0 knows
        known = "its supervisor has met host 0's"
    if not service:
        whom, where, known = f"host {', '.join(map(str, missing)) or 0}", place.coordinator, ""
    why = "; ".join(filter(None, (known, trouble)))
    waits = f"host {place.rank} of {place.number} waits for {whom} at {where}, {seconds:.0f} s so far"
    say(f"learner.hosts: {waits}{why and f' ({why})'}")


def say_where_jax_is_not_reached(place: Place, service: str) -> str:
    """Prints that a host cannot reach JAX's service, if so; returns why, or nothing."""
    if trouble := trouble_at(service):
        why = f"cannot reach JAX's service {service} ({trouble}), though the supervisors have met"
        say(f"learner.hosts: host {place.rank} of {place.number} {why}: open all ports there to it")
    return trouble


def warn_where_host_0_is_elsewhere(coordinator: str) -> None:
    """Prints that the others look for host 0 on another machine than this, on which it is, or by no known name."""
    machine = coordinator.rpartition(":")[0]
    try:
        found = socket.getaddrinfo(machine.strip("[]"), 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the second of a name that no machine can have
        what = f"{machine} is not known here ({why_not_reached(error)}), unless the others know it"
    else:
        what = f"host 0 is on {socket.gethostname()}, and {machine} is another machine, unless that leads here"
        if not all(_is_foreign(family, address) for family, _, _, _, address in found):
            return
    say(f"learner.hosts.coordinator={coordinator}: {what}; write host 0's, for all hosts")


def _is_foreign(family: int, address: Any) -> bool:
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as own:
        try:
            own.bind(address)
        except OSError as error:
            return error.errno == errno.EADDRNOTAVAIL
    return False
