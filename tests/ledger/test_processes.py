"""Who is alive, and what becomes of the claims of the dead."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rljax.ledger import claims, processes
from rljax.ledger.audit import audit
from rljax.ledger.backend import Backend
from rljax.ledger.database import LedgerError, StaleWriterError
from tests.ledger.builders import LedgerBench, make_spec, sql
from tests.waiting import HANGS


def set_row(bench: LedgerBench, name: str, **values: object) -> None:
    """Edits what a process said of itself, as if it had been another."""
    for column, value in values.items():
        sql(bench.db, f"UPDATE processes SET {column}=:value WHERE name=:name", value=value, name=name)


def a_dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait(timeout=HANGS)
    return child.pid


def test_an_alive_process_refuses_a_second_of_its_name(place: Backend) -> None:
    bench = LedgerBench(place, make_spec())
    with pytest.raises(LedgerError, match=r"an explorer named 'e' is alive here \(pid \d+ on .*explorer\.name") as info:
        processes.register(bench.db, "e", "explorer")
    assert "\n" not in str(info.value)
    processes.register(bench.db, "trainer", "trainer")
    with pytest.raises(LedgerError, match=r"a trainer named 'trainer' is alive here .* end it first$"):
        processes.register(bench.db, "trainer", "trainer")


def test_a_declaration_of_death_is_taken_back_unless_somebody_came(place: Backend) -> None:
    bench = LedgerBench(place, make_spec())
    token = processes.register(bench.db, "trainer", "trainer")
    bench.clock.now += 100
    processes.heartbeat(bench.db, "e", bench.token)
    with pytest.raises(StaleWriterError):
        processes.heartbeat(bench.db, "trainer", token)
    assert processes.revive(bench.db, "trainer", token)
    processes.heartbeat(bench.db, "trainer", token)
    with pytest.raises(LedgerError, match="is alive here"):
        processes.register(bench.db, "trainer", "trainer")
    set_row(bench, "trainer", alive=False)
    processes.register(bench.db, "trainer", "trainer")
    assert not processes.revive(bench.db, "trainer", token)


def test_a_dead_process_of_this_host_is_buried_at_once(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(b=2))
    assert len(bench.claim()) == 4
    set_row(bench, "e", pid=a_dead_pid())
    assert processes.mark_dead_processes(bench.db) == ["e"]
    assert claims.states(bench.db) == {"open": 4}
    assert audit(bench.db)["faults"] == {"died": 1}
    assert processes.mark_dead_processes(bench.db) == []


def test_a_dead_explorer_is_replaced_by_one_of_its_name(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(b=2))
    bench.claim()
    set_row(bench, "e", pid=a_dead_pid())
    token = processes.register(bench.db, "e", "explorer")
    assert claims.states(bench.db) == {"open": 4}
    with pytest.raises(StaleWriterError):
        processes.heartbeat(bench.db, "e", bench.token)
    processes.heartbeat(bench.db, "e", token)
    processes.leave(bench.db, "e", bench.token)
    processes.heartbeat(bench.db, "e", token)  # the goodbye of an earlier life is not this one's


def test_a_pid_that_was_given_to_another_process_does_not_count_as_alive(place: Backend) -> None:
    """In a container the restarted program often has the pid of the one that was killed: its own."""
    bench = LedgerBench(place, make_spec(b=2))
    bench.claim()
    set_row(bench, "e", started=sql(bench.db, "SELECT started FROM processes")[0].started - 30)
    processes.register(bench.db, "e", "explorer")
    assert claims.states(bench.db) == {"open": 4}


def test_a_silent_process_is_buried_by_anothers_heartbeat(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(b=2, claim_timeout=60.0))
    trainer = processes.register(bench.db, "trainer", "trainer")
    bench.claim()
    bench.clock.now += 60
    processes.heartbeat(bench.db, "trainer", trainer)
    assert claims.states(bench.db) == {"claimed": 4}
    bench.clock.now += 1
    processes.heartbeat(bench.db, "trainer", trainer)
    assert claims.states(bench.db) == {"open": 4}
    assert audit(bench.db)["faults"] == {"silent": 1}
    with pytest.raises(StaleWriterError, match="e: declared dead after 60 s without a heartbeat"):
        processes.heartbeat(bench.db, "e", bench.token)
    # It may come back, as a new life.
    token = processes.register(bench.db, "e", "explorer")
    processes.heartbeat(bench.db, "e", token)


def test_another_host_is_judged_by_its_heartbeat(place: Backend) -> None:
    bench = LedgerBench(place, make_spec())
    set_row(bench, "e", host="elsewhere", pid=a_dead_pid())
    assert processes.mark_dead_processes(bench.db) == []
    with pytest.raises(LedgerError, match="on elsewhere"):
        processes.register(bench.db, "e", "explorer")
    bench.clock.now += 61
    assert processes.mark_dead_processes(bench.db) == ["e"]


def test_gauges_are_those_of_the_living(place: Backend) -> None:
    bench = LedgerBench(place, make_spec())
    processes.heartbeat(bench.db, "e", bench.token, 0, {"busy_seconds": 2.5})
    assert processes.gauges(bench.db, "explorer") == {"e": {"busy_seconds": 2.5}}
    assert processes.gauges(bench.db, "trainer") == {}
    processes.leave(bench.db, "e", bench.token)
    assert processes.gauges(bench.db, "explorer") == {}


def test_faults_are_counted_by_kind(place: Backend) -> None:
    bench = LedgerBench(place, make_spec())
    for kind in ("timeout", "timeout", "bad_row"):
        processes.note(bench.db, "e", kind, "x" * 5000)
    assert audit(bench.db)["faults"] == {"timeout": 2, "bad_row": 1}
