"""Watches over the hosts of a learner, for one attempt: none outlives another by more than a bounded time.

It is a process that computes nothing and so hangs in nothing. It watches over the hosts that it has started, and speaks
with the supervisors of those of other machines. Whichever of all of them dies or is silent, it kills its own.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rljax.config.schema import Config
from rljax.interrupts import HARD_END, HOST_LOST
from rljax.interrupts import REFUSED as CONFIG_REFUSED
from rljax.launch.host_links import BEAT, END, ENDED, REFUSED, WELCOME, Door, Hello, Link, Visit, serve_jax
from rljax.launch.host_news import say, say_that_it_waits, say_where_jax_is_not_reached, warn_where_host_0_is_elsewhere
from rljax.launch.host_process import HostProcess, Place, how_it_ended
from rljax.launch.host_signs import Signs
from rljax.pipeline.run_dir import RunDir
from sidecar.workers import pulse

LOOK = 0.2
"""Seconds between looks at processes and clocks."""
GRACE = 60.0
"""Seconds in which all hosts have to end once one has, longer than those that JAX's own end of them may take; and once
they are killed.
"""
FRESH = 3 * pulse.SECONDS
"""Seconds after a sign of life in which a host is surely there."""
TELL = 20.0
"""Seconds between lines that say that other hosts have not started yet."""
FAREWELL = 10.0
"""Seconds that other supervisors have to end their hosts in, before JAX's service is taken from those."""
MEET = 600.0
"""Most seconds that hosts wait for each other at their start, also where ``wait_timeout`` is longer."""
DOING, LOST = "doing", "lost"
"""Beginnings of lines of a host: what it begins to do with the others, or nothing; how it has lost another."""


@dataclass(frozen=True)
class End:
    """The end of an attempt.

    Attributes:
        code: exit code.
        lost: what was lost, in a line; empty where nothing was.
        held: a host is left that cannot be killed: its devices cannot be used again.
    """

    code: int
    lost: str = ""
    held: bool = False


class Supervisor:
    """Starts hosts on this machine and watches over them and over those of other machines."""

    def __init__(
        self,
        config: Config,
        places: Sequence[Place],
        environment: dict[str, str] | None = None,
        *,
        linked: bool = False,
    ) -> None:
        """Starts the hosts; where host 0 is on another machine, `run` does, once they are let in there.

        Args:
            config: of the run.
            places: of the hosts of this machine.
            environment: variables of their processes.
            linked: there are hosts on other machines, whose supervisors this one speaks with.

        Raises:
            ConfigError: another program listens where host 0 is to.
        """
        self.stopping = 0
        self.hosts: list[HostProcess] = []
        self._config, self._places, self._environment = config, places, environment
        self._signs = Signs(config.learner.hosts.heartbeat_timeout, config.wait_timeout, GRACE)
        self._place = places[0]
        run = str(RunDir.at(config).root)
        self._hello = Hello(run, self._place.number, self._place.rank, socket.gethostname())
        self._machine = self._place.coordinator.rpartition(":")[0]
        self._door: Door | None = None
        self._service: Any = None
        self._links: list[Link] = []
        self._whys: dict[int, str] = {}
        self._signs.names = {place.rank: self._hello.name for place in places} if linked else {}
        self._end: End | None = None
        self._selector = selectors.DefaultSelector()
        self._looked = self._began = self._told = time.monotonic()
        self._here, self._met, self._trouble, self._port = not linked, False, "", 0
        if self._place.rank == 0:
            try:
                self._lead()
            except BaseException:
                self._kill()
                self._close()
                raise

    @property
    def _jax(self) -> str:
        return f"{self._machine}:{self._port}"

    def _lead(self) -> None:
        """Lets others come, where there are any, has JAX listen, and starts the hosts here."""
        local = _is_loopback(self._machine)
        if not self._here:
            self._door = Door(self._place.coordinator, local)
            self._watch(self._door.sock, self._let_in)
            warn_where_host_0_is_elsewhere(self._place.coordinator)
        silence = self._config.learner.hosts.heartbeat_timeout
        self._service, self._port = serve_jax(silence, self._place.number, local, GRACE)
        self._start()

    def _start(self) -> None:
        for place in self._places:
            host = HostProcess(self._config, place, self._jax, self._environment)
            self.hosts.append(host)
            self._signs.seen[host.rank] = time.monotonic()
            self._watch(host.pulses.descriptor, partial(self._hear, host))

    def run(self) -> End:
        """Watches until all hosts of this machine have ended; returns how."""
        try:
            if not self.hosts:
                self._come()
            while self._end is None:
                for key, _ in self._selector.select(LOOK):
                    key.data()
                self._look()
        finally:
            left = self._kill()
            self._close()
        assert self._end is not None
        if left and self._end.lost:
            return End(self._end.code, f"{self._end.lost}; {left}", held=True)
        if left:
            say(left)
        return self._end

    def _kill(self) -> str:
        """Kills all hosts here; returns which of them cannot be killed, in a line, or nothing."""
        for host in self.hosts:
            host.kill()
        deadline = time.monotonic() + GRACE
        for host in self.hosts:
            self._forget(host.pulses.descriptor)
        left = [host for host in self.hosts if not host.close(deadline - time.monotonic())]
        why = "cannot be killed: its disk or driver hangs"
        return "; ".join(f"host {host.rank} (pid {host.process.pid}) {why}" for host in left)

    def _close(self) -> None:
        if self._door is not None:
            self._forget(self._door.sock)  # who comes now comes to the next start
            self._door.close()
            deadline = time.monotonic() + FAREWELL
            while any(link.rank is not None for link in self._links) and time.monotonic() < deadline:
                for key, _ in self._selector.select(LOOK):
                    key.data()
        for link in self._links:
            link.close()
        self._selector.close()
        if self._service is not None:
            self._service.shutdown()

    def _come(self) -> None:
        """Comes to the supervisor of host 0, and starts the hosts here once they are let in."""
        visit = Visit(self._place.coordinator, self._hello)
        while self._end is None and not self.hosts:
            now = self._looked = time.monotonic()
            self._tell_of_others(now)
            if self.stopping:
                self._stop_before_all_met()
            elif now - self._began > (most := min(self._config.wait_timeout, MEET)):
                place, waited = self._place, f"{most:g} s"
                said = f"host {place.rank} of {place.number} did not meet host 0 within {waited} ({visit.trouble})"
                self._lose(f"learner.hosts.coordinator={place.coordinator}: {said}; give it the same coordinator")
            else:
                for line in visit.read(LOOK):
                    self._take_answer(visit, line)
                self._trouble = self._trouble if self.hosts else visit.trouble
        if self._end is not None:
            visit.close()

    def _take_answer(self, visit: Visit, line: str) -> None:
        """Takes in what host 0's supervisor says to who comes to it."""
        assert visit.link is not None
        what, _, rest = line.partition(" ")
        if self.hosts:
            self._take_in(visit.link, line)
        elif what == REFUSED:
            say(f"learner.hosts.coordinator={self._place.coordinator}: {rest}")
            self._end = End(CONFIG_REFUSED)
        elif what == WELCOME:
            self._port, visit.link.name = int(rest), visit.link.name or self._machine
            self._links.append(visit.link)
            self._greet(visit.link)
            self._watch(visit.link.sock, partial(self._listen, visit.link))
            self._start()
            self._trouble = say_where_jax_is_not_reached(self._place, self._jax)

    def _stop_before_all_met(self) -> None:
        """Ends all: a host that waits for others in JAX hears of no signal, and there is nothing to save."""
        say(f"{signal.Signals(self.stopping).name}: stopped before the hosts had met; nothing had begun")
        self._say(f"{END} {self._signs.name(self._place.rank)} was stopped before all had met")
        self._end = End(128 + self.stopping)

    def stop(self, number: int) -> None:
        """Passes a signal on to the first host here, which tells the others; before all have met, ends them. Any signal
        handler.
        """
        self.stopping = number
        if self._met:
            with contextlib.suppress(ProcessLookupError):
                self.hosts[0].process.send_signal(number)

    def _look(self) -> None:
        codes = {host.rank: host.process.poll() for host in self.hosts if host.rank not in self._signs.ended}
        ended = [(code, rank) for rank, code in codes.items() if code is not None]
        for code, rank in sorted(ended):  # who was killed, which is below 0, comes before who has lost it
            self._has_ended(rank, code)
        if self._end is None and all(host.rank in self._signs.ended for host in self.hosts):
            self._end = End(max((self._signs.ended[host.rank] for host in self.hosts), default=0))
        now = time.monotonic()
        self._make_good(now)
        for link in [one for one in self._links if one.stays_silent(now)]:
            self._part(link)
        self._tell_of_others(now)
        if self._end is None and self.stopping and not self._met:
            self._stop_before_all_met()
        for host in self.hosts:
            if now - self._signs.seen[host.rank] > 2 * pulse.SECONDS and host.has_computed():
                self._lives(host)
        if why := self._signs.lost(now):
            self._lose(why)

    def _tell_of_others(self, now: float) -> None:
        """Says from time to time that hosts of other machines are waited for, and what hinders them."""
        if self._here or now - self._told < TELL:
            return
        self._told, place = now, self._place
        missing = [rank for rank in range(place.number) if rank not in self._signs.seen] if place.rank == 0 else []
        if place.rank or missing or not self._met:
            service = self._jax if self.hosts and not missing else ""
            say_that_it_waits(place, missing, service, self._trouble, now - self._began)

    def _make_good(self, now: float) -> None:
        """Counts against nobody the time in which this process stood still itself, as its whole machine may have."""
        stood = now - self._looked - LOOK
        self._looked = now
        if stood > pulse.SECONDS:
            self._signs.make_good(stood)

    def _has_ended(self, rank: int, code: int) -> None:
        self._signs.ends(rank, code, time.monotonic())
        self._say(f"{ENDED} {rank} {code}")
        if self._end is not None:
            return
        if self.stopping and code in (-self.stopping, 128 + self.stopping, -HARD_END):  # there was nothing to save yet
            self._say(f"{END} {self._signs.name(rank)} was stopped before there was anything to save")
            self._end = End(code if code > 0 else 128 - code)
        elif code < 0 or code == HOST_LOST:
            ended = how_it_ended(code) if code < 0 else "has lost another"
            self._lose(self._heard_last(rank) or f"{self._signs.name(rank)} {ended}")

    def _lose(self, why: str) -> None:
        """Ends all. Where a host has said itself why it ended, the others have lost it by that, and it is no loss: to
        start again would end in the same way.
        """
        if self._end is None:
            self._say(f"{END} {why}")
            self._end = End(HOST_LOST, why)
            if said := self._signs.said_why():
                code, rank = said
                self._end = End(code)
                if rank not in {host.rank for host in self.hosts}:
                    say(f"{self._signs.name(rank)} ended with exit code {code}; its output says why")

    def _say(self, line: str, but: Link | None = None) -> None:
        for link in self._links:
            if link is not but and link.rank is not None:
                link.send(line)

    def _hear(self, host: HostProcess) -> None:
        self._lives(host)
        try:
            for line in host.pulses.read():
                what, _, rest = line.partition(" ")
                if what == LOST:
                    self._whys[host.rank] = rest
                elif what == DOING:
                    self._signs.begins(host.rank, rest, time.monotonic())
                    if not self._met:
                        self._met = True
                        if self.stopping:  # meanwhile
                            self.stop(self.stopping)
                    if rest and not self._here:
                        self._trains()
        except EOFError:
            self._forget(host.pulses.descriptor)

    def _heard_last(self, rank: int) -> str:
        """Returns how a host of this machine that has ended has lost another, if it said so."""
        for host in self.hosts:
            if host.rank == rank:
                self._hear(host)
        return self._whys.get(rank, "")

    def _lives(self, host: HostProcess) -> None:
        self._signs.seen[host.rank] = time.monotonic()
        self._say(BEAT)

    def _let_in(self) -> None:
        assert self._door is not None
        if (link := self._door.accept()) is not None:
            self._links.append(link)
            self._watch(link.sock, partial(self._listen, link))

    def _trains(self) -> None:
        """Says, once, that a host other than 0 is one of those that train: nothing else is printed here."""
        self._here = True
        if self._place.rank:
            trains = f"host {self._place.rank} of {self._place.number} trains with {self._signs.name(0)}"
            say(f"learner.hosts: {trains}, which prints the progress")

    def _greet(self, link: Link) -> None:
        assert link.rank is not None
        self._signs.names[link.rank] = link.name
        self._signs.seen[link.rank] = time.monotonic()

    def _listen(self, link: Link) -> None:
        try:
            for line in link.read():
                if link.rank is not None:
                    self._take_in(link, line)
                elif not self._admits(link, line):
                    self._part(link)
                    return
        except EOFError:
            self._part(link)
            if link.rank is not None and link.rank not in self._signs.ended:
                self._lose(f"{self._signs.name(link.rank)} is gone, and its supervisor")

    def _admits(self, link: Link, line: str) -> bool:
        """Returns whether a first line is that of a host which is waited for, and answers it."""
        hello = Hello.read(line)
        if hello is None:
            return False
        refusal = self._hello.refusal_of(hello)
        if hello.rank in self._signs.ended:
            return False  # all are about to end: it comes to the next start
        if not refusal and hello.rank in self._signs.seen:
            if time.monotonic() - self._signs.seen[hello.rank] > FRESH:
                return False  # it may be lost: who replaces it tries again, until it is or shows that it lives
            refusal = f"host {hello.rank} of this run is here already ({self._signs.names[hello.rank]})"
        if refusal:
            link.send(f"{REFUSED} {refusal}")
            return False
        link.rank, link.name = hello.rank, hello.name
        self._greet(link)
        link.welcome(self._port, self._hello.name)
        return True

    def _take_in(self, link: Link, line: str) -> None:
        assert link.rank is not None
        what, _, rest = line.partition(" ")
        if what == BEAT:
            self._signs.seen[link.rank] = time.monotonic()
        elif what == ENDED:
            self._say(line, but=link)
            rank, _, code = rest.partition(" ")
            self._signs.ends(int(rank), int(code), time.monotonic())
        elif what == END:
            self._lose(rest)

    def _part(self, link: Link) -> None:
        self._selector.unregister(link.sock)
        self._links.remove(link)
        link.close()

    def _watch(self, what: object, act: Callable[[], None]) -> None:
        self._selector.register(what, selectors.EVENT_READ, act)  # type: ignore[arg-type]

    def _forget(self, what: object) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(what)  # type: ignore[arg-type]


def _is_loopback(machine: str) -> bool:
    return machine in ("localhost", "127.0.0.1", "[::1]")
