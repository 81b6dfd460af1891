"""What a user sees in several shells of one run, whatever engine generates."""

from __future__ import annotations

import signal
from pathlib import Path

from program import Started, audit_of, query


def explorer_first(run_dir: Path, cache: Path, *engine: str) -> None:
    """An explorer fills its credit and is stopped; a trainer comes, trains each stored group exactly once, and goes on
    when an explorer returns. ``engine`` are the overrides that choose the engine.
    """
    ahead = ("async_generation_ratio=1.0", "observe.progress=lines", *engine)
    explorer = Started(run_dir, cache, *ahead, "mode=explore")
    explorer.until(lambda: groups_of(run_dir, "explorer", "ready") == 8, "the credit to be full")
    explorer.until(lambda: "credit: 8 of 8 groups" in explorer.printed, "the explorer to say so")
    assert explorer.end(signal.SIGTERM) == 0, explorer.printed
    assert query(run_dir, "SELECT state, count(*) FROM groups GROUP BY state") == [("ready", 8)]

    trainer = Started(run_dir, cache, *ahead, "mode=train")
    trainer.until(lambda: "waiting for an explorer" in trainer.printed, "the trainer to name what it waits for")
    assert query(run_dir, "SELECT trained FROM run") == [(2,)]
    second = Started(run_dir, cache, *ahead, "mode=explore")
    assert trainer.end() == 0, trainer.printed
    assert second.end() == 0, second.printed
    report = audit_of(run_dir)
    assert report["balanced"], report["problems"]
    assert report["trained"] == 24
    assert report["trained_twice"] == 0
    assert query(run_dir, "SELECT count(*) FROM groups WHERE id <= 8 AND state = 'trained'") == [(8,)]


def trained(run_dir: Path) -> int:
    """Batches trained so far."""
    return (query(run_dir, "SELECT trained FROM run") or [(0,)])[0][0]


def groups_of(run_dir: Path, explorer: str, state: str) -> int:
    """Groups whose newest claim is this explorer's, in this state."""
    found = query(run_dir, f"SELECT count(*) FROM groups WHERE explorer = '{explorer}' AND state = '{state}'")
    return (found or [(0,)])[0][0]


def explorers_come_and_go(run_dir: Path, cache: Path, *engine: str) -> None:
    """Beside a trainer and an explorer, one joins for the run's tasks and is killed over its claims, and one brings
    tasks of its own and leaves when it is asked to. The run ends, and no task was trained twice.
    """
    steps = 2000  # far more than are waited for: SIGTERM ends it
    ahead = ("async_generation_ratio=1.0", "eval_steps=none", "save_steps=2000", "observe.report=false", *engine)
    long = (*ahead, f"max_steps={steps}", "rollout.claim_timeout=5.0")
    trainer = Started(run_dir, cache, *long, "mode=train")
    first = Started(run_dir, cache, *long, "mode=explore")
    own = ("explorer.name=guest", "explorer.tasksets.own.source=reverse_digits", "explorer.tasksets.own.args.digits=3")
    rewards = "explorer.tasksets.own.rewards=digits"
    killed = Started(run_dir, cache, *long, "mode=explore", "explorer.name=killed", failpoint="generate:41")
    guest = Started(run_dir, cache, *long, "mode=explore", *own, rewards)

    assert killed.end() == -signal.SIGKILL, killed.printed
    reopened = "SELECT message FROM events WHERE message LIKE '%claims of killed were reopened'"
    trainer.until(lambda: bool(query(run_dir, reopened)), "the claims of the dead to expire")
    assert groups_of(run_dir, "killed", "claimed") == 0
    guest.until(lambda: groups_of(run_dir, "guest", "trained") >= 8, "the guest's tasks to be trained")
    assert guest.end(signal.SIGTERM) == 0, guest.printed
    assert "its open claims are handed back" in guest.printed
    assert groups_of(run_dir, "guest", "claimed") == 0, "what it left behind is free at once"
    so_far = trained(run_dir)
    trainer.until(lambda: trained(run_dir) >= so_far + 3, "the run to go on without them")
    assert first.end(signal.SIGTERM) == 0, first.printed
    assert trainer.end(signal.SIGTERM) == 0, trainer.printed  # last, for it writes the audit

    report = audit_of(run_dir)
    assert report["balanced"], report["problems"]
    assert report["trained_twice"] == 0
    assert report["max_staleness"] <= 1
    assert set(report["tasksets"]) == {"digits", "own"}
    assert report["tasksets"]["own"]["trained"] >= 8
    assert report["explorers"]["explorer"]["trained"] > 0
    served = query(run_dir, "SELECT DISTINCT explorer, taskset FROM groups WHERE state = 'trained'")
    assert (
        {("explorer", "digits"), ("guest", "own")}
        <= set(served)
        <= {
            ("explorer", "digits"),
            ("killed", "digits"),
            ("guest", "own"),
        }
    )
    tasks = query(run_dir, "SELECT taskset, epoch, task_index FROM groups")
    assert len(tasks) == len(set(tasks)) == report["claimed"]
