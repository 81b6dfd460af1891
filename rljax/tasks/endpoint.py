"""Asks an endpoint that others serve, over HTTP: a judge's, or a teacher's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rljax.timeouts import timeout

if TYPE_CHECKING:
    import httpx

_AGAIN = {408, 409, 425, 429}  # and whatever is the server's own fault
_SHOWN = 200


def bearer(key_variable: str | None, error: type[Exception]) -> dict[str, str]:
    """Returns the header that shows the key in an environment variable; none where None is named.

    Raises:
        error: the variable is not set, or has what no header can; the key is not said.
    """
    if key_variable is None:
        return {}
    key = os.environ.get(key_variable, "").strip()  # a secret that is mounted may end with its line
    if not key:
        raise error(f"the environment variable {key_variable} (key_variable) is not set")
    if not (key.isascii() and key.isprintable()):  # what sends it would print it with its refusal
        raise error(
            f"the environment variable {key_variable} (key_variable) is no key: it has other than printable ASCII"
        )
    return {"Authorization": f"Bearer {key}"}


async def asked(
    client: httpx.AsyncClient,
    address: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str],
    seconds: float,
    where: str,
    error: type[Exception],
) -> tuple[Any, str]:
    """Returns what the endpoint answers to a body, read as JSON; or None, and why there is none: asking again may help.

    Args:
        client: that asks.
        address: that is posted to.
        body: of the request, as JSON.
        headers: of the request.
        seconds: for the whole of it.
        where: names the endpoint in errors.
        error: class of what is raised.

    Raises:
        error: asking again is vain; one line that says why.
    """
    import httpx

    try:
        async with timeout(seconds):  # httpx's own is one of each read: it begins anew with each byte
            answer = await client.post(address, json=body, headers=headers, timeout=None)
    except httpx.InvalidURL as fault:
        raise error(f"{where}: {fault}") from fault
    except httpx.UnsupportedProtocol as fault:
        raise error(f"{where}: write http:// or https:// before it") from fault
    except TimeoutError:
        return None, f"no answer within {seconds:g} s"
    except httpx.TransportError as fault:
        return None, f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__
    said = " ".join(answer.text.split())[:_SHOWN] if answer.status_code != 200 else ""
    if answer.status_code in _AGAIN or answer.status_code >= 500:
        return None, f"status {answer.status_code}: {said}"
    if answer.status_code != 200:
        raise error(f"{where}: status {answer.status_code}: {said}")
    try:
        return answer.json(), ""
    except ValueError:
        return None, f"no completion in {answer.text[:_SHOWN]!r}"
