"""How often all hosts of a learner start again."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rljax.config.load import as_plain
from rljax.config.schema import Config
from rljax.interrupts import HOST_LOST
from rljax.launch import gang, ray_gang
from rljax.launch.gang import MAX_RESTARTS, PAUSE, run_again_where_lost
from rljax.launch.host_process import Place
from rljax.launch.ray_alone import ClusterError
from rljax.launch.supervisor import End
from rljax.pipeline.run_dir import RunDir

LOST = End(HOST_LOST, "host 1 was ended by SIGKILL")


class Scripted:
    """An attempt that ends as written, and may save a checkpoint before."""

    def __init__(self, end: End, saves: Path | None = None) -> None:
        self._end, self._saves = end, saves

    def run(self) -> End:
        if self._saves is not None:
            self._saves.mkdir()
        return self._end

    def stop(self, number: int) -> None:
        raise AssertionError(f"nobody sends {number}")


def test_attempts_without_a_new_checkpoint_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three restarts in a row; after a checkpoint three more. The run's directory keeps each line."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "logs").mkdir()
    attempts = iter([Scripted(LOST), Scripted(LOST, tmp_path / "checkpoints" / "7"), *[Scripted(LOST)] * MAX_RESTARTS])
    run = RunDir(tmp_path)
    assert run_again_where_lost(run, lambda: next(attempts)) == HOST_LOST
    assert list(attempts) == []
    said = capsys.readouterr().err.splitlines()
    assert [line[line.index("(") :] for line in said[:-1]] == [f"(restart {n} of 3)" for n in (1, 1, 2, 3)]
    assert "4 times in a row without a new checkpoint; the same command goes on" in said[-1]
    kept = (tmp_path / "logs" / "hosts.log").read_text().splitlines()
    assert [line.partition(f" {socket.gethostname()}: ")[2] for line in kept] == [
        line.removeprefix("rljax: ") for line in said
    ]


def test_what_a_host_said_itself_is_not_tried_again(tmp_path: Path) -> None:
    attempts = iter([Scripted(LOST), Scripted(End(1))])
    assert run_again_where_lost(RunDir(tmp_path), lambda: next(attempts)) == 1
    assert not list(tmp_path.iterdir())  # of a run that has not begun nothing is kept
    assert list(attempts) == []


def test_a_start_that_fails_after_the_first_is_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that has no other node for a lost one may have it later: the next start comes after a pause."""
    slept = a_clock(monkeypatch)
    (tmp_path / "logs").mkdir()
    away = "launcher=ray: hosts did not start within 60 s"
    starts: Iterator[Scripted | None] = iter([Scripted(LOST), None, Scripted(LOST), *[None] * (MAX_RESTARTS - 2)])

    def start() -> Scripted:
        if (attempt := next(starts)) is None:
            raise ClusterError(f"{away}\nand what Ray said")
        return attempt

    assert run_again_where_lost(RunDir(tmp_path), start) == HOST_LOST
    assert list(starts) == []
    kept = (tmp_path / "logs" / "hosts.log").read_text().splitlines()
    whys = [line.partition(f" {socket.gethostname()}: ")[2].rpartition(": ")[0] for line in kept]
    late = f"all hosts did not start again: {away}"
    assert whys == [LOST.lost, late, LOST.lost, late]
    assert sum(slept) == pytest.approx(PAUSE, abs=1)  # not after the last


def a_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Has the seconds of a pause pass at once; returns them."""
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr(gang, "time", clock)
    return slept


def test_a_signal_in_the_pause_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    starts = iter([Scripted(LOST)])
    slept = a_clock(monkeypatch)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        signal.raise_signal(signal.SIGTERM)

    def start() -> Scripted:
        if (attempt := next(starts, None)) is None:
            raise ClusterError("no room")
        return attempt

    monkeypatch.setattr(gang.time, "sleep", sleep)
    assert run_again_where_lost(RunDir(tmp_path), start) == 128 + signal.SIGTERM
    assert len(slept) == 1
    stopped = "rljax: stopped before all hosts had started again; the same command goes on from the last checkpoint"
    assert capsys.readouterr().err.splitlines()[-1] == stopped


def test_a_first_start_that_fails_ends_the_command(tmp_path: Path) -> None:
    def start() -> Scripted:
        raise ClusterError("no room")

    with pytest.raises(ClusterError, match="no room"):
        run_again_where_lost(RunDir(tmp_path), start)


def test_where_a_host_cannot_be_killed_nothing_starts_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has its devices still."""
    held = "host 0 (pid 7) cannot be killed: its disk or driver hangs"
    attempts = iter([Scripted(End(HOST_LOST, held, held=True))])
    assert run_again_where_lost(RunDir(tmp_path), lambda: next(attempts)) == HOST_LOST
    goes_on = "all hosts end; the same command goes on from the last checkpoint"
    assert capsys.readouterr().err == f"rljax: {held}: {goes_on}\n"


def test_a_signal_while_they_start_reaches_them(tmp_path: Path) -> None:
    """Ray takes its time to start them: who was asked to stop then is asked as soon as there is one."""
    heard: list[int] = []

    class Told(Scripted):
        def stop(self, number: int) -> None:
            heard.append(number)

    def start() -> Told:
        signal.raise_signal(signal.SIGTERM)
        return Told(End(0))

    assert run_again_where_lost(RunDir(tmp_path), start) == 0
    assert heard == [signal.SIGTERM]


def test_a_signal_while_a_host_starts_on_ray_reaches_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    heard: list[int] = []

    class Told(Scripted):
        """A supervisor whose actor is told to stop while it is being made."""

        def __init__(self, *_: object, **__: object) -> None:
            super().__init__(End(0))
            actor.stop(signal.SIGTERM)

        def stop(self, number: int) -> None:
            heard.append(number)

    monkeypatch.chdir(tmp_path)
    for name in ("redirect_output", "end_group_with_process"):  # they would be those of the tests
        monkeypatch.setattr(ray_gang, name, lambda *_: None)
    monkeypatch.setattr(ray_gang, "Supervisor", Told)
    (tmp_path / "log").write_text("of an attempt before")
    actor = ray_gang.HostActor(str(tmp_path / "log"), str(tmp_path))
    assert actor.supervise(as_plain(Config(mode="report")), Place(0, 1, "127.0.0.1:1")) == (0, "", False)
    assert heard == [signal.SIGTERM]
    with (tmp_path / "log").open("a") as log:
        log.write("step 1")
    assert (actor.printed(0), actor.printed(5)) == (b"step 1", b"1"), "what was printed before stays, and is shown once"
