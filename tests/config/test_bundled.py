"""The configs that come along, by name, in a checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from rljax.command_line import main
from rljax.config.bundled import FOLDER, module_name
from rljax.config.load import load_config
from rljax.config.types import imported
from rljax.config.validate import ConfigError
from rljax.tasks.rewards.registry import resolve_reward
from tests.config.importer_files import SEEDS

ROOT = Path(__file__).parents[2]


def test_a_name_is_a_file_of_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert FOLDER == ROOT / "configs"
    by_file = load_config(str(FOLDER / "quickstart.py"))
    monkeypatch.chdir(tmp_path)
    assert load_config("quickstart") == by_file
    assert load_config("gsm8k:a.jsonl").tasks.train["gsm8k"].source == "a.jsonl"


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("quikstart", "--config='quikstart': no such config comes along; did you mean quickstart?"),
        ("zzz", "--config='zzz': no such config comes along; there are: agentic_frozen_lake_async,"),
        ("configs/quickstart.py", "configs/quickstart.py: no such config file; did you mean --config=quickstart?"),
        ("configs/roll.py:my.yaml", "configs/roll.py: no such config file; did you mean --config=roll:my.yaml?"),
        ("quickstart:3", "quickstart.py: takes no argument"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_one(
    path: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        load_config(path)
    assert line in str(refused.value)


def test_a_file_that_is_here_tells_by_its_keys_who_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trinity-RFT's, given to ROLL's reader from a folder that does not have it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("buffer: {batch_size: 8}\n")
    with pytest.raises(ConfigError, match=r"configs/roll\.py: no such config file; did you mean --config=mine\.yaml\?"):
        load_config("configs/roll.py:mine.yaml")


def test_a_pair_in_two_arguments_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = f"{SEEDS}/explorer.yaml", f"{SEEDS}/trainer.yaml"
    for given, said in (
        ([f"--config={one}", two], f"--config={one} {two}: leave the space out"),
        (["--config", one, two], f"--config={one} {two}: leave the space out"),
        ([f"--config={one}", f"--config={two}"], ""),
    ):
        assert main([*given, "--dry-run"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"rljax: {said}")
        assert line.endswith(f"; write --config={one},{two}")
    assert main([f"--config={one}", "--dry-run=x.yaml"]) == 2
    assert "what is written is Python" in capsys.readouterr().err


def test_they_are_listed_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["configs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(file.stem for file in FOLDER.glob("*.py"))
    assert main(["configs", "quickstart"]) == 0
    assert capsys.readouterr().out == (FOLDER / "quickstart.py").read_text()
    assert main(["configs", "quikstart"]) == 2
    assert "did you mean quickstart?" in capsys.readouterr().err


def test_a_config_may_name_what_it_defines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert module_name(Path("configs/critique.py")) == "configs.critique"
    monkeypatch.chdir(tmp_path)
    assert module_name(FOLDER / "critique.py") == "rljax.configs.critique"
    assert load_config("critique").rollout.workflow == "rljax.configs.critique:AnswerCritiqueRevise"
    assert module_name(Path("mine.py")) == "mine"
    assert module_name(Path("..") / "mine.py") == "rljax_config_mine"
    assert module_name(Path("two words/mine.py")) == "rljax_config_mine"


def test_a_folder_that_ours_hides_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "envs").mkdir()
    for refused in (
        lambda: imported("algorithm.pg_variant", "envs.mine:loss"),
        lambda: resolve_reward("envs.mine:score", "rewards"),
    ):
        with pytest.raises(ConfigError, match="envs is a package of rljax: give your folder another name"):
            refused()
    (tmp_path / "envs").rmdir()
    with pytest.raises(ConfigError, match=r"no module 'envs\.mine'; "):
        resolve_reward("envs.mine:score", "rewards")
