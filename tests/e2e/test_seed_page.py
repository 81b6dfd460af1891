"""The command of docs/from_roll.md, as it stands there."""

from __future__ import annotations

from pathlib import Path

from program import audit_of, run

from tests.config.importer_files import SEEDS, small


def test_the_page_s_command_runs_a_document_small(tmp_path: Path, cache: Path) -> None:
    file, overrides = small()
    done = run(tmp_path / "run", cache, *overrides, config=SEEDS / file)
    assert done.returncode == 0, done.stderr
    audit = audit_of(tmp_path / "run")
    assert (audit["balanced"], audit["steps"], audit["trained"]) == (True, 2, 2)
