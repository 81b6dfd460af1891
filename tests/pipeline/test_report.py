"""``mode=report``: one page of one or several run directories, and a line for each that has none."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljax.command_line import main
from rljax.config.fields import ConfigError
from rljax.config.load import load_config
from rljax.config.schema import Config, ReportConfig
from rljax.ledger import leases, processes
from rljax.ledger.database import Database
from rljax.ledger.sqlite import SqliteFile
from rljax.observe.metrics import MetricsLog
from rljax.pipeline.report import report
from tests.ledger.builders import make_spec
from tests.observe.report_pages import checked, figure, figures, numbers

CONFIG = Config(mode="report")
KEPT = Path(__file__).parents[2] / "bench" / "runs"
NAMES = [path.parent.name for path in sorted(KEPT.glob("*/metrics.csv"))]


def kept_run(run_dir: Path, rewards: list[float], config: dict[str, Any] | None = None) -> Path:
    """A run directory with these rewards."""
    run_dir.mkdir(parents=True)
    log = MetricsLog(run_dir)
    for step, reward in enumerate(rewards, start=1):
        log.write(step, {"reward/mean": reward, "time/step": 1.0})
    log.close()
    if config is not None:
        (run_dir / "config.json").write_text(json.dumps(config))
    return run_dir


def asked(*runs: object, path: Path | None = None) -> Config:
    return replace(CONFIG, report=ReportConfig(runs=tuple(map(str, runs)), path=None if path is None else str(path)))


def lines(page: str, title: str) -> dict[str, list[float]]:
    drawn = figure(page, title)["data"]  # what is faint has no name
    return {trace["name"]: numbers(trace["y"]) for trace in drawn if "name" in trace}


def test_several_runs_are_overlaid_with_their_names(tmp_path: Path) -> None:
    first = kept_run(tmp_path / "runs" / "first", [0.1, 0.2], {"seed": 0, "group_size": 8, "run_dir": "a"})
    kept_run(tmp_path / "runs" / "other", [0.3, 0.4, 0.5], {"seed": 1, "group_size": 8, "run_dir": "b"})
    path, problems = report(asked(first, f"lower rate={tmp_path / 'runs' / 'other'}"))
    assert (path, problems) == (tmp_path / "runs" / "comparison.html", [])
    page = checked(path)
    assert lines(page, "Reward") == {"first": [0.1, 0.2], "lower rate": [0.3, 0.4, 0.5]}
    assert [trace["line"]["dash"] for trace in figure(page, "Reward")["data"]] == ["solid", "dash"]
    assert "0.3 → 0.5" in page
    assert "<td>seed</td><td><code>0</code></td><td><code>1</code></td>" in page
    assert "group_size" not in page
    assert "run_dir" not in page


def test_a_sweep_is_one_page(tmp_path: Path) -> None:
    for seed in range(3):
        kept_run(tmp_path / "sweep" / f"seed={seed}", [0.1 * seed])
    (tmp_path / "sweep" / "notes").mkdir()
    path, problems = report(asked(tmp_path / "sweep"))
    assert (path, problems) == (tmp_path / "sweep" / "comparison.html", [])
    assert list(lines(checked(path), "Reward")) == ["seed=0", "seed=1", "seed=2"]
    path, _ = report(asked(f"new={tmp_path / 'sweep'}", tmp_path / "sweep" / "seed=0", path=tmp_path / "p.html"))
    assert path == tmp_path / "p.html"
    assert list(lines(checked(path), "Reward")) == ["new/seed=0", "new/seed=1", "new/seed=2", "seed=0"]


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    runs = [kept_run(tmp_path / part / "run", [0.5]) for part in "ab"]
    path, _ = report(asked(*runs))
    assert list(lines(checked(path), "Reward")) == list(map(str, runs))


def test_one_run_has_its_report_in_its_directory(tmp_path: Path) -> None:
    run_dir = kept_run(tmp_path / "run", [0.5, 0.75])
    path, problems = report(replace(CONFIG, run_dir=str(run_dir)))
    assert (path, problems) == (run_dir / "report.html", [])
    assert lines(checked(path), "Reward") == {"": [0.5, 0.75]}


def test_a_run_that_was_killed_is_audited_by_its_ledger(tmp_path: Path) -> None:
    run_dir = kept_run(tmp_path / "run", [0.5])
    db = Database(SqliteFile(run_dir / "ledger.db"), make_spec())
    processes.register(db, "trainer", "trainer")
    lineage = leases.begin_lineage(db, 0)
    (run_dir / "audit.json").write_text(json.dumps({"finished": True, "failure": None}))  # of a life before
    path, problems = report(replace(CONFIG, run_dir=str(run_dir)))
    assert problems == []
    assert 'pill warn">unfinished' in checked(path)
    leases.fail_run(db, lineage, "trainer: the disk is full")
    db.close()
    path, _ = report(replace(CONFIG, run_dir=str(run_dir)))
    assert "trainer: the disk is full" in checked(path)


@pytest.mark.parametrize("name", NAMES)
def test_runs_of_an_earlier_rljax_have_a_report(name: str, tmp_path: Path) -> None:
    shutil.copytree(KEPT / name, tmp_path / name)
    path, problems = report(asked(tmp_path / name))
    assert problems == []
    page = checked(path)
    assert 'pill good">finished' in page
    assert len(lines(page, "Held-out score")) == 1
    assert len(figures(page)) >= 8


def test_runs_of_an_earlier_rljax_are_overlaid(tmp_path: Path) -> None:
    path, problems = report(asked(KEPT, path=tmp_path / "all.html"))
    assert problems == []
    assert list(lines(checked(path), "Loss")) == NAMES
    assert len(NAMES) > 5


def test_what_is_no_run_or_damaged_has_one_line_and_the_others_are_drawn(tmp_path: Path) -> None:
    good, torn, binary = (kept_run(tmp_path / name, [0.5]) for name in ("good", "torn", "binary"))
    (tmp_path / "empty").mkdir()
    (torn / "config.json").write_text('{"seed": ')
    with open(torn / "metrics.jsonl", "a") as file:
        file.write('{"step": 2, "rew\n{"step": 3, "reward/mean": 0.75}\n\x00\x01\n')
    (binary / "metrics.jsonl").write_bytes(bytes(range(256)))
    (tmp_path / "file").write_text("")
    given = [good, torn, binary, *(tmp_path / name for name in ("empty", "file", "gone"))]
    path, problems = report(asked(*given))
    assert problems == [
        f"{torn}/config.json: not JSON, and left out of the report",
        f"{torn}/metrics.jsonl: 2 lines cannot be read, and are left out of the report",
        f"{binary}/metrics.jsonl: no row of it can be read: no step has ended, or the file is damaged",
        f"{tmp_path}/empty: no metrics.jsonl here, nor in a directory below: no step has ended, or this is no run",
        f"{tmp_path}/file: no such directory; correct it",
        f"{tmp_path}/gone: no such directory; correct it",
    ]
    page = checked(path)
    assert lines(page, "Reward") == {"good": [0.5], "torn": [0.5, 0.75]}
    assert all(problem in page for problem in problems)


def test_a_ledger_that_is_none_costs_the_audit_alone(tmp_path: Path) -> None:
    run_dir = kept_run(tmp_path / "run", [0.5])
    (run_dir / "ledger.db").write_bytes(b"no ledger" * 1000)
    path, (problem,) = report(asked(run_dir))
    assert problem.startswith(f"{run_dir}: no audit of now: ")
    assert len(problem.splitlines()) == 1
    assert "There is no audit of this run yet" in checked(path)


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    run_dir = kept_run(tmp_path / "run", [0.5])
    with pytest.raises(
        ConfigError, match=r"nowhere/p.html: cannot be written \(.*\); write another file in report.path"
    ):
        report(asked(run_dir, path=tmp_path / "nowhere" / "p.html"))


def test_the_command_says_where_the_page_is_and_exits_honestly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = kept_run(tmp_path / "run", [0.5])
    command = ["--config=configs/quickstart.py", "--config.mode=report"]
    assert main([*command, f"--config.report.runs={run_dir}"]) == 0
    assert capsys.readouterr().out == f"report: {run_dir}/report.html\n"
    assert main([*command, f"--config.run_dir={tmp_path / 'gone'}"]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"rljax: report: {tmp_path}/gone: no such directory; correct it\n")


def test_the_keys_are_those_of_the_command_line() -> None:
    config = load_config("configs/quickstart.py", {"mode": "report", "report.runs": "a,new=b"})
    assert config.report.runs == ("a", "new=b")
