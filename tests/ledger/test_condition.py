"""What the ledger says of a run to who only looks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rljax.ledger import leases, processes
from rljax.ledger.backend import Backend
from rljax.ledger.condition import condition
from rljax.ledger.leases import LeasedBatch
from rljax.ledger.sqlite import SqliteFile
from tests.ledger.builders import LedgerBench, fast_directory, make_spec
from tests.ledger.test_processes import a_dead_pid, set_row
from tests.waiting import HANGS

LOOK = """
import pathlib, sys
from rljax.ledger.condition import condition
from rljax.ledger.database import Database
from rljax.ledger.sqlite import SqliteFile
db = Database(SqliteFile(pathlib.Path(sys.argv[1]), read_only=True), None)
print(condition(db).began)
db.close()
"""


def waits(bench: LedgerBench) -> str | None:
    return condition(bench.db).waits


def test_it_follows_a_step(place: Backend) -> None:
    bench = LedgerBench(place, make_spec(b=2, max_steps=1), learner=False)
    assert condition(bench.db).began is None
    assert waits(bench) == "a learner: none is alive; start one (mode=train, or both)"
    processes.register(bench.db, "trainer", "trainer")
    assert waits(bench) == "the learner to begin"
    bench.restart(0)
    assert waits(bench) == "groups: 0 of 2 ready · no token yet: an engine starts and compiles first"
    first, second, *_ = bench.claim()
    bench.store(first)
    processes.heartbeat(bench.db, "e", bench.token, 0, {"tokens": 70.0, "running": 3.0})
    found = condition(bench.db)
    assert (found.waits, found.ready, found.alive) == ("groups: 1 of 2 ready · 70 tokens so far", 1, ("e", "trainer"))
    assert found.gauges == {"tokens": 70.0, "running": 3.0}
    assert found.began == bench.clock.now
    for number, said in ((1.0, " · an engine compiles"), (2.0, " · 2 engines compile"), (0.0, "")):
        processes.heartbeat(bench.db, "e", bench.token, 0, {"tokens": 70.0, "compiling": number})
        assert waits(bench) == f"groups: 1 of 2 ready · 70 tokens so far{said}"
    bench.store(second)
    assert waits(bench) is None
    assert isinstance(bench.lease(), LeasedBatch), "looking leases nothing"
    assert waits(bench) is None
    bench.trained(announce=False)
    bench.publish(1, validate=True)
    found = condition(bench.db)
    assert (found.trained, found.waits, found.finished) == (1, "1 validation to end", False)
    leases.finish(bench.db, bench.lineage)
    assert condition(bench.db).finished


def test_the_killed_are_not_taken_for_living(place: Backend) -> None:
    bench = LedgerBench(place, make_spec())
    processes.register(bench.db, "trainer", "trainer")
    for name in ("trainer", "e"):
        set_row(bench, name, pid=a_dead_pid())
    found = condition(bench.db)
    assert found.alive == ()
    assert found.waits == "a process: none of this run is alive; its command goes on with it"


def test_a_failure_is_told(place: Backend) -> None:
    bench = LedgerBench(place, make_spec())
    leases.fail_run(bench.db, bench.lineage, "trainer: TimeoutError: waited")
    assert condition(bench.db).failure == "trainer: TimeoutError: waited"


@pytest.mark.parametrize("left", ["open", "closed", "killed"])
def test_a_look_at_a_file_writes_nothing(left: str) -> None:
    directory = fast_directory()
    bench = LedgerBench(SqliteFile(directory / "ledger.db"), make_spec(b=2))
    if left == "closed":
        bench.db.close()
    elif left == "killed":  # what the log holds is not in the file yet, and nobody has either open
        for file in list(directory.iterdir()):
            (directory / f"{file.name}.kept").write_bytes(file.read_bytes())
        bench.db.close()
        for file in directory.glob("*.kept"):
            file.rename(file.with_suffix(""))
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in directory.iterdir()}
    assert ("ledger.db-wal" in before) == (left != "closed")
    # of one process SQLite shares what it maps of the log's index among its connections, those too that may write
    looked = subprocess.run([sys.executable, "-c", LOOK, directory / "ledger.db"], capture_output=True, timeout=HANGS)
    assert (looked.stdout.decode().strip(), looked.stderr) == (str(bench.clock.now), b"")
    assert {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in directory.iterdir()} == before
    if left == "open":
        assert len(bench.claim()) == 4, "writers go on"
