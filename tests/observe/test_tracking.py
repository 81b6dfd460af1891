"""TensorBoard and Weights & Biases have numbers, distributions and texts, and cost no step."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event

import rljax
from rljax.config import extras
from rljax.config.load import load_config
from rljax.observe import tracking
from rljax.observe.metrics import MetricsLog
from rljax.observe.tensorboard import TensorBoard
from rljax.observe.tracking import Entry, Tracker
from rljax.observe.weights_and_biases import WeightsAndBiases
from rljax.pipeline import observers as observers_module
from rljax.pipeline.metrics.batch import batch_histograms, batch_metrics
from rljax.pipeline.observers import LearnerObservers
from tests.observe.test_flat_rewards import groups
from tests.observe.test_samples import decode
from tests.waiting import until

SUMS = {"batch/rewards": 1.5, "batch/response_tokens": 16.0, "batch/staleness": 8.0}
"""Of four trajectories of step 7 with four tokens of version 5 each."""


def events(directory: Path) -> list[Event]:
    """What TensorBoard would read: records of a length, two checksums and a message."""

    def records(data: bytes) -> Iterator[Event]:
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            yield Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]

    return [event for path in sorted(directory.iterdir()) for event in records(path.read_bytes())]


def values(directory: Path) -> dict[str, list[tuple[int, Any]]]:
    found: dict[str, list[tuple[int, Any]]] = {}
    for event in events(directory):
        for value in event.summary.value:
            kind = value.WhichOneof("value")
            found.setdefault(value.tag, []).append((event.step, getattr(value, kind)))
    return found


def observed(root: Path, **observe: Any) -> None:
    """A step and its validation, as a learner reports them."""
    config = load_config("configs/quickstart.py")
    kept = {"progress": "off", "trace": False, "samples_per_step": 2, **observe}
    config = dataclasses.replace(config, observe=dataclasses.replace(config.observe, **kept))
    model: Any = SimpleNamespace(tokenizer=None)
    batch = dataclasses.replace(groups(5, [[1.0, 0.0], [0.5, 0.0]]), step=7)
    with LearnerObservers(config, root, model, dict) as observers:
        observers.step(8, batch_metrics(batch), batch)
        observers.validation(8, {"val/a/score": 0.25})


@pytest.fixture(autouse=True)
def text_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observers_module, "decoded", lambda tokenizer, ids: decode(ids))


def test_of_a_batch_that_is_imitated_there_are_no_distributions() -> None:
    assert batch_histograms(dataclasses.replace(groups(5, []), step=7)) == {}  # TensorBoard takes none of nothing


def test_tensorboard_has_numbers_distributions_and_texts(tmp_path: Path) -> None:
    observed(tmp_path, tensorboard=True)
    found = values(tmp_path / "tensorboard")
    assert found["reward/mean"] == [(8, 0.375)]
    assert found["val/a/score"] == [(8, 0.25)]
    for name, total in SUMS.items():
        ((step, histogram),) = found[name]
        assert (step, histogram.num, histogram.sum) == (8, 4, total)
        assert len(histogram.bucket) <= tracking.BINS + 2
    texts = [found[f"samples/{n}/text_summary"] for n in (1, 2)]
    for ((step, tensor),) in texts:
        assert step == 8
        said = tensor.string_val[0].decode()
        assert "2+2=" in said
        assert "four" in said
        assert "reward" in said


def test_tensorboard_hides_what_is_trained_again(tmp_path: Path) -> None:
    for life, steps in enumerate(((1, 2, 3, 4, 5), (4,))):
        tracker = Tracker("TensorBoard", lambda: TensorBoard(tmp_path / "tensorboard"))
        log = MetricsLog(tmp_path, [tracker])
        if life:
            log.truncate(4)
        for step in steps:
            log.write(step, {"reward/mean": 10 * life + step, "loss": math.nan})
        log.close()
        tracker.close()
    found = values(tmp_path / "tensorboard")
    assert set(found) == {"reward/mean"}, "what is not finite is left out"
    starts = [event.step for event in events(tmp_path / "tensorboard") if event.session_log.status == 1]
    assert starts == [4], "TensorBoard forgets the steps from here on that came before"
    assert found["reward/mean"] == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (4, 14)]


def test_texts_are_cut(tmp_path: Path) -> None:
    tracker = Tracker("TensorBoard", lambda: TensorBoard(tmp_path))
    tracker.write(1, texts={"samples/1": "x" * 100_000})
    tracker.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < tracking.TEXT_CHARACTERS + 1000


@pytest.mark.parametrize("before", ["", "import torch"])
def test_an_installed_torch_is_imported_by_who_asks_for_it_alone(tmp_path: Path, before: str) -> None:
    (tmp_path / "torch.py").write_text("print('torch is imported')\nclass Tensor: pass\n")
    opened = (
        "from rljax.observe.tensorboard import TensorBoard\nTensorBoard(Path('events')).purge(1)\nprint('it is open')"
    )
    program = f"from pathlib import Path\n{before}\n{opened}\nimport torch"
    paths = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(rljax.__file__).parents[1])])}
    said = subprocess.check_output([sys.executable, "-c", program], cwd=tmp_path, env=os.environ | paths, text=True)
    order = ["torch is imported", "it is open"]
    assert said.splitlines() == (order if before else order[::-1])


@pytest.mark.slow
def test_wandb_has_them_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for _ in range(2):  # the second goes on in the first one's run
        observed(tmp_path, tensorboard=False, wandb="trying")
    files = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    assert {file.stem for file in files} == {f"run-{(tmp_path / 'wandb' / 'id').read_text()}"}
    items: dict[str, Any] = {}
    of_run: set[str] = set()
    for record in wandb_records(files[0]):
        of_run |= {record.run.project} - {""}
        for item in record.history.item:
            items[".".join(item.nested_key) or item.key] = json.loads(item.value_json)
    assert of_run == {"trying"}
    assert (items["step"], items["reward/mean"], items["val/a/score"]) == (8, 0.375, 0.25)
    for name in SUMS:
        assert items[f"{name}._type"] == "histogram"
        assert sum(items[f"{name}.values"]) == 4
    (table,) = (tmp_path / "wandb").glob(f"{files[0].parent.name}/files/media/table/samples/1_*.table.json")
    ((step, text),) = json.loads(table.read_text())["data"]
    assert step == 8
    assert "four" in text


@pytest.mark.slow
def test_wandb_without_a_key_says_so_and_does_not_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    wandb.teardown()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "online")
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match="no API key: run `wandb login`, or set WANDB_API_KEY, or WANDB_MODE=off"):
        WeightsAndBiases(tmp_path, "trying", {})
    wandb.teardown()


def wandb_records(path: Path) -> Iterator[Any]:
    """What `wandb sync` would read: LevelDB's log, of blocks of 32 KiB, behind a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = path.read_bytes(), 7, b""
    while at < len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, part = struct.unpack("<HB", data[at + 4 : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if part in (1, 4):  # a whole record, or the last part of one
            yield Record.FromString(whole)
            whole = b""


def test_wandb_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda package: False)
    asked = load_config("configs/quickstart.py", {"observe.wandb": "mine"})
    (need,) = extras.missing(asked)
    assert (need.key, need.package) == ("observe.wandb='mine'", "wandb")
    assert "[wandb]" in need.cure
    assert extras.missing(dataclasses.replace(asked, mode="audit")) == []


class Failing:
    """A sink that writes nothing."""

    def __init__(self) -> None:
        self.closed = False

    def write(self, entry: Entry) -> None:
        raise OSError(28, "No space left on device")

    def purge(self, step: int) -> None: ...

    def close(self) -> None:
        self.closed = True


def test_what_fails_is_said_once_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    sink = Failing()
    with caplog.at_level(logging.WARNING):
        tracker = Tracker("Curves", lambda: sink)
        for step in range(5):
            tracker.write(step, {"a": 1.0})
        tracker.close()
    assert sink.closed
    assert caplog.text.count("No space left") == 1
    assert "Curves misses values, metrics.jsonl has them (said once)" in caplog.text


def test_what_cannot_be_opened_is_said_once_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    def unable() -> Any:
        raise RuntimeError("no network")

    with caplog.at_level(logging.WARNING):
        tracker = Tracker("Curves", unable)
        tracker.write(1, {"a": 1.0})
        tracker.close()
        until(lambda: not tracker._thread.is_alive())
    assert caplog.text.count("no network") == 1


def test_distributions_are_of_the_new_trajectories() -> None:
    found = batch_histograms(dataclasses.replace(groups(5, [[1.0, 0.0], [0.5, 0.0]]), step=7))
    assert {name: of_batch.sum() for name, of_batch in found.items()} == SUMS
    assert found["batch/staleness"].tolist() == [2.0] * 4
