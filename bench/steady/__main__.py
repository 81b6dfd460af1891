"""Steady state at scale: many trajectories in flight over many engines, explorers in processes of their own.

    python -m bench.steady [--minutes 10] [--in-flight 1024 16384] [--rate 256] [--explorers 8] [--engines 64]
                           [--ledger postgresql] [--out steady.json]

What: real explorers (claims, groups, engine pool, heartbeats), each in a process of its own, and the real ledger, in a
PostgreSQL server that this bench starts (with ``--ledger sqlite`` a file, and one explorer). Engines are modelled: each
request gets its tokens at the same pace, and lengths are log-normal. So is the learner's step: it waits. All other
calls that a trainer makes of the ledger are made. The same rate of trajectories a second is sampled with each number in
flight, so that what a trajectory costs shows whether the ledger's work grows with it. The last number runs for
``--minutes``, the others for two at most.

Targets: what a trajectory costs, and how long a transaction takes, does not grow from 1,024 to 16,384 in flight but for
that of many groups: stores that wait for their turn are one (``store``; ``store, queued`` is what each group waits). No
process grows; of files and rows only those grow that ARCHITECTURE.md keeps (a row of each group, step and version).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from bench.machine import commit, processor
from bench.steady.load import Load
from bench.steady.run import measure

SHORT_MINUTES = 2.0
"""Minutes that the loads before the last one run at most."""
WARM = 0.25
"""Share of a run that is not counted, unless two mean trajectories are shorter."""
SETTINGS = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "128MB"}
"""PostgreSQL's own defaults, which the server of the tests goes without."""
COLUMNS = (
    "claim",
    "claim, nothing yet",
    "store",
    "store, queued",
    "lease",
    "lease, nothing yet",
    "mark_trained",
    "heartbeat",
)


@contextlib.contextmanager
def ledger_place(kind: str, directory: Path) -> Iterator[tuple[str, Callable[[], list[int]]]]:
    """Gives a place for ledgers, as `Load.ledger`, and a function that returns the pids of its server."""
    if kind == "sqlite":
        yield str(directory / "ledger.db"), lambda: []
        return
    from tests import postgres

    with postgres.running(SETTINGS) as server:
        main = int((server.directory / "data" / "postmaster.pid").read_text().split()[0])

        def pids() -> list[int]:
            return [main, *(child.pid for child in psutil.Process(main).children(recursive=True))]

        yield server.url.render_as_string(hide_password=False), pids


def run_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs each number in flight; returns what came of it."""
    results = []
    for in_flight in options.in_flight:
        last = in_flight == options.in_flight[-1]
        seconds = 60 * (options.minutes if last else min(options.minutes, SHORT_MINUTES))
        with tempfile.TemporaryDirectory(prefix="bench-steady-") as name:
            directory = Path(name)
            with ledger_place(options.ledger, directory) as (place, pids):
                sizes = {"in_flight": in_flight, "rate": options.rate, "sample_seconds": options.sample_seconds}
                shares = {"explorers": options.explorers, "engines": options.engines}
                load = Load(place, "steady", directory, **sizes, **shares)
                warm = min(2 * load.seconds, WARM * seconds)
                print(f"{in_flight} in flight on {options.ledger}, {seconds:.0f} s of which {warm:.0f} count not")
                found = measure(load, seconds, warm, pids, lambda line: print(line, flush=True))
        results.append(found)
        print(table(found), flush=True)
    return results


def table(found: dict[str, Any]) -> str:
    """Returns what a run came to as lines of text."""
    lines = [
        f"{found['in_flight']} in flight (most seen at work: {found['most_in_flight']:.0f}): "
        f"{found['transactions_per_second']:.0f} transactions/s, {found['writes_per_second']:.0f} of them writes, "
        f"{found['trajectories_per_second']:.0f} trajectories/s; {found['cpu_ms_per_transaction']:.2f} ms of CPU a "
        f"transaction; a trajectory {found['client_cpu_ms_per_trajectory']:.2f} ms in our processes and "
        f"{found['server_cpu_ms_per_trajectory']:.2f} ms in the server"
    ]
    for name in COLUMNS:
        if of := found["latency_ms"].get(name):
            lines.append(f"  {name}: {of['calls']} calls, median {of['median']:.2f} ms, 99th {of['p99']:.2f} ms")
    for name, (first, last) in found["private_mib"].items():
        lines.append(f"  {name}: {first:.1f} MiB, then {last:.1f} MiB")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="that the last load runs")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1024, 16_384], help="trajectories of the credit")
    parser.add_argument("--rate", type=float, default=256.0, help="trajectories a second of all engines together")
    parser.add_argument("--explorers", type=int, default=0, help="processes; 8, of sqlite 1")
    parser.add_argument("--engines", type=int, default=64, help="over all explorers")
    parser.add_argument("--ledger", choices=["postgresql", "sqlite"], default="postgresql")
    parser.add_argument("--sample-seconds", type=float, default=10.0, help="between the lines of progress")
    parser.add_argument("--out", type=Path, default=Path("steady.json"), help="where the result is written, as JSON")
    options = parser.parse_args()
    options.explorers = options.explorers or (8 if options.ledger == "postgresql" else 1)
    machine = f"{processor()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"machine: {machine}; load average {os.getloadavg()[0]:.1f}\ncommit: {commit()}", flush=True)
    results = run_all(options)
    arguments = {name: str(value) for name, value in vars(options).items()}
    about = {"machine": machine, "commit": commit(), "arguments": arguments}
    options.out.write_text(json.dumps({**about, "runs": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
