"""A run whose ledger is in PostgreSQL, as a user starts it: back ends are killed under it, and every mode finds it."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
from program import Started, audit_of, run

from tests.postgres import Server

PASSWORD = "s3cret"  # the test's server trusts everybody; a user's does not


def test_a_run_survives_the_death_of_its_back_ends(server: Server, tmp_path: Path, cache: Path) -> None:
    run_dir, metrics = tmp_path / "first-run", tmp_path / "first-run" / "metrics.jsonl"
    url = server.url.set(password=PASSWORD).render_as_string(hide_password=False)
    ledger = f"ledger={url}"

    def steps() -> int:
        return len(metrics.read_text().splitlines()) if metrics.exists() else 0

    def kill_one() -> bool:
        try:
            pids = server.pids()
            server.kill(pids[0])
        except (psycopg.OperationalError, ProcessLookupError, IndexError):
            return False
        return True

    started = Started(run_dir, cache, ledger, "async_generation_ratio=1.0", "max_steps=10")
    started.until(lambda: steps() >= 2, "the second step")
    started.until(kill_one, "the first kill")
    before = steps()
    started.until(lambda: steps() > before + 1, "a step after the first kill")
    started.until(kill_one, "the second kill")
    assert started.end() == 0, started.printed
    report = audit_of(run_dir)
    assert report["balanced"], report["problems"]
    assert (report["trained"], report["trained_twice"], len(report["lineages"])) == (10 * 4, 0, 1)
    assert not (run_dir / "ledger.db").exists()

    assert json.loads((run_dir / "config.json").read_text())["ledger"] == url.replace(PASSWORD, "***")
    for mode, words in (("audit", "balanced"), ("evaluate", "checkpoint 10"), ("replay", "bit for bit the same")):
        done = run(run_dir, cache, ledger, "async_generation_ratio=1.0", "max_steps=10", f"mode={mode}")
        assert done.returncode == 0, done.stderr
        assert words in done.stdout
    longer = run(run_dir, cache, ledger, "async_generation_ratio=1.0", "max_steps=12")
    assert longer.returncode == 0, longer.stderr
    assert audit_of(run_dir)["trained"] == 12 * 4
    left_behind = [path for path in run_dir.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]
    assert left_behind == []
    assert PASSWORD not in started.printed + longer.stdout + longer.stderr

    other = run(tmp_path / "else" / "first-run", cache, ledger, "async_generation_ratio=1.0", "max_steps=12")
    assert other.returncode == 1
    assert "schema first-run: a learner has lived there" in other.stderr
