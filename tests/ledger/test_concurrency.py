"""Real processes and threads at one ledger."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rljax.ledger import leases, processes, versions
from rljax.ledger.audit import audit
from rljax.ledger.backend import Backend
from rljax.ledger.claims import TasksetSize, register_tasksets
from rljax.ledger.database import Database
from rljax.ledger.leases import LeasedBatch
from tests.ledger.builders import make_spec, spelled
from tests.waiting import HANGS

ROOT = Path(__file__).parents[2]
EXPLORERS = 2
BATCH = 10
STEPS = 8

EXPLORER = """
import json, sys, time
from rljax.ledger import claims, processes
from rljax.ledger.claims import TasksetSize
from rljax.ledger.database import Database
from tests.ledger.builders import make_group, make_spec, place_of, store

place, name, spec, share = place_of(sys.argv[1]), sys.argv[2], make_spec(**json.loads(sys.argv[3])), int(sys.argv[4])
db = Database(place, spec)
processes.register(db, name, "explorer")
claims.register_tasksets(db, [TasksetSize("a", 1000)])
mine, deadline = [], time.monotonic() + 300
while len(mine) < share and time.monotonic() < deadline:
    seen = db.notifier.changes
    granted = claims.claim(db, name, ["a"], 1)
    if granted.over:
        break
    for claim in granted.claims:
        store(db, claim, make_group(claim.task, [claim.version]))
        mine.append(claim.task.index)
    if not granted.claims:
        db.notifier.wait(seen, 0.01)
print(json.dumps(mine))
"""


def test_processes_that_hammer_the_ledger_never_get_the_same_task(place: Backend) -> None:
    """They also create it at the same moment. Each does its share, so that neither can do all the work before the other
    gets its turn.
    """
    share = BATCH * STEPS // EXPLORERS
    fields: dict[str, Any] = {"alpha": 1.0, "b": BATCH, "max_steps": STEPS}
    command = [sys.executable, "-c", EXPLORER, spelled(place)]
    explorers = [
        subprocess.Popen(
            [*command, f"e{i}", json.dumps(fields), str(share)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        for i in range(EXPLORERS)
    ]
    try:
        db = Database(place, make_spec(**fields))
        processes.register(db, "trainer", "trainer")
        register_tasksets(db, [TasksetSize("a", 1000)])
        while len(processes.gauges(db, "explorer")) < EXPLORERS:  # before there are weights, nobody claims
            assert all(explorer.poll() is None for explorer in explorers), "an explorer ended before it began"
            db.notifier.wait(db.notifier.changes)
        _train(db)
        tasks = [json.loads(explorer.communicate(timeout=HANGS)[0]) for explorer in explorers]
    finally:
        for explorer in explorers:
            explorer.kill()
    everything = sorted(index for mine in tasks for index in mine)
    assert everything == list(range(BATCH * STEPS))
    assert [len(mine) for mine in tasks] == [share] * EXPLORERS
    report = audit(db)
    assert report["balanced"], report["problems"]
    assert (report["claimed"], report["trained"], report["open"]) == (BATCH * STEPS, BATCH * STEPS, 0)


def _train(db: Database) -> None:
    lineage = leases.begin_lineage(db, 0)
    versions.announce(db, lineage, 0, "weights/v0-1")
    for step in range(STEPS):
        for _ in range(3000):
            seen = db.notifier.changes
            if isinstance(leases.lease(db, lineage), LeasedBatch):
                break
            db.notifier.wait(seen, 0.01)
        leases.mark_trained(db, lineage, step, True)
        versions.announce(db, lineage, step + 1, f"weights/v{step + 1}-1")
    leases.finish(db, lineage)
