"""What only PostgreSQL can do to a ledger: lose its back ends at any moment, and leave a COMMIT without an answer."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url, text

from rljax.ledger import leases, processes, versions
from rljax.ledger.audit import audit
from rljax.ledger.claims import TasksetSize, register_tasksets
from rljax.ledger.database import Database, LedgerError, record_event
from rljax.ledger.leases import LeasedBatch
from rljax.ledger.postgres import PostgresSchema
from rljax.ledger.transaction import Transaction
from tests import postgres
from tests.ledger.builders import make_spec, spelled, sql
from tests.postgres import Server
from tests.waiting import HANGS

ROOT = Path(__file__).parents[2]
BATCH = 4
STEPS = 25
KILLS = 8

EXPLORER = """
import json, sys
from rljax.ledger import claims, processes
from rljax.ledger.claims import TasksetSize
from rljax.ledger.database import Database, StaleWriterError
from tests.ledger.builders import make_group, make_spec, place_of, store

db = Database(place_of(sys.argv[1]), make_spec(**json.loads(sys.argv[2])))
processes.register(db, "e", "explorer")
claims.register_tasksets(db, [TasksetSize("a", 1000)])
stored = []
while True:
    seen = db.notifier.changes
    granted = claims.claim(db, "e", ["a"], 2)
    if granted.over:
        break
    for claim in granted.claims:
        store(db, claim, make_group(claim.task, [claim.version]))  # refused if it had been stored before
        stored.append(claim.task.index)
    if not granted.claims:
        db.notifier.wait(seen, 0.01)
print(json.dumps(stored))
"""


def test_dead_rows_are_cleared_away_long_before_they_are_a_fifth_of_all_groups(server: Server) -> None:
    """Measured with 92,160 dead rows: a look at 2,048 groups in flight went through 94,208 entries of its index."""
    place = server.new_schema()
    Database(place, make_spec()).close()
    with server.connect() as connection:
        query = "SELECT reloptions FROM pg_class WHERE oid = %s::regclass"
        found = connection.execute(query, (f"{place.name}.groups",)).fetchone()
    assert found is not None
    options = {name: float(value) for name, value in (option.split("=") for option in found[0])}
    for kind in ("vacuum", "analyze"):
        rows = 1_000_000
        assert options[f"autovacuum_{kind}_threshold"] + rows * options[f"autovacuum_{kind}_scale_factor"] == 12_000


def backend_pid(tx: Transaction) -> int:
    return int(tx.execute(text("SELECT pg_backend_pid()")).scalar_one())


def test_a_back_end_killed_in_a_transaction_costs_another_try(server: Server) -> None:
    db = Database(server.new_schema(), make_spec())
    tries = 0

    def body(tx: Transaction) -> int:
        nonlocal tries
        tries += 1
        record_event(tx, "e", "kind", f"try {tries}")
        if tries <= 2:
            server.kill(backend_pid(tx))
        return tries

    assert db.write(body) == 3
    assert sql(db, "SELECT message FROM events") == [("try 3",)]


def test_a_read_is_tried_again_as_well(server: Server) -> None:
    db = Database(server.new_schema(), make_spec())
    tries = 0

    def body(tx: Transaction) -> int:
        nonlocal tries
        tries += 1
        if tries == 1:
            server.kill(backend_pid(tx))
        return int(tx.execute(text("SELECT trained FROM run")).scalar_one())

    assert db.read(body) == 0
    assert tries == 2


@pytest.mark.parametrize("arrives", [True, False])
def test_a_commit_without_an_answer_is_found_out(
    arrives: bool, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The back end dies after the COMMIT has come about, or before; the client hears the same in both cases."""
    place = server.new_schema()
    db = Database(place, make_spec())
    tries, ended = 0, []
    sign = PostgresSchema.sign

    def sign_and_die(self: PostgresSchema, connection: Any) -> int:
        signature = sign(self, connection)
        if not ended:
            pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            if arrives:
                connection.exec_driver_sql("COMMIT")
            server.kill(pid)
            ended.append(pid)
        return signature

    def body(tx: Transaction) -> int:
        nonlocal tries
        tries += 1
        record_event(tx, "e", "kind", "message")
        return tries

    monkeypatch.setattr(PostgresSchema, "sign", sign_and_die)
    seen = db.notifier.changes
    assert db.write(body) == (1 if arrives else 2)
    assert len(sql(db, "SELECT id FROM events")) == 1, "written once, whether its COMMIT was heard of or not"
    assert db.notifier.changes > seen


def test_kills_at_any_moment_lose_nothing_and_repeat_nothing(server: Server) -> None:
    """Two processes claim, store, lease and train while their back ends are killed again and again."""
    fields: dict[str, Any] = {"alpha": 1.0, "b": BATCH, "max_steps": STEPS}
    place, chance = server.new_schema(), random.Random(7)
    db = Database(place, make_spec(**fields))
    processes.register(db, "trainer", "trainer")
    register_tasksets(db, [TasksetSize("a", 1000)])
    command = [sys.executable, "-c", EXPLORER, spelled(place), json.dumps(fields)]
    explorer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    over, killed = threading.Event(), 0

    def kill() -> None:
        nonlocal killed
        while not over.wait(chance.uniform(0.05, 0.5)):
            try:
                pids = server.pids()
                if pids:
                    server.kill(chance.choice(pids))
                    killed += 1
            except (OSError, server.Unreachable):
                continue  # it is on its way back from the last kill

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        lineage = leases.begin_lineage(db, 0)
        versions.announce(db, lineage, 0, "v0-1")
        step = 0
        while step < STEPS or killed < KILLS:
            if step == STEPS:  # nothing is left to train: what is killed now writes faults
                processes.note(db, "trainer", "kind", str(killed))
                continue
            seen = db.notifier.changes
            if not isinstance(leases.lease(db, lineage), LeasedBatch):
                assert explorer.poll() is None, "the explorer has ended too early"
                db.notifier.wait(seen, 0.01)
                continue
            leases.mark_trained(db, lineage, step, True)
            step += 1
            versions.announce(db, lineage, step, f"v{step}-1")
        leases.finish(db, lineage)
        stored = json.loads(explorer.communicate(timeout=HANGS)[0])
    finally:
        over.set()
        killer.join()
        explorer.kill()
    assert explorer.returncode == 0
    assert killed >= KILLS
    assert sorted(stored) == list(range(BATCH * STEPS))
    report = audit(db)
    assert report["balanced"], report["problems"]
    assert (report["claimed"], report["trained"], report["open"]) == (BATCH * STEPS, BATCH * STEPS, 0)
    assert (report["trained_twice"], report["steps"], len(report["lineages"])) == (0, STEPS, 1)


def test_a_server_that_is_down_for_a_while_is_waited_for(server: Server) -> None:
    db = Database(server.new_schema(), make_spec())
    server.stop()
    comes_back = threading.Thread(target=server.start)
    comes_back.start()
    try:
        processes.note(db, "e", "kind", "message")
    finally:
        comes_back.join()
    assert len(sql(db, "SELECT id FROM events")) == 1


def test_a_server_that_hangs_up_on_who_opens_a_ledger_is_called_again(server: Server, tmp_path: Path) -> None:
    """A crash ends connections that are just being made as well: libpq knows no SQLSTATE then."""
    name = ".s.PGSQL.5432"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / name))
        listening.listen()

        def hang_up_once() -> None:
            called, _ = listening.accept()
            with called:
                called.recv(1024)
                (tmp_path / name).unlink()
                (tmp_path / name).symlink_to(server.directory / name)

        hangs_up = threading.Thread(target=hang_up_once)
        hangs_up.start()
        place = server.new_schema()
        db = Database(PostgresSchema(place.url.update_query_dict({"host": str(tmp_path)}), place.name), make_spec())
        hangs_up.join()
    processes.note(db, "e", "kind", "message")
    assert len(sql(db, "SELECT id FROM events")) == 1


def test_the_clock_is_the_servers(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    db = Database(server.new_schema(), make_spec())
    monkeypatch.setattr("time.time", lambda: 5.0)  # of a host whose clock is wrong
    processes.register(db, "e", "explorer")
    (row,) = sql(db, "SELECT heartbeat, extract(epoch FROM clock_timestamp())::float8 AS now FROM processes")
    assert 0 <= row.now - row.heartbeat < 60


def test_runs_of_one_database_do_not_see_each_other(server: Server) -> None:
    one, two = (Database(server.new_schema(), make_spec()) for _ in range(2))
    processes.note(one, "e", "kind", "message")
    assert sql(two, "SELECT id FROM events") == []
    one.write(lambda _: processes.note(two, "e", "kind", "message"))  # nor do they wait for each other


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (
            "postgresql://u:s3cret@localhost:1/d",
            "postgresql://localhost:1/d, schema s: .*refused.*; check that the server",
        ),
        ("postgresql://u:s3cret@/d?host={socket}&password=s3cret", 'role "u" does not exist'),
        ("postgresql://ledger_keeper:s3cret@/nowhere?host={socket}", 'database "nowhere" does not exist'),
    ],
)
def test_a_server_that_refuses_is_one_line_without_the_password(server: Server, url: str, words: str) -> None:
    place = PostgresSchema(make_url(url.format(socket=server.directory)), "s")
    for spec in (make_spec(), None):
        with pytest.raises(LedgerError, match=words) as info:
            Database(place, spec)
        assert "s3cret" not in str(info.value)
        assert "\n" not in str(info.value)


def test_root_finds_who_runs_the_server_beside_its_search_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres.os, "geteuid", lambda: 0)
    monkeypatch.setattr(postgres, "SYSTEM_PROGRAMS", (str(tmp_path),))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        RuntimeError, match=f"refuses to run as root, and /nowhere:{tmp_path} has no runuser; be another"
    ):
        postgres.as_nobody()
    program = tmp_path / "runuser"
    program.touch(0o755)
    assert postgres.as_nobody() == [str(program), "-u", "nobody", "--"]
