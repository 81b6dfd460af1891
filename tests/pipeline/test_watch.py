"""A run is followed from another process: by what it leaves behind, and without a trace."""

from __future__ import annotations

import io
import json
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from rich.console import Console

from rljax import command_line
from rljax.ledger import leases, processes
from rljax.ledger.sqlite import SqliteFile
from rljax.observe.metrics import MetricsLog
from rljax.observe.progress import Progress
from rljax.pipeline.watch import Watcher, watch
from rljax.pipeline.watch_page import page
from tests.ledger.builders import LedgerBench, make_spec
from tests.waiting import until

ROW = {"reward/mean": 0.5, "reward/std": 0.0, "time/step": 2.0, "tokens_per_second": 100.0, "val/a/score": 0.25}


@pytest.fixture
def bench(tmp_path: Path) -> LedgerBench:
    made = LedgerBench(SqliteFile(tmp_path / "ledger.db"), make_spec(b=2, max_steps=30))
    processes.register(made.db, "trainer", "trainer")
    return made


def rows(root: Path, *steps: int) -> MetricsLog:
    log = MetricsLog(root)
    for step in steps:
        log.write(step, ROW)
    return log


def shown(watcher: Watcher, width: int = 110) -> tuple[str, list[str]]:
    """The panel of one look, and the lines where there is no terminal."""
    stop, out, lines = threading.Event(), io.StringIO(), io.StringIO()
    stop.set()
    terminal = Console(file=out, force_terminal=True, width=width, color_system=None, _environ={"TERM": "xterm"})
    for console in (terminal, Console(file=lines, width=200)):
        with Progress("auto", "run", console=console) as progress:
            watch(watcher, progress, False, stop)
    return out.getvalue(), lines.getvalue().splitlines()


def test_a_run_under_way(tmp_path: Path, bench: LedgerBench) -> None:
    rows(tmp_path, *range(6))
    processes.heartbeat(bench.db, "e", bench.token, 0, {"running": 3.0, "slots": 8.0, "tokens": 9.0})
    panel, lines = shown(Watcher(tmp_path))
    for words in (
        "5/30 steps",
        "0:50 left",
        "0 of 2 groups ready",
        "alive e, trainer",
        "requests 3 of 8",
        "s/step 2.00",
    ):
        assert words in panel
    assert "waiting for groups: 0 of 2 ready" in panel
    assert [line.partition(" ·")[0] for line in lines] == ["step 5/30"], "of those before, the newest"


def test_steps_that_come_have_lines_and_a_resume_goes_back(tmp_path: Path, bench: LedgerBench) -> None:
    log, out = rows(tmp_path, 1, 2), io.StringIO()
    watcher, stop = Watcher(tmp_path), threading.Event()
    stop.set()
    with Progress("lines", "run", console=Console(file=out, width=200)) as progress:

        def looked() -> list[str]:
            watch(watcher, progress, False, stop)
            until(lambda: not progress._messages)
            return [line.partition(" ·")[0] for line in out.getvalue().splitlines()]

        assert looked() == ["step 2/30"]
        log.write(3, ROW)
        log.write(4, ROW)
        log.write(1, {"val/a/score": 0.75})  # late, which replaces the file
        assert looked() == ["step 2/30", "step 3/30", "step 4/30"]
        resumed = MetricsLog(tmp_path)
        resumed.truncate(3)
        assert len(looked()) == 3
        resumed.write(3, ROW)
        assert looked()[3:] == ["step 3/30"]


def test_how_a_run_ended(tmp_path: Path, bench: LedgerBench) -> None:
    rows(tmp_path, 1)
    leases.fail_run(bench.db, bench.lineage, "trainer: TimeoutError: \x1b[31mno explorer")
    with Progress("off", "run") as progress:
        look = watch(Watcher(tmp_path), progress, stays=False)
    assert look.failed
    assert look.over == "this run has failed: trainer: TimeoutError: \x1b[31mno explorer (step 0)"
    assert "\\x1b[31mno explorer" in shown(Watcher(tmp_path))[1][-1]
    bench.restart(0)
    assert shown(Watcher(tmp_path))[1] == [
        "step 1/30 · reward 0.5 · held out a 0.25 · 100 tok/s · 2.00 s (0.00 waiting)"
    ]
    leases.finish(bench.db, bench.lineage)
    assert shown(Watcher(tmp_path))[1][-1] == "this run has ended (step 0)"


def test_a_run_that_has_not_begun_or_whose_ledger_is_out_of_reach(tmp_path: Path) -> None:
    assert "waiting for the run to begin: there is no ledger yet" in shown(Watcher(tmp_path))[0]
    (tmp_path / "ledger.db").write_text("no database")
    rows(tmp_path, 1)
    panel, lines = shown(Watcher(tmp_path), width=200)
    assert "waiting for the ledger, which cannot be read:" in panel
    assert lines == ["step 1 · reward 0.5 · held out a 0.25 · 100 tok/s · 2.00 s (0.00 waiting)"]


def test_a_ledger_elsewhere_is_found_by_the_config(tmp_path: Path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    bench = LedgerBench(SqliteFile(tmp_path / "other.db"), make_spec())
    (root / "config.json").write_text(json.dumps({"ledger": f"sqlite:///{tmp_path / 'other.db'}"}))
    look = Watcher(root).look()
    assert look.now is not None
    assert look.now.began == bench.clock.now


def test_rewards_that_do_not_differ_stay_in_sight(tmp_path: Path, bench: LedgerBench) -> None:
    log = rows(tmp_path, *range(1, 11))
    panel, lines = shown(Watcher(tmp_path), 300)
    assert "steps 1 to 10: in every group all rewards were equal" in " ".join(panel.split())
    assert "steps 1 to 10: in every group all rewards were equal" in " ".join(lines)
    log.write(11, ROW | {"reward/std": 0.1})
    assert Watcher(tmp_path).look().warning is None


def test_the_page_answers_who_has_its_address(tmp_path: Path, bench: LedgerBench) -> None:
    rows(tmp_path, *range(4))
    watcher = Watcher(tmp_path)
    with page(watcher, 0) as address:
        assert address.startswith("http://127.0.0.1:")

        def answer(path: str) -> tuple[str, str]:
            with urllib.request.urlopen(f"{address}{path}", timeout=60) as found:
                return found.read().decode(), found.headers["Content-Security-Policy"]

        state = json.loads(answer("state")[0])
        assert state["step"] == 3
        assert state["text"].startswith(f"{tmp_path.name} · step 3 of 30 · waiting for groups: 0 of 2 ready")
        shell, policy = answer("")
        assert 'src="report"' in shell
        assert "http" not in policy
        assert "<html" in answer("report")[0]
        for wrong in (address.rsplit("/", 2)[0] + "/", address[:-2] + "/state", address + "../ledger.db"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(wrong, timeout=60)
        rows(tmp_path, 4)
        assert json.loads(answer("state")[0])["step"] == 4
        leases.finish(bench.db, bench.lineage)
        state = json.loads(answer("state")[0])
        assert state["over"]
        assert "this run has ended" in state["text"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["nowhere"], "watch nowhere: no such directory, nor runs/nowhere; name that of a run"),
        ([], "watch: takes one run"),
        (["a", "b"], "watch: takes one run"),
        (["a", "--brwoser"], "watch: takes one run"),
        (["a", "--browser=x"], "watch: takes one run"),
    ],
)
def test_wrong_arguments_are_refused(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["watch", *given]) == 2
    assert capsys.readouterr().err.startswith(f"rljax: {said}")


def test_a_directory_of_runs_is_refused_with_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("seed=0", "seed=1"):
        (tmp_path / "sweep" / name).mkdir(parents=True)
        for file in ("config.json", "metrics.jsonl"):
            (tmp_path / "sweep" / name / file).write_text("{}\n")
    assert command_line.main(["watch", str(tmp_path / "sweep")]) == 2
    assert capsys.readouterr().err.strip() == (
        f"rljax: watch {tmp_path}/sweep: holds runs, and is none; name one of {tmp_path}/sweep/seed=0, "
        f"{tmp_path}/sweep/seed=1"
    )


def test_a_run_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    bench = LedgerBench(SqliteFile(tmp_path / "runs" / "mine" / "ledger.db"), make_spec())
    leases.fail_run(bench.db, bench.lineage, "no room")
    assert command_line.main(["watch", "mine"]) == 1
    assert capsys.readouterr().out == "this run has failed: no room (step 0)\n"
