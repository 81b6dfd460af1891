"""One run: its processes started, watched and ended, and what came of it."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import text

from bench.steady.load import GROUP_SIZE, Load
from bench.steady.meters import between, merged, quantile, read_diary, usage
from bench.steady.processes import LOOK_SECONDS, explore, learn
from rljax.ledger import audit
from rljax.ledger.claims import states_of
from rljax.ledger.database import Database
from rljax.ledger.postgres import PostgresSchema
from rljax.ledger.transaction import Transaction

TABLES = ("groups", "payloads", "batches", "steps", "versions", "events", "processes")
STARTS = 600.0
"""Seconds in which all processes have to begin: they import most of rljax."""
ENDS = 120.0
"""Seconds in which a process has to end once it is asked to."""
LEAST_STEPS = 8
"""Steps without which a run says nothing of the learner's calls."""
Say = Callable[[str], None]


class DiedError(RuntimeError):
    """Raised when a process of the run ended before it was asked to."""


def measure(
    load: Load, seconds: float, warm: float, server: Callable[[], list[int]], say: Say, least_steps: int = LEAST_STEPS
) -> dict[str, Any]:
    """Runs a load for so many seconds, of which the first ``warm`` are not counted; returns what came of it.

    Args:
        load: the load.
        seconds, warm: as said.
        server: returns the pids of the database's server.
        say: is told how it goes, a line at each sample.
        least_steps: it goes on until so many are trained, however long that takes.

    Raises:
        DiedError: a process ended.
        RuntimeError: the ledger does not balance.
    """
    db = Database(load.place(), load.spec)
    samples: list[dict[str, Any]] = []
    with _running(load) as children:
        _await_all(load, children)
        began = time.time()
        while time.time() - began < seconds or not samples or samples[-1]["steps"] < least_steps:
            time.sleep(load.sample_seconds)
            _check(children)
            samples.append(_sample(load, db, server()))
            say(_line(samples[-1], began))
    found = audit.audit(db)
    db.close()
    if not found["balanced"] or found["trained_twice"] or found["max_staleness"] > load.spec.staleness_bound:
        raise RuntimeError(f"the ledger does not balance: {found['problems']}")
    kept = ("claimed", "trained", "open", "dropped", "filtered", "max_staleness", "faults", "balanced", "steps")
    return {**summary(load, samples, began + warm), "audit": {name: found[name] for name in kept}, "samples": samples}


@contextmanager
def _running(load: Load) -> Iterator[Mapping[str, SpawnProcess]]:
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    children = {"learner": context.Process(target=learn, args=(load, stop))}
    for index in range(load.explorers):
        children[f"explorer {index}"] = context.Process(target=explore, args=(load, index, stop))
    try:
        for child in children.values():
            child.start()
        yield children
    finally:
        stop.set()
        for child in children.values():
            if child.pid is not None:
                child.join(ENDS)
                child.kill()


def _await_all(load: Load, children: Mapping[str, SpawnProcess]) -> None:
    deadline = time.monotonic() + STARTS
    while len(list(load.directory.glob("*.jsonl"))) < len(children):
        _check(children)
        if time.monotonic() > deadline:
            raise DiedError(f"some of {', '.join(children)} had not begun after {STARTS:g} s; is the machine too busy?")
        time.sleep(LOOK_SECONDS)


def _check(children: Mapping[str, SpawnProcess]) -> None:
    for name, process in children.items():
        if not process.is_alive():
            raise DiedError(f"{name} ended with exit code {process.exitcode}; its lines above say why")


def _sample(load: Load, db: Database, server: list[int]) -> dict[str, Any]:
    found = []
    for pid in server:
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    claimed, rows, mib, dead = db.read(lambda tx: (states_of(tx).get("claimed", 0), *_tables(tx, load)))
    diaries = sorted(load.directory.glob("*.jsonl"))
    newest = {path.stem: line for path in diaries if (line := _last(path))}
    return {
        "at": time.time(),
        "rows": rows,
        "table_mib": mib,
        "dead_rows": dead,
        "files_mib": _files_mib(load),
        "server": usage(found),
        "private_mib": {name: line["private_mib"] for name, line in newest.items()},
        "claimed": claimed,
        "steps": newest.get("learner", {}).get("steps", 0),
    }


def _last(path: Path) -> dict[str, Any] | None:
    lines = path.read_text().splitlines()
    return json.loads(lines[-1]) if lines else None


def _tables(tx: Transaction, load: Load) -> tuple[dict[str, int], dict[str, float], dict[str, int]]:
    counts = {name: int(tx.connection.execute(text(f"SELECT count(*) FROM {name}")).scalar_one()) for name in TABLES}
    if not isinstance(load.place(), PostgresSchema):
        return counts, {}, {}
    sizes = (
        "SELECT relname, pg_total_relation_size(relid), n_dead_tup FROM pg_stat_user_tables WHERE schemaname = :name"
    )
    rows = tx.connection.execute(text(sizes), {"name": load.schema}).all()
    return counts, {name: size / 2**20 for name, size, _ in rows}, {name: dead for name, _, dead in rows}


def _files_mib(load: Load) -> float:
    """Returns the size of all files of the run but its diaries."""
    total = 0
    for path in load.directory.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() and path.suffix != ".jsonl" else 0
    return total / 2**20


def _line(sample: Mapping[str, Any], began: float) -> str:
    memory = sample["private_mib"].values()
    return (
        f"{sample['at'] - began:6.0f} s: step {sample['steps']}, {sample['claimed'] * GROUP_SIZE} in flight, "
        f"{sample['rows']['groups']} groups, {sample['rows']['payloads']} kept whole, "
        f"largest process {max(memory, default=0.0):.0f} MiB, server {sample['server']['private_mib']:.0f} MiB, "
        f"ledger {sum(sample['table_mib'].values()) or sample['files_mib']:.0f} MiB"
    )


def summary(load: Load, samples: list[dict[str, Any]], since: float) -> dict[str, Any]:
    """Returns rates, latencies and growth of what was seen after ``since`` (Unix seconds)."""
    counted = [sample for sample in samples if sample["at"] >= since] or samples[-1:]
    diaries = {path.stem: read_diary(path) for path in sorted(load.directory.glob("*.jsonl"))}
    spans = {}
    for name, lines in diaries.items():
        of_name = [line for line in lines if line["at"] >= since] or lines[-1:]
        if of_name:
            spans[name] = of_name[0], of_name[-1]
    bins = merged(between(first["bins"], last["bins"]) for first, last in spans.values())
    wall = max((last["at"] - first["at"] for first, last in spans.values()), default=0.0)
    made = sum(last[kind] - first[kind] for first, last in spans.values() for kind in ("read", "write"))
    written = sum(last["write"] - first["write"] for first, last in spans.values())
    stored = sum(bins.get("store, queued", {}).values())  # many groups are stored by one call
    clients = sum(last["cpu"] - first["cpu"] for first, last in spans.values())
    server = counted[-1]["server"].get("cpu", 0.0) - counted[0]["server"].get("cpu", 0.0)
    return {
        "in_flight": load.in_flight,
        "most_in_flight": GROUP_SIZE * max(sample["claimed"] for sample in samples),
        "wall_seconds": wall,
        "transactions_per_second": made / wall if wall else 0.0,
        "writes_per_second": written / wall if wall else 0.0,
        "trajectories_per_second": GROUP_SIZE * stored / wall if wall else 0.0,
        "cpu_ms_per_transaction": 1e3 * (clients + server) / made if made else 0.0,
        "client_cpu_ms_per_trajectory": 1e3 * clients / (GROUP_SIZE * stored) if stored else 0.0,
        "server_cpu_ms_per_trajectory": 1e3 * server / (GROUP_SIZE * stored) if stored else 0.0,
        "latency_ms": {
            name: {"calls": sum(of.values()), "median": 1e3 * quantile(of, 0.5), "p99": 1e3 * quantile(of, 0.99)}
            for name, of in sorted(bins.items())
            if of
        },
        "private_mib": {name: (first["private_mib"], last["private_mib"]) for name, (first, last) in spans.items()},
    }
