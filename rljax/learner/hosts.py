"""Hosts: the processes that are one learner together, and what they say to each other beside the arrays that their
devices exchange: through the key-value store of JAX's coordination service, which is in the supervisor of host 0.

Host 0 leads. It announces what it is about to do; all do it, after they have agreed on what it is.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.errors import JaxRuntimeError

from rljax.interrupts import HOST_LOST

JAX_LATER = 10
"""Times `learner.hosts.heartbeat_timeout` after which JAX too takes a host for dead: supervisors are to be first."""
_PREFIX = "rljax/"
_CHUNK = 2**20
"""Bytes of a value: all of it has to come within one wait, or it never does; and gRPC carries four times as many by
default.
"""
_LOOK = 1.0
"""Seconds of one wait in JAX: Python handles no signal before it returns."""
_EXCHANGES = re.compile(r"\bgloo\b|\bnccl", re.IGNORECASE)
"""Names of what exchanges arrays between hosts, in its errors: it has no types for them."""
_FAILED = "failed"
"""Name under which a host says why it cannot go on, in place of what it agrees to."""


class HostsError(Exception):
    """The hosts of a learner cannot go on together. One line: which host, what, what to do.

    It is no RuntimeError, which who writes files takes for a failure of the disk.

    Attributes:
        exit_code: of the program; the same on every host.
    """

    exit_code = 1

    def __init__(self, line: str, exit_code: int | None = None) -> None:
        super().__init__(line)
        if exit_code is not None:
            self.exit_code = exit_code


class HostLost(HostsError):
    """Another host is late, or cannot be reached. The same command may go on from the last checkpoint."""

    exit_code = HOST_LOST


def means_loss(error: BaseException) -> bool:
    """Returns whether an error, or its cause, says that another host is lost: in our words, or in those of what
    exchanges arrays.
    """
    exchanges = isinstance(error, JaxRuntimeError | ValueError) and _EXCHANGES.search(str(error)) is not None
    caused = error.__cause__ is not None and means_loss(error.__cause__)
    return isinstance(error, HostLost) or exchanges or caused


@dataclass(frozen=True)
class Announcement:
    """Something that host 0 is about to do: its name, what JSON can hold of it, and bytes."""

    what: str
    said: Mapping[str, Any] = field(default_factory=dict)
    parts: Sequence[bytes] = ()


class Hosts:
    """One host's end of the conversation. Host 0 calls `announce`, the others `hear`; then all call `agree`.

    Attributes:
        rank: number of this host, from 0.
        number: of hosts.
        names: of the hosts by rank, for messages; numbers alone until `exchange_names`.
        doing: is called with what this host begins to do with all others, and with "" when it is done: on hosts other
            than 0 by `agree` and `hear`, on host 0 by who waits for a disk, until the next `announce`.
    """

    def __init__(self, client: Any, rank: int, number: int, timeout: float) -> None:
        """Takes the client of JAX's coordination service, and the seconds after which a host is late."""
        self.rank, self.number = rank, number
        self.names = [f"host {other}" for other in range(number)]
        self.doing: Callable[[str], None] = lambda what: None
        self._client = client
        self._timeout = timeout
        self._count = self._shared = 0
        self._current = ""
        self._stopped = threading.Event()

    @property
    def leads(self) -> bool:
        """True on host 0."""
        return self.rank == 0

    def exchange_names(self, name: str) -> None:
        """Has every host learn the names of all.

        Raises:
            HostLost: a host did not come in time.
        """
        self._set(f"name/{self.rank}", name.encode())
        for rank in range(self.number):
            said = self._await(f"name/{rank}", f"{self.names[rank]} to start")
            self.names[rank] = f"host {rank} ({said.decode()})"

    def announce(self, what: str, said: Mapping[str, Any] | None = None, parts: Sequence[bytes] = ()) -> None:
        """Says what host 0 is about to do; see `Announcement`."""
        self.doing("")
        self._count += 1
        self._set_whole(f"{self._count}/parts", b"".join(parts))
        header = {"what": what, "said": said or {}, "lengths": [len(part) for part in parts]}
        self._set(f"{self._count}/announced", json.dumps(header).encode())

    def hear(self) -> Announcement:
        """Waits, however long host 0 takes, for what it announces next; a supervisor ends this process when host 0 is
        lost.

        Raises:
            HostLost: host 0 cannot be reached.
        """
        self.doing("")
        self._count += 1
        header = json.loads(self._await_leader(f"{self._count}/announced"))
        whole = self._await_whole(f"{self._count}/parts", f"the rest of what {self.names[0]} announced")
        parts, start = [], 0
        for length in header["lengths"]:
            parts.append(whole[start : start + length])
            start += length
        return Announcement(header["what"], header["said"], parts)

    def agree(self, what: str, mine: Mapping[str, str] | None = None) -> tuple[float, int]:
        """Waits until all hosts are ready to do what was announced, and compares what each says of it.

        Args:
            what: is about to be done, for messages.
            mine: what this host says, by names that a message can use; host 0's is what all have to say.

        Returns:
            Seconds that host 0 waited, and the rank of the host that was last, 1 where it waited for none; of others 0
            and 0.

        Raises:
            HostLost: a host is late.
            HostsError: one cannot go on, or says something else.
        """
        mine, key = mine or {}, str(self._count)
        if not self.leads:
            self._set(f"{key}/ready/{self.rank}", json.dumps(mine).encode())
            if heard := json.loads(self._await_leader(f"{key}/go")):
                raise HostsError(*heard)
            self._current = what
            self.doing(what)
            return 0.0, 0
        began = time.monotonic()
        refusal: tuple[str, int] | None = None
        waited, slowest = 0.0, 1
        for rank in range(1, self.number):
            place = f"{key}/ready/{rank}"
            if (said := self._try_get(place)) is None:  # it comes after all that were asked before it
                said = self._await(place, f"{self.names[rank]} to {what}", began)
                waited, slowest = time.monotonic() - began, rank
            theirs = json.loads(said)
            refusal = refusal or self._difference(rank, mine, theirs)
        self._set(f"{key}/go", json.dumps(refusal).encode())
        self._client.key_value_delete(f"{_PREFIX}{self._count - 1}/")  # all have read what was before
        if refusal:
            raise HostsError(*refusal)
        return waited, slowest

    def _difference(self, rank: int, mine: Mapping[str, str], theirs: Mapping[str, Any]) -> tuple[str, int] | None:
        """Returns why they cannot go on, and the exit code for it; None where they can."""
        if _FAILED in theirs:
            why, code = theirs[_FAILED]
            return f"{self.names[rank]}: {why}", code
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) != theirs.get(name):
                return (
                    f"{self.names[rank]}: its {name} is another than that of {self.names[0]}; start all hosts of a "
                    "learner with the same config, program and files"
                ), HostsError.exit_code
        return None

    def fail(self, why: str, exit_code: int) -> None:
        """Says why this host, not host 0, cannot do what was announced: host 0 hears it where it waits for this one,
        or, where that was agreed on before, when it asks for the next.
        """
        said = json.dumps({_FAILED: (why, exit_code)}).encode()
        for count in (self._count, self._count + 1):
            self._client.key_value_set_bytes(f"{_PREFIX}{count}/ready/{self.rank}", said, allow_overwrite=True)

    def refuse(self, why: str, exit_code: int) -> None:
        """Says why host 0 cannot do what it has announced: the others hear it where they wait for it to agree, unless
        they have been told already.
        """
        said = json.dumps((f"{self.names[0]} has ended: {why}", exit_code)).encode()
        with contextlib.suppress(JaxRuntimeError):
            self._client.key_value_set_bytes(f"{_PREFIX}{self._count}/go", said)

    def gather(self, what: str, mine: bytes, timeout: float | None = None) -> list[bytes]:
        """Returns what each host gives within some seconds, by rank; to host 0 alone. It may be of any size.

        Raises:
            HostLost: a host is late.
        """
        if not self.leads:
            self._set_whole(f"{self._count}/given/{self.rank}", mine)
            return []
        began, key, others = time.monotonic(), f"{self._count}/given", range(1, self.number)
        theirs = (self._await_whole(f"{key}/{r}", f"{self.names[r]} to {what}", began, timeout) for r in others)
        return [mine, *theirs]

    def share(self, what: str, mine: bytes | None) -> bytes:
        """Returns on every host what host 0, which alone gives any, needed to ``what`` is under way. It may be of any
        size.

        Raises:
            HostLost: host 0 cannot be reached.
        """
        self._shared += 1
        key = f"{self._count}/shared/{self._shared}"
        if mine is not None:
            self._set_whole(key, mine)
            return mine
        self.doing("")  # however long host 0 takes
        self._await_leader(f"{key}/chunks")
        self.doing(self._current)
        return self._await_whole(key, f"{self.names[0]} to {what}")

    def ask_to_stop(self) -> None:
        """Asks host 0 to save a checkpoint and end; returns at once."""
        self._client.key_value_set_bytes(f"{_PREFIX}stop", self.names[self.rank].encode(), allow_overwrite=True)

    def watch_for_stop(self, stop: Callable[[str], None]) -> None:
        """Has host 0 call ``stop`` with the name of the host that asks for it, in a thread of its own."""

        def watch() -> None:
            while not self._stopped.wait(_LOOK):
                if (asked := self._try_get("stop")) is not None:
                    stop(asked.decode())
                    return

        threading.Thread(target=watch, name="hosts", daemon=True).start()

    def close(self) -> None:
        """Ends the thread of `watch_for_stop`."""
        self._stopped.set()

    def _set(self, key: str, value: bytes) -> None:
        try:
            self._client.key_value_set_bytes(f"{_PREFIX}{key}", value)
        except JaxRuntimeError as error:
            raise self._unreached(error) from error

    def _set_whole(self, key: str, whole: bytes) -> None:
        """Sets what may be too large for one value, the number of its chunks last."""
        starts = range(0, len(whole), _CHUNK)
        for number, start in enumerate(starts):
            self._set(f"{key}/{number}", whole[start : start + _CHUNK])
        self._set(f"{key}/chunks", str(len(starts)).encode())

    def _await_whole(self, key: str, what: str, since: float | None = None, timeout: float | None = None) -> bytes:
        count = int(self._await(f"{key}/chunks", what, since, timeout))
        return b"".join(self._await(f"{key}/{number}", what, since, timeout) for number in range(count))

    def _await_leader(self, key: str) -> bytes:
        # Host 0 says who is late, and each of its own waits has a deadline; it is found dead by supervisors.
        while (found := self._get(key, _LOOK)) is None:
            pass
        return found

    def _await(self, key: str, what: str, since: float | None = None, timeout: float | None = None) -> bytes:
        seconds = self._timeout if timeout is None else timeout
        deadline = (time.monotonic() if since is None else since) + seconds
        while True:
            if (found := self._get(key, min(_LOOK, max(deadline - time.monotonic(), 0.001)))) is not None:
                return found
            if time.monotonic() > deadline:
                raise HostLost(f"waited {seconds:g} s (wait_timeout) for {what}; look at its log and its machine")

    def _get(self, key: str, seconds: float) -> bytes | None:
        try:
            found: bytes = self._client.blocking_key_value_get_bytes(f"{_PREFIX}{key}", int(1000 * seconds) or 1)
        except JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise self._unreached(error) from error
        return found

    def _try_get(self, key: str) -> bytes | None:
        try:
            found: bytes = self._client.key_value_try_get_bytes(f"{_PREFIX}{key}")
        except JaxRuntimeError:  # there is none; or nothing can be asked any more, which others notice
            return None
        return found

    def _unreached(self, error: JaxRuntimeError) -> HostLost:
        reason = " ".join(str(error).split())[:200]
        return HostLost(f"{self.names[self.rank]}: {self.names[0]} cannot be reached: {reason}")
