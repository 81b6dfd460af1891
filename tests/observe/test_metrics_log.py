"""metrics.jsonl: one row a step, whatever crashes, repeats or is no number."""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from rljax.ledger.database import StaleWriterError
from rljax.observe.metrics import FILE, MetricsLog, MetricsReader, read_metrics


def lines(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (run_dir / FILE).read_text().splitlines()]


def test_one_object_a_step_in_order(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.write(1, {"reward/mean": 0.25, "staleness/max": 0})
    log.write(2, {"reward/mean": np.float32(0.5), "staleness/max": np.int64(1)})
    found = lines(tmp_path)
    assert [row["step"] for row in found] == [1, 2]
    assert found[0]["reward/mean"] == 0.25
    assert found[1]["reward/mean"] == 0.5
    assert found[1]["staleness/max"] == 1


def test_a_late_validation_joins_the_row_of_its_step(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    for step in (1, 2, 3):
        log.write(step, {"reward/mean": step / 10})
    log.write(2, {"val/a/score": 0.7})
    log.write(0, {"val/a/score": 0.1})
    log.write(4, {"reward/mean": 0.4})
    log.write(3, {"val/a/score": 0.8})
    found = lines(tmp_path)
    assert [row["step"] for row in found] == [0, 1, 2, 3, 4]
    assert [row.get("val/a/score") for row in found] == [0.1, None, 0.7, 0.8, None]
    assert [row.get("reward/mean") for row in found] == [None, 0.1, 0.2, 0.3, 0.4]


def test_what_is_not_finite_is_null(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = MetricsLog(tmp_path)
    with caplog.at_level(logging.WARNING):
        log.write(1, {"loss": float("nan"), "grad_norm": float("inf"), "odd": "text"})
        log.write(2, {"odd": "text"})
    assert "NaN" not in (tmp_path / FILE).read_text()
    assert [lines(tmp_path)[0][name] for name in ("loss", "grad_norm", "odd")] == [None, None, None]
    assert len(caplog.records) == 1
    assert "odd" in caplog.text


def test_a_torn_line_is_repaired_on_opening(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"step": 1, "a": 1}\n{"step": 2, "a": 2}\n{"step": 3, "a"')
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]
    MetricsLog(tmp_path).write(3, {"a": 3})
    assert [(row["step"], row["a"]) for row in lines(tmp_path)] == [(1, 1), (2, 2), (3, 3)]


def test_truncate_removes_the_steps_to_be_trained_again(tmp_path: Path) -> None:
    first = MetricsLog(tmp_path)
    for step in range(1, 8):
        first.write(step, {"life": 1})
    resumed = MetricsLog(tmp_path)
    resumed.truncate(5)
    resumed.write(5, {"life": 2})
    assert [(row["step"], row["life"]) for row in lines(tmp_path)] == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2)]


def test_many_threads(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)

    def write(offset: int) -> None:
        for step in range(offset, 200, 4):
            log.write(step, {"a": step})
            log.write(step, {"b": step})

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(row["step"], row["a"], row["b"]) for row in lines(tmp_path)] == [(i, i, i) for i in range(200)]


def test_a_full_disk_is_said_once_and_made_up_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MetricsLog(tmp_path)
    log.write(1, {"a": 1})

    def full(file: BinaryIO, line: bytes, size: int) -> None:
        file.write(line[:5])  # as much as still fitted
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr("rljax.observe.metrics._append", full)
        log.write(2, {"a": 2})
        log.write(3, {"a": 3})
    assert caplog.text.count("No space left") == 1
    log.write(4, {"a": 4})
    assert [(row["step"], row["a"]) for row in lines(tmp_path)] == [(1, 1), (2, 2), (3, 3), (4, 4)]


@pytest.mark.parametrize("used", [False, True])
def test_rows_of_a_lost_history_go_once_the_disk_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: bool
) -> None:
    first = MetricsLog(tmp_path)
    for step in range(1, 8):
        first.write(step, {"life": 1})

    def full(file: BinaryIO, line: bytes, size: int) -> None:
        raise OSError(28, "No space left on device")

    resumed = first if used else MetricsLog(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("rljax.observe.metrics._append", full)
        resumed.truncate(5)
        resumed.write(5, {"life": 2})
    resumed.write(6, {"life": 2})
    kept = [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2), (6, 2)]
    assert [(row["step"], row["life"]) for row in lines(tmp_path)] == kept


def test_a_file_cut_by_somebody_else(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    for step in range(5):
        log.write(step, {"a": step})
    os.truncate(tmp_path / FILE, 0)
    log.write(5, {"a": 5})
    assert [row["step"] for row in lines(tmp_path)] == [5]


def test_a_stopped_learner_that_continues_does_not_touch_its_successors_rows(tmp_path: Path) -> None:
    """It appends, joins an early row and starts over, each as if it had just been told that it may."""
    stopped = MetricsLog(tmp_path)
    for step in (1, 2, 3, 4):
        stopped.write(step, {"life": 1})
    living = MetricsLog(tmp_path)
    living.truncate(3)
    living.write(3, {"life": 2})
    stopped.write(5, {"life": 1})
    living.write(4, {"life": 2})
    stopped.write(2, {"val/a/score": 0.5})
    stopped.write(6, {"life": 1})
    living.write(5, {"life": 2})
    assert [(row["step"], row["life"]) for row in lines(tmp_path)] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2)]
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_learner_that_was_replaced_is_told_before_it_writes(tmp_path: Path) -> None:
    replaced = False

    def may_write() -> None:
        if replaced:
            raise StaleWriterError

    stopped = MetricsLog(tmp_path)
    stopped.truncate(1, may_write)
    stopped.write(1, {"life": 1})
    living = MetricsLog(tmp_path)
    living.truncate(1)
    replaced = True
    for write in (lambda: stopped.write(1, {"life": 1}), lambda: stopped.truncate(1, may_write)):
        with pytest.raises(StaleWriterError):
            write()
    living.write(1, {"life": 2})
    living.close()
    assert [(row["step"], row["life"]) for row in lines(tmp_path)] == [(1, 2)]


def test_a_learner_that_was_stopped_after_it_was_told_finds_its_file_replaced_and_asks_again(tmp_path: Path) -> None:
    """The successor has ended by then, and nobody would put its rows back."""
    stopped, living = MetricsLog(tmp_path), MetricsLog(tmp_path)
    answers = iter(["yes", "no"])

    def may_write() -> None:
        if next(answers) == "no":
            raise StaleWriterError
        living.truncate(2)  # while the one that has been told is stopped
        living.write(2, {"life": 2})
        living.close()

    stopped.write(1, {"life": 1})
    stopped._may_write = may_write
    with pytest.raises(StaleWriterError):
        stopped.write(2, {"life": 1})
    assert [(row["step"], row["life"]) for row in lines(tmp_path)] == [(1, 1), (2, 2)]


def test_no_file_no_rows(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "nowhere") == []


def test_a_reader_follows_what_another_process_writes(tmp_path: Path) -> None:
    reader = MetricsReader(tmp_path)
    assert reader.rows() == []
    log = MetricsLog(tmp_path)
    for step in range(1, 4):
        log.write(step, {"a": step})
    assert reader.rows() == read_metrics(tmp_path)
    with open(tmp_path / FILE, "ab") as file:
        file.write(b'{"step": 4, "a"')
        file.flush()
        assert [row["step"] for row in reader.rows()] == [1, 2, 3]
        file.write(b": 4}\n")
    assert [(row["step"], row["a"]) for row in reader.rows()] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    log.write(2, {"val/a/score": 0.5})  # late: another file takes the place
    assert reader.rows() == read_metrics(tmp_path)
    assert reader.rows()[1]["val/a/score"] == 0.5
    MetricsLog(tmp_path).truncate(2)
    assert [row["step"] for row in reader.rows()] == [1]
    os.truncate(tmp_path / FILE, 0)
    assert reader.rows() == []
    reader.close()
