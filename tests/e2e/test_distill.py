"""A run that learns from teachers alone, of which one is served: no reward in its tasks, killed, resumed and replayed,
α at 2.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from lives import Role, live_to_the_end
from program import Started, assert_balanced, audit_of, run, undocumented, warn_once

from rljax.config.schema import ModelConfig, TinyConfig
from rljax.models.tiny import make_tiny

ALONE = ("algorithm.adv_estimator=none", "tasks.train.digits.rewards=()", "async_generation_ratio=2")


def teacher(folder: Path, characters: str = "0123456789") -> Path:
    """A model of another family and size."""
    shape = TinyConfig(family="llama", hidden_size=48, intermediate_size=64, num_layers=2, characters=characters)
    return make_tiny(ModelConfig(path="tiny", tiny=shape), 3, folder)


def taught_by(directory: Path) -> tuple[str, ...]:
    return (*ALONE, f"algorithm.distill.teachers.big.path={directory}")


@contextlib.contextmanager
def served(directory: Path, run_dir: Path, cache: Path) -> Iterator[tuple[str, ...]]:
    """Serves a model, and yields what makes it the teacher ``far``, which is as loud as ``big``."""
    place = ("mode=serve", "checkpoint=initial", "serve.port=0", "serve.model_name=far", "serve.require_key=false")
    server = Started(run_dir, cache, *place, f"model.path={directory}", "sidecar.max_model_len=40")
    try:
        server.until(lambda: "serving far at " in server.printed, "the server")
        url = server.printed.partition("serving far at ")[2].partition(",")[0]
        path = "algorithm.distill.teachers.far"
        yield (f"{path}.url={url}", f"{path}.model=far")
    finally:
        server.end(signal.SIGTERM)


def test_a_run_without_rewards_is_killed_and_replayed_bit_for_bit(tmp_path: Path, cache: Path) -> None:
    directory, killed = teacher(tmp_path / "teacher"), tmp_path / "killed"
    with served(directory, tmp_path / "served", cache) as far:
        keys = (*taught_by(directory), *far)
        live_to_the_end(killed, cache, keys, {"both": Role((), ("train:4", "checkpoint:2", ""))})
    assert_balanced(killed, groups=24)
    assert audit_of(killed)["max_staleness"] <= 2
    rows = [json.loads(line) for line in (killed / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["step"]]
    assert all(row["distill/big/reverse_kl"] == row["distill/big/digits/reverse_kl"] for row in trained)
    gaps = [(row["distill/big/reverse_kl"], row["distill/far/reverse_kl"]) for row in trained]
    assert all(far == pytest.approx(big, abs=1e-4) for big, far in gaps)  # of the same weights
    assert {row["reward/mean"] for row in trained} == {0.0}
    assert all(row["grad_norm"] > 0 for row in trained)
    assert undocumented(killed) == []
    # Its server has ended: what it said is kept.
    replayed = run(killed, cache, *keys, "mode=replay")
    assert replayed.returncode == 0, replayed.stderr
    assert "replayed to step 6: bit for bit the same" in replayed.stdout
    assert "Reverse KL to the teachers" in (killed / "report.html").read_text()


def test_a_teacher_of_other_tokens_is_refused_by_one_line(tmp_path: Path, cache: Path) -> None:
    refused = run(tmp_path / "run", cache, *taught_by(teacher(tmp_path / "teacher", "9876543210")))
    assert refused.returncode == 2
    said = warn_once(refused.stderr)
    assert "algorithm.distill.teachers.big: 10 tokens of the policy are not the teacher's, the first is " in said
    missing = run(tmp_path / "other", cache, *taught_by(tmp_path / "nowhere"))
    assert "algorithm.distill.teachers.big: model.path=" in warn_once(missing.stderr)
    assert not (tmp_path / "other").exists()
