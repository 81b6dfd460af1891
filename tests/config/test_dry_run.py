"""A file of others is shown beside its config, and written as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rljax.command_line import main
from rljax.config.importers.page import config_file
from rljax.config.load import as_plain, load_config
from rljax.config.load import load as load_both
from rljax.config.schema import Config
from tests.config.importer_files import ROLL, SEEDS


@pytest.mark.parametrize("name", ["explorer.yaml,{}/trainer.yaml", "agent_val_frozen_lake_async.yaml"])
def test_what_is_written_is_the_same_config(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, target = f"{SEEDS}/{name.format(SEEDS)}", tmp_path / "mine.py"
    assert main([f"--config={path}", "--config.max_steps=9", f"--dry-run={target}"]) == 0
    said = capsys.readouterr().out
    assert "->" in said
    assert f"written to {target}" in said
    config = load_config(path, {"max_steps": "9"})
    assert as_plain(load_config(str(target))) == as_plain(config)
    assert as_plain(load_config(str(target), {"group_size": "4"})) == as_plain(config) | {"group_size": 4}
    assert main([f"--config={path}", f"--dry-run={target}"]) == 2
    assert "there is such a file" in capsys.readouterr().err


def test_a_dry_run_shows_what_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--config={SEEDS / 'rlvr_config_async.yaml'}", "--dry-run"]) == 2
    said = capsys.readouterr()
    assert "max_steps = 1000" in said.out
    assert "\nrefused\n" in said.out
    assert "\nunnecessary\n" in said.out
    assert "sglang" in said.err


def test_a_file_that_is_ours_has_nothing_to_translate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config=configs/quickstart.py", "--dry-run"]) == 0
    assert "nothing to translate" in capsys.readouterr().out


def test_a_translation_is_said_beside_its_config(write: Any) -> None:
    config, translation = load_both(write(ROLL))
    assert isinstance(config, Config)
    assert translation is not None
    assert "in our words" in config_file(translation, as_plain(config))
