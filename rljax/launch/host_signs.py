"""Keeps what is known of the hosts of an attempt: when each has last lived, what it does, and how it has ended.

Whoever asks brings the time: seconds of one clock.
"""

from __future__ import annotations

from rljax.interrupts import HOST_LOST


class Signs:
    """The signs that hosts have given, and what they mean.

    Attributes:
        names: of machines, by the rank of their host; of those that are known.
        seen: when a host of each rank has last shown that it lives; of those that have come.
        ended: exit codes by rank, as `subprocess.Popen` gives them; of those that have ended.
    """

    def __init__(self, timeout: float, wait_timeout: float, grace: float) -> None:
        """Takes the seconds after which a silent host is lost, one that does not come to an end of what it does, and
        one that does not end when another has.
        """
        self.names: dict[int, str] = {}
        self.seen: dict[int, float] = {}
        self.ended: dict[int, int] = {}
        self._timeout, self._wait_timeout, self._grace = timeout, wait_timeout, grace
        self._doing: dict[int, tuple[str, float]] = {}
        self._deadline: float | None = None

    def name(self, rank: int) -> str:
        """Returns how messages call a host."""
        return f"host {rank} ({self.names[rank]})" if rank in self.names else f"host {rank}"

    def begins(self, rank: int, what: str, now: float) -> None:
        """Takes down what a host begins to do with all others; nothing where ``what`` is empty."""
        self._doing[rank] = (what, now)

    def ends(self, rank: int, code: int, now: float) -> None:
        """Takes down the end of a host, after which the others have to end too."""
        self.ended.setdefault(rank, code)
        self._deadline = self._deadline or now + self._grace

    def make_good(self, seconds: float) -> None:
        """Counts against nobody the seconds in which this process stood still itself."""
        self.seen = {rank: seen + seconds for rank, seen in self.seen.items()}
        self._doing = {rank: (what, since + seconds) for rank, (what, since) in self._doing.items()}
        self._deadline = self._deadline and self._deadline + seconds

    def lost(self, now: float) -> str:
        """Returns which host is lost, and by what sign; empty where none is."""
        for rank, seen in self.seen.items():
            if rank not in self.ended and now - seen > self._timeout:
                said = f"has shown no sign of life for {self._timeout:g} s (learner.hosts.heartbeat_timeout)"
                return f"{self.name(rank)} {said}"
        for rank, (what, since) in self._doing.items():
            if what and rank not in self.ended and now - since > self._wait_timeout:
                said = f"did not come to an end within {self._wait_timeout:g} s (wait_timeout)"
                return f"{self.name(rank)} {said}: {what}"
        if self._deadline is not None and now > self._deadline:
            left = ", ".join(self.name(rank) for rank in sorted(self.seen) if rank not in self.ended)
            return f"{left} did not end within {self._grace:g} s after another host had"
        return ""

    def said_why(self) -> tuple[int, int] | None:
        """Returns exit code and rank of a host that has said itself why it ended; None where none has."""
        said = {code: rank for rank, code in self.ended.items() if 0 < code < 128 and code != HOST_LOST}
        return max(said.items(), default=None)
