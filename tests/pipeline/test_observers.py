"""The learner's observers write the report anew at each validation, and leave a successor's alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rljax.config.schema import Config, ObserveConfig
from rljax.pipeline import observers as module
from rljax.pipeline.observers import LearnerObservers, device_memory

CONFIG = Config(mode="audit", observe=ObserveConfig(progress="off", tensorboard=False, trace=False))
MODEL: Any = SimpleNamespace(tokenizer=None)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"waited 60 s for {what}"
        time.sleep(0.01)


def test_each_validation_writes_the_report_anew(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    audit = {"balanced": True, "claimed": 7}
    with LearnerObservers(CONFIG, tmp_path, MODEL, dict, audit=lambda: audit) as observers:
        for step, score in ((2, 0.25), (4, 0.5)):
            observers.validation(step, {"val/digits/score": score, "val/seconds": 1.0})
            said = f"{score:g}</div>"
            until(lambda said=said: path.exists() and said in path.read_text(), f"the score {score}")
            page = path.read_text()
            assert 'pill live">running' in page
            assert "7 groups claimed" in page
        observers.finish(audit | {"finished": True})
    page = path.read_text()
    assert 'pill good">finished' in page
    assert '<span class="from">0.25 →</span> 0.5</div>' in page


def test_a_run_that_ends_by_an_error_that_the_ledger_does_not_know_says_so(tmp_path: Path) -> None:
    with LearnerObservers(CONFIG, tmp_path, MODEL, dict) as observers:
        observers.finish({"balanced": True, "failure": None}, "no memory is <left>")
    page = (tmp_path / "report.html").read_text()
    assert 'pill bad">failed' in page
    assert "no memory is &lt;left&gt;" in page


def test_the_log_of_the_learner_says_what_it_said_and_why_it_ended(tmp_path: Path) -> None:
    with LearnerObservers(CONFIG, tmp_path, MODEL, dict) as observers:
        observers.message("resumed from the checkpoint of step 8")
        why = RuntimeError("explorer ended: process 7 was ended by SIGKILL")
        observers.__exit__(RuntimeError, why, None)
    kept = (tmp_path / "logs" / "learner.log").read_text().splitlines()
    assert kept[1::2] == [
        "resumed from the checkpoint of step 8",
        "ended by RuntimeError: explorer ended: process 7 was ended by SIGKILL",
    ]


def test_a_run_that_has_no_routes_to_replay_says_so_whenever_it_begins(tmp_path: Path) -> None:
    batch: Any = SimpleNamespace(groups=(), reused=(), step=0)
    replays = replace(CONFIG, algorithm=replace(CONFIG.algorithm, router_replay="replay"))
    with LearnerObservers(replays, tmp_path, MODEL, dict) as observers:
        for step, known in enumerate((1.0, 0.004, 0.0, 0.5, 0.0), 1):
            observers.step(step, {"router/routes_known": known}, batch)
        observers.step(6, {}, batch)  # of demonstrations alone
    said = (tmp_path / "logs" / "learner.log").read_text().splitlines()[1::2]
    assert [line.partition(" of the choices")[0] for line in said] == [
        "step 2: algorithm.router_replay=replay: engines recorded 0.40%",
        "step 5: algorithm.router_replay=replay: engines recorded 0.00%",
    ]
    with LearnerObservers(CONFIG, tmp_path / "off", MODEL, dict) as observers:
        observers.step(1, {"router/routes_known": 0.0}, batch)
    assert not (tmp_path / "off" / "logs").exists(), "that is a run that only counts"


def test_a_learner_that_was_replaced_writes_no_report_and_one_without_reports_none(tmp_path: Path) -> None:
    asked: list[str] = []

    def is_replaced() -> bool:
        asked.append("replaced")
        return True

    with LearnerObservers(CONFIG, tmp_path, MODEL, dict, is_replaced) as observers:
        observers.validation(2, {"val/digits/score": 0.5})
        until(lambda: bool(asked), "the question")
    silent = replace(CONFIG, observe=replace(CONFIG.observe, report=False))
    with LearnerObservers(silent, tmp_path, MODEL, dict, audit=lambda: asked.append("audit") or {}) as observers:
        observers.validation(2, {"val/digits/score": 0.5})
        observers.finish({})
    assert not (tmp_path / "report.html").exists()
    assert "audit" not in asked


def test_a_learner_that_was_replaced_while_it_drew_its_report_does_not_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been stopped in between, for as long as a successor takes to the end of the run."""
    drawn: list[str] = []
    monkeypatch.setattr("rljax.observe.report.write.page", lambda _: drawn.append("page") or "old")
    asked: list[bool] = []

    def is_replaced() -> bool:
        asked.append(bool(drawn))
        return bool(drawn)

    with LearnerObservers(CONFIG, tmp_path, MODEL, dict, is_replaced) as observers:
        observers.validation(2, {"val/digits/score": 0.5})
        until(lambda: True in asked, "the question after the page was drawn")
    assert not (tmp_path / "report.html").exists()


def test_a_learner_that_was_replaced_while_it_drew_its_last_report_leaves_that_of_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, drawn = tmp_path / "report.html", []
    page.write_text("its successor's")
    monkeypatch.setattr("rljax.observe.report.write.page", lambda _: drawn.append("page") or "old")
    with LearnerObservers(CONFIG, tmp_path, MODEL, dict, lambda: bool(drawn)) as observers:
        observers.finish({})
    assert drawn == ["page"]
    assert page.read_text() == "its successor's"


def test_memory_is_that_of_the_fullest_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def device(used: float, peak: float) -> Any:
        sizes = {"bytes_in_use": used * 2**20, "peak_bytes_in_use": peak * 2**20, "bytes_limit": 80 * 2**30}
        return SimpleNamespace(memory_stats=lambda: sizes)

    monkeypatch.setattr(module.jax, "local_devices", lambda: [device(5, 7), device(4, 9)])
    assert device_memory() == {"memory_mib": 4.0, "peak_memory_mib": 9.0, "memory_limit_mib": 81920.0}
    monkeypatch.setattr(module.jax, "local_devices", lambda: [SimpleNamespace(memory_stats=lambda: None)])
    assert device_memory() == {}
