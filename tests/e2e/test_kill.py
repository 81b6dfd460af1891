"""P3: SIGKILL at any moment, the same command again, and nothing is lost, repeated or reordered.

The matrix: who dies, and at which of the phases that it takes part in. A number is the visits of one life to a place
until it dies there.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from lives import Role, live_to_the_end
from program import Started, audit_of, batches_of, query, run, undocumented

from sidecar.channels.files import read_version
from sidecar.channels.versions import read_manifest
from sidecar.failpoints import NAMES, PHASES
from tests.postgres import Server

WHOLE = (
    *("claim:6", "generate:50", "store:11", "lease:7", "train:4"),
    *("publish:3", "announce:5", "load:4", "checkpoint:2", "validate:2"),
)
"""Learner and explorer are one process, on policy."""
TRAINER = ("lease:4", "train:3", "write:4", "announce:3", "commit:2")
EXPLORER = ("claim:6", "generate:41", "store:9", "load:4", "validate:2")
WORKERS = (
    *("engine_generate:30,store:12", "engine_update_weights:2,load:4", "engine_score:2,validate:2"),
    *("claim:9", "generate:33"),
)
"""On Ray: an engine's worker dies and its explorer goes on, then the explorer's worker dies."""
TENSORS = 13
"""Of a version of the model: the third is taken in part."""
VLLM_ENGINE, VLLM_TRAINER = f"engine_load:{2 * TENSORS + 7},engine_generate:33", "write:5"
VLLM_WAIT = 600.0  # half of it is for one engine to start
BACK_END = (
    *("train:2", "claim:15", "announce:5", "store:25", "checkpoint:3", "load:9"),
    *("generate:170", "publish:14", "validate:5", "lease:20"),
)
"""The process halts here while the back end that it talks to dies."""
LEAN = ("eval_steps=none", "save_steps=1000", "observe.report=false", "observe.trace=false")
"""Of a run that is read for its batches alone."""
AHEAD = ("async_generation_ratio=1.0", "observe.report=false")
EXPERTS = ("model.tiny.family=qwen3_moe", "model.tiny.num_layers=2", "algorithm.router_replay=replay")


def test_the_matrix_has_every_failpoint() -> None:
    lives = [*WHOLE, *TRAINER, *EXPLORER, *WORKERS, VLLM_ENGINE, VLLM_TRAINER]
    struck = {strike.partition(":")[0] for life in lives for strike in life.split(",")}
    assert struck == set(NAMES)
    assert {strike.partition(":")[0] for strike in BACK_END} == set(PHASES)


def assert_nothing_was_lost(run_dir: Path, steps: int, staleness: int, wait_timeout: float = 600.0) -> None:
    report = audit_of(run_dir)
    assert report["balanced"], report["problems"]
    assert report["finished"]
    assert (report["trained"], report["trained_twice"], report["steps"]) == (steps * 4, 0, steps)
    assert report["max_staleness"] <= report["staleness_bound"] == staleness
    rows = [json.loads(row) for row in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert max(row["time/wait"] for row in rows) < wait_timeout
    written = [path.name for folder in ("weights", "checkpoints") for path in (run_dir / folder).iterdir()]
    assert all(re.fullmatch(r"v\d+-\d+|\d+", name) for name in written), "what a life left half written is gone"


def engine_faults(run_dir: Path) -> list[str]:
    return [kind for (kind,) in query(run_dir, "SELECT kind FROM events WHERE kind LIKE 'engine%'")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> list[tuple[Any, ...]]:
    """The batches of a run on policy; those of a shorter one are the first of them."""
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    done = run(run_dir, cache, "max_steps=40", *LEAN)
    assert done.returncode == 0, done.stderr
    return batches_of(run_dir)


def test_a_run_on_policy_trains_the_same_batches_however_often_it_dies(
    tmp_path: Path, cache: Path, undisturbed: list[tuple[Any, ...]]
) -> None:
    same = ("max_steps=40", "observe.report=false")
    live_to_the_end(tmp_path / "run", cache, same, {"both": Role((), (*WHOLE, ""))})
    assert_nothing_was_lost(tmp_path / "run", steps=40, staleness=0)
    assert batches_of(tmp_path / "run") == undisturbed
    assert len(audit_of(tmp_path / "run")["lineages"]) == len(WHOLE) + 1


@pytest.mark.parametrize(
    ("channel", "moments"), [("memory", ("load:4", "validate:2")), ("nccl", ("announce:5", "load:4"))]
)
def test_versions_that_die_with_the_learner_come_again(
    channel: str, moments: tuple[str, ...], tmp_path: Path, cache: Path, undisturbed: list[tuple[Any, ...]]
) -> None:
    sent = (f"sync_method={channel}", "max_steps=8", "observe.report=false")
    live_to_the_end(tmp_path / "run", cache, sent, {"both": Role((), (*moments, ""))})
    assert_nothing_was_lost(tmp_path / "run", steps=8, staleness=0)
    assert batches_of(tmp_path / "run") == undisturbed[: 8 * 4]
    assert not list((tmp_path / "run" / "weights").iterdir()), "no version was written"


def test_versions_written_as_what_has_changed_outlive_who_dies(tmp_path: Path, cache: Path) -> None:
    """The explorer joins anew, far from a whole version; the learner dies between a version and its announcement."""
    changes = ("sync_deltas=16", "sync_dtype=bf16", "learner.optimizer.learning_rate=1e-6", "max_steps=16")
    shells = {
        "trainer": Role(("mode=train",), ("write:4", "announce:5", "")),
        "explorer": Role(("mode=explore",), ("load:6", "validate:2", "")),
    }
    live_to_the_end(tmp_path / "run", cache, (*AHEAD, *changes), shells)
    assert_nothing_was_lost(tmp_path / "run", steps=16, staleness=1)
    rows = [json.loads(row) for row in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sum(row.get("publish/whole") == 0 for row in rows) > 8, "most were written as what has changed"
    assert not undocumented(tmp_path / "run")
    assert any(read_manifest(path).base for path in (tmp_path / "run" / "weights").iterdir())
    for path in (tmp_path / "run" / "weights").iterdir():
        read_version(path)


def test_a_trainer_and_an_explorer_in_shells_of_their_own_die_five_times_each(tmp_path: Path, cache: Path) -> None:
    """Of a model with experts: the routes that one records, the other trains along, now and when it is replayed."""
    run_dir, long = tmp_path / "run", (*AHEAD, *EXPERTS, "sync_interval=2", "max_staleness=4", "max_steps=24")
    shells = {"trainer": Role(("mode=train",), (*TRAINER, "")), "explorer": Role(("mode=explore",), (*EXPLORER, ""))}
    live_to_the_end(run_dir, cache, long, shells)
    assert_nothing_was_lost(run_dir, steps=24, staleness=4)
    rows = [json.loads(row) for row in (run_dir / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["step"]]
    assert trained[0]["router/routes_differing"] == 0, "of the weights that sampled"
    assert max(row["router/routes_differing"] for row in trained) > 0, "of weights that were trained since"
    assert max(row.get("parity/max_abs_logprob_gap", 0.0) for row in rows) < 1e-3
    replayed = run(run_dir, cache, *long, "mode=replay")
    assert "replayed to step 24: bit for bit the same" in replayed.stdout, replayed.stderr


@pytest.mark.ray
def test_workers_of_ray_die_with_engines_and_with_explorers(tmp_path: Path, cache: Path) -> None:
    on_ray = (*AHEAD, "launcher=ray", "ray.address=local", "explorer.own_process=true", "max_steps=24")
    live_to_the_end(tmp_path / "run", cache, on_ray, {"both": Role((), (*WORKERS, ""))})
    assert_nothing_was_lost(tmp_path / "run", steps=24, staleness=1)
    assert engine_faults(tmp_path / "run") == ["engine_died"] * 3


def test_a_run_outlives_a_back_end_at_each_of_its_phases(server: Server, tmp_path: Path, cache: Path) -> None:
    run_dir = tmp_path / "back-ends-die"  # names the schema
    ledger = f"ledger={server.url.render_as_string(hide_password=False)}"
    started = Started(run_dir, cache, *AHEAD, ledger, "max_steps=24", failpoint=halts(BACK_END))
    process = psutil.Process(started.process.pid)
    try:
        for _ in BACK_END:
            started.until(lambda: process.status() == psutil.STATUS_STOPPED, f"{started.spared} to be reached")
            started.until(lambda: without_back_end(server), "the server to answer")
            process.resume()
        assert started.end() == 0, started.printed
    finally:
        started.process.kill()
    assert not started.spared
    assert_nothing_was_lost(run_dir, steps=24, staleness=1)
    assert len(audit_of(run_dir)["lineages"]) == 1


def halts(places: tuple[str, ...]) -> str:
    return ",".join(f"{place}=SIGSTOP" for place in places)


def without_back_end(server: Server) -> bool:
    """Kills the one that the process has, if any. False while the server is on its way back from the last kill.

    A process that is halted before it connects again has none, and gets none until it goes on.
    """
    try:
        for pid in server.pids()[:1]:
            server.kill(pid)
    except (psycopg.OperationalError, ProcessLookupError):
        return False
    return True


@pytest.mark.vllm
def test_engines_and_trainer_die_under_a_run_with_vllm(tmp_path: Path, cache: Path) -> None:
    engine = ("sidecar.engine=vllm", "sidecar.double_buffer=false")  # so that it dies with weights of two versions
    long = (*AHEAD, *engine, "max_steps=16", f"wait_timeout={VLLM_WAIT}")
    explorer = Role(("mode=explore",), (VLLM_ENGINE,))
    shells = {"trainer": Role(("mode=train",), (VLLM_TRAINER, "")), "explorer": explorer}
    live_to_the_end(tmp_path / "run", cache, long, shells)
    assert_nothing_was_lost(tmp_path / "run", steps=16, staleness=1, wait_timeout=VLLM_WAIT)
    assert engine_faults(tmp_path / "run") == ["engine_died"] * 2
