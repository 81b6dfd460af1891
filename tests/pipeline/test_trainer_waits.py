"""How long the learner waits for a batch, and what it says meanwhile: real ledger, modelled time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rljax.config.schema import Config, TasksConfig, TasksetConfig
from rljax.ledger import claims, leases, processes, validations, versions
from rljax.ledger.claims import TasksetSize
from rljax.ledger.database import Database
from rljax.ledger.run_spec import RunSpec
from rljax.ledger.sqlite import SqliteFile
from rljax.pipeline import train
from rljax.pipeline.assemble.learner import StepRunner
from rljax.pipeline.metrics.clock import Clock
from rljax.pipeline.train import Outputs, Trainer
from rljax.weights.publisher import PublishError

LIMIT = 10.0
CONFIG = Config(
    wait_timeout=LIMIT,
    rollout_batch_size=16,
    group_size=8,
    tasks=TasksConfig(train={"digits": TasksetConfig(source="reverse_digits", rewards=("digits",))}),
)


class Waits:
    """A learner that finds no batch; every wait takes a second, and ``meanwhile(second)`` is what happens in it."""

    def __init__(
        self,
        path: Path,
        monkeypatch: pytest.MonkeyPatch,
        meanwhile: Callable[[Waits, int], None],
        *,
        validate: bool = False,
    ) -> None:
        self.seconds, self.said, self.messages = 0.0, list[str](), list[str]()
        self.db: Any = Database(SqliteFile(path / "ledger.db"), RunSpec.of(CONFIG), clock=lambda: self.seconds)
        self.token = processes.register(self.db, "e", "explorer")
        claims.register_tasksets(self.db, [TasksetSize("digits", 90, 1.0)])
        lineage = leases.begin_lineage(self.db, 0)
        versions.announce(self.db, lineage, 0, "weights/v0", validate=validate)
        observers: Any = SimpleNamespace(
            waiting=lambda reason, *_: self.said.append(reason),
            message=lambda text: self.messages.append(text),
            validation=lambda *_: None,
            span=lambda *_, **__: None,
            part=lambda _: contextlib.nullcontext(),
        )
        learner: Any = SimpleNamespace(architecture=SimpleNamespace(vocab_size=10), steps=0)
        none: Any = None
        stop: Any = SimpleNamespace(is_set=lambda: False)
        run: Any = SimpleNamespace(weights="weights")
        outputs = Outputs(run, none, none, observers)
        self.trainer = Trainer(CONFIG, self.db, StepRunner(learner, None), outputs, dict, stop)
        self.trainer._lineage = lineage

        def wait(_seen: int) -> None:
            self.seconds += 1
            meanwhile(self, int(self.seconds))

        monkeypatch.setattr(self.db.notifier, "wait", wait)
        monkeypatch.setattr(train.time, "perf_counter", lambda: self.seconds)

    def until_it_gives_up(self) -> str:
        with pytest.raises(TimeoutError) as error:
            self.trainer._next_batch(Clock())
        return str(error.value)


def test_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits(tmp_path, monkeypatch, lambda *_: None)
    assert "waited 10 s for: " in waits.until_it_gives_up()
    assert waits.seconds == LIMIT + 1


def test_a_validation_is_waited_for_and_named_as_long_as_it_makes_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(waits: Waits, second: int) -> None:
        if second <= 50:
            processes.heartbeat(waits.db, "e", waits.token, 0, {"tokens": 7.0 * second})

    waits = Waits(tmp_path, monkeypatch, meanwhile, validate=True)
    assert validations.claim_validation(waits.db, "e") is not None
    assert waits.until_it_gives_up().endswith("; e validates version 0")
    assert waits.seconds == 50 + LIMIT + 1


def test_claims_that_are_made_and_filtered_are_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile(waits: Waits, second: int) -> None:
        if second in (8, 16):
            assert claims.claim(waits.db, "e", ["digits"], 1).claims

    waits = Waits(tmp_path, monkeypatch, meanwhile)
    waits.until_it_gives_up()
    assert waits.seconds == 16 + LIMIT + 1


def test_the_first_wait_says_that_an_engine_compiles_until_it_has_made_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(waits: Waits, second: int) -> None:
        if second == 3:
            processes.heartbeat(waits.db, "e", waits.token, 0, {"tokens": 1234.0})

    waits = Waits(tmp_path, monkeypatch, meanwhile)
    waits.until_it_gives_up()
    assert waits.said[0] == "groups: 0 of 2 ready · no token yet: an engine starts and compiles first"
    assert waits.said[3] == "groups: 0 of 2 ready · 1,234 tokens so far"


def test_a_filter_that_rejects_all_is_named_at_once_and_said_to_be_hopeless_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(waits: Waits, second: int) -> None:
        if second <= 60:
            for claim in claims.claim(waits.db, "e", ["digits"], 2).claims:
                claims.settle(waits.db, claim, "filtered", "mean_band: mean reward too low")

    waits = Waits(tmp_path, monkeypatch, meanwhile)
    waits.until_it_gives_up()
    assert waits.said[1].startswith(
        "groups: 0 of 2 ready; of those in time for step 0, 2 filtered: mean_band: mean reward too low"
    )
    assert "no token yet" not in waits.said[1], "what is filtered was made of some"
    (message,) = waits.messages
    assert message.startswith(
        "100 groups in a row were filtered and none was kept, most by mean_band: mean reward too low; "
    )
    assert "algorithm.filters, algorithm.filter" in message


def test_a_version_that_is_on_its_way_is_named_by_who_waits_for_its_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = Waits(tmp_path, monkeypatch, lambda *_: None)
    publishing = waits.trainer._publishing
    publishing._under_way, publishing._version = Future(), 3
    assert waits.until_it_gives_up().endswith("; version 3 has been on its way to weights for 11 s")


def test_a_version_that_could_not_be_written_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile(waits: Waits, second: int) -> None:
        if second == 2:
            failed = waits.trainer._publishing._under_way = Future[None]()
            failed.set_exception(PublishError("version 3 cannot be published"))

    waits = Waits(tmp_path, monkeypatch, meanwhile)
    with pytest.raises(PublishError, match="version 3"):
        waits.trainer._next_batch(Clock())
    assert waits.seconds == 2
