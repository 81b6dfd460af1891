"""A file of others is shown beside its config, and written as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rljax.command_line import main
from rljax.config import extras
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


def groups(text: str) -> dict[str, list[str]]:
    """The lines below each title."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if not line.startswith("  "):
            found[line] = []
        else:
            found[list(found)[-1]].append(line.strip())
    return found


def test_a_config_of_ours_is_shown_with_what_differs_and_where_things_go(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [
        "--config.learner.optimizer.beta1=0.8",
        "--config.compile_cache=kept",
        "--config.algorithm.loss.clip_low=0.1",
    ]
    assert main(["--config=quickstart", "--dry-run", *given]) == 0
    said = groups(capsys.readouterr().out)
    resolved, changed, lacking, places = said.values()
    assert next(iter(said)) == "resolved config"
    assert {"algorithm.loss.clip_low = 0.1", "algorithm.kl.where = 'none'", "sync_interval = 1"} <= set(resolved)
    assert "learner.optimizer.beta1 = 0.8  (default 0.9)" in changed
    assert "algorithm.loss.clip_low = 0.1  (default 0.2)" in changed
    assert "run_dir = 'runs/quickstart'  (default None)" in changed
    assert not [line for line in changed if line.startswith(("algorithm.critic", "custom_envs", "seed"))]
    assert lacking == ["nothing"]
    assert [" ".join(line.split()) for line in places] == [
        f"run directory {tmp_path}/runs/quickstart",
        f"ledger {tmp_path}/runs/quickstart/ledger.db",
        f"checkpoints {tmp_path}/runs/quickstart/checkpoints",
        f"weights {tmp_path}/runs/quickstart/weights",
        f"compile cache {tmp_path}/kept",
    ]
    assert list(tmp_path.iterdir()) == []  # nothing is made


def test_a_dry_run_shows_no_password_and_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--config.ledger=postgresql://u:S3CRET@h/db", "--config.launcher=ray", "--config.sync_method=memory"]
    installed = extras.is_installed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extras, "is_installed", lambda package: package != "ray" and installed(package))
        assert main(["--config=quickstart", "--dry-run", *given]) == 0
    said = capsys.readouterr()
    assert "S3CRET" not in said.out + said.err
    assert any(
        line.startswith("ray, for launcher=ray: ") for line in groups(said.out)["not installed here, and needed"]
    )
    places = "\n".join(groups(said.out)["where things go"])
    assert "postgresql://u:***@h/db, schema quickstart" in places
    assert "memory, and no file" in places


def test_a_dry_run_of_what_is_refused_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--config=quickstart", "--dry-run", "--config.max_step=3"]) == 2
    assert "did you mean max_steps?" in capsys.readouterr().err
    assert main(["--config=quickstart", f"--dry-run={tmp_path}/mine.py"]) == 2
    assert "what a YAML file becomes is written there" in capsys.readouterr().err


def test_a_dry_run_of_a_sweep_names_its_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config=quickstart", "--dry-run", "--config.seed=0,1,2"]) == 0
    first, runs = next(iter(groups(capsys.readouterr().out).items()))
    assert first == "a sweep of 3 runs; what follows is of the first"
    assert [line.split()[0] for line in runs] == ["seed=0", "seed=1", "seed=2"]
    assert runs[1].endswith("runs/quickstart-sweep/seed=1")


def test_a_translation_is_said_beside_its_config(write: Any) -> None:
    config, translation = load_both(write(ROLL))
    assert isinstance(config, Config)
    assert translation is not None
    assert "in our words" in config_file(translation, as_plain(config))
