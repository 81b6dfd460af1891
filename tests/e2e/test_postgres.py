"""A run whose ledger is in PostgreSQL, as a user starts it. In `test_kill.py` back ends are killed under it."""

from __future__ import annotations

import json
from pathlib import Path

from program import audit_of, run

from tests.postgres import Server

PASSWORD = "s3cret"  # the test's server trusts everybody; a user's does not


def test_every_mode_finds_the_ledger_of_a_run(server: Server, tmp_path: Path, cache: Path) -> None:
    run_dir = tmp_path / "first-run"
    url = server.url.set(password=PASSWORD).render_as_string(hide_password=False)
    ledger = f"ledger={url}"
    trained = run(run_dir, cache, ledger, "async_generation_ratio=1.0", "max_steps=10")
    assert trained.returncode == 0, trained.stderr
    report = audit_of(run_dir)
    assert report["balanced"], report["problems"]
    assert (report["trained"], report["trained_twice"]) == (10 * 4, 0)
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
    assert PASSWORD not in trained.stdout + trained.stderr + longer.stdout + longer.stderr

    other = run(tmp_path / "else" / "first-run", cache, ledger, "async_generation_ratio=1.0", "max_steps=12")
    assert other.returncode == 1
    assert "schema first-run: a learner has lived there" in other.stderr
