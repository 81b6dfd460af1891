"""P3: SIGKILL at any moment, the same command again, and nothing is lost, repeated or reordered."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from program import audit_of, batches_of, run

MOMENTS = (
    "claim:6",
    "generate:50",
    "store:11",
    "lease:7",
    "train:4",
    "publish:3",
    "announce:5",
    "load:4",
    "checkpoint:2",
    "validate:2",
)
"""Ten moments, spread over all the failpoints. The numbers are hits before the kill."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> list[tuple[Any, ...]]:
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    done = run(run_dir, cache)
    assert done.returncode == 0, done.stderr
    return batches_of(run_dir)


@pytest.mark.parametrize("moment", MOMENTS)
def test_run_survives_sigkill(moment: str, tmp_path: Path, cache: Path, undisturbed: list[tuple[Any, ...]]) -> None:
    killed = run(tmp_path / "run", cache, failpoint=moment)
    assert killed.returncode == -signal.SIGKILL, f"the failpoint was not reached: {killed.stderr}"
    done = run(tmp_path / "run", cache)
    assert done.returncode == 0, done.stderr
    report = audit_of(tmp_path / "run")
    assert report["balanced"], report["problems"]
    assert report["trained_twice"] == 0
    assert report["trained"] == 6 * 4
    assert report["max_staleness"] == 0
    assert batches_of(tmp_path / "run") == undisturbed


@pytest.mark.parametrize(
    ("channel", "moment"),
    [
        ("memory", "load:4"),
        ("memory", "validate:2"),
        ("nccl", "announce:5"),
        ("nccl", "load:4"),
    ],
)
def test_versions_that_die_with_the_learner_come_again(
    channel: str, moment: str, tmp_path: Path, cache: Path, undisturbed: list[tuple[Any, ...]]
) -> None:
    killed = run(tmp_path / "run", cache, f"sync_method={channel}", failpoint=moment)
    assert killed.returncode == -signal.SIGKILL, f"the failpoint was not reached: {killed.stderr}"
    done = run(tmp_path / "run", cache, f"sync_method={channel}")
    assert done.returncode == 0, done.stderr
    assert audit_of(tmp_path / "run")["balanced"]
    assert batches_of(tmp_path / "run") == undisturbed
    assert not list((tmp_path / "run" / "weights").iterdir()), "no version was written"


def test_asynchronous_run_survives_two_kills(tmp_path: Path, cache: Path) -> None:
    ahead = ("async_generation_ratio=2.0", "sync_interval=2", "max_staleness=4", "max_steps=12")
    for moment in ("train:4", "store:9"):
        killed = run(tmp_path / "run", cache, *ahead, failpoint=moment)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = run(tmp_path / "run", cache, *ahead)
    assert done.returncode == 0, done.stderr
    report = audit_of(tmp_path / "run")
    assert report["balanced"], report["problems"]
    assert report["trained_twice"] == 0
    assert report["trained"] == 12 * 4
    assert report["max_staleness"] <= 4
    assert len(report["lineages"]) == 3
