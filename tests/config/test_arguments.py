"""What comes in from the command line, before any file is read (promise P9)."""

from __future__ import annotations

import pytest

from rljax.command_line import main
from rljax.config.arguments import parse_arguments
from rljax.config.validate import ConfigError


def test_a_repeated_argument_that_contradicts_the_first_is_refused() -> None:
    same = ["--config=quickstart", "--config.seed=1", "--config.algorithm.filters=", "--config.run_dir=r"]
    assert parse_arguments([*same, *same])[1] == {"seed": "1", "algorithm.filters": "", "run_dir": "r"}
    with pytest.raises(ConfigError, match=r"^--config\.seed='2': given before as '1'; write it once$"):
        parse_arguments([*same, "--config.seed", "2"])
    with pytest.raises(ConfigError, match=r"^--config\.algorithm\.filters='overlong': given before as ''; write it"):
        parse_arguments([*same, "--config.algorithm.filters=overlong"])
    with pytest.raises(ConfigError, match=r"^--config='other\.py': given before as '.*; write it once$"):
        parse_arguments([*same, "--config=other.py"])


@pytest.mark.parametrize("url", ["postgresql://u:S3CR:@T@h/db", "postgresql://u@h/db?x=1&sslpassword=S3CR:@T"])
def test_no_message_of_a_command_line_holds_a_password(url: str) -> None:
    for wrong in ([url], [f"--ledger={url}"], [f"--config.ledger={url}", "--config.ledger=sqlite"]):
        with pytest.raises(ConfigError) as refused:
            parse_arguments(["--config=quickstart", *wrong])
        assert "S3CR" not in str(refused.value)
        assert "@T" not in str(refused.value)


def test_all_arguments_that_are_malformed_are_told_at_once() -> None:
    given = ["--config.max_steps", "-config", "quickstart", "--steps=3", "--config.seed=1", "--config.seed=2"]
    with pytest.raises(ConfigError) as refused:
        parse_arguments(given)
    assert [str(error).partition(":")[0] for error in (refused.value, *refused.value.others)] == [
        "--config.max_steps",
        "-config",
        "--steps",
        "--config.seed='2'",
    ]


@pytest.mark.parametrize("missing", ["missing.yaml", "missing.py", "explorer.yaml,missing.yaml", "quickstrt"])
def test_beside_a_file_that_is_not_there_the_arguments_are_judged(
    missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As far as no file says otherwise: a taskset and a loss of its own may have keys that no other has."""
    wrong = ["--config.max_stesp=1", "--config.mode=explor", "--config.seed=many"]
    well = ["--config.max_steps=2", "--config.tasks.train.mine.source=x.jsonl", "--config.algorithm.loss.own=1"]
    well += ["--config.judges.x.path=tiny", "--config.custom_envs.Mine.max_actions=3", "--config.group_size=5"]
    assert main([f"--config={missing}", *wrong, *well]) == 2
    said = capsys.readouterr().err
    assert "max_stesp: unknown key; did you mean max_steps?" in said
    assert "mode='explor': not one of " in said
    assert "seed=many: expected an integer" in said
    assert "no such " in said
    there = sum("no such file" in line or "no such config" in line for line in said.splitlines())
    assert len(said.splitlines()) == 1 + 3 + there


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["-config.max_steps=2", "--config.max_steps=3"], "-config.max_steps: unknown argument; did you mean "),
        (["--config.max_steps=3", "-config.max_steps=2"], "-config.max_steps: unknown argument; did you mean "),
        (["mine.py:3"], "mine.py:3: unknown argument; did you mean --config=mine.py:3?"),
        (["--config.judges.x.pth=tiny"], "judges.x.pth: unknown key; did you mean judges.x.path?"),
        (["--config.reward_models.x.pth=tiny"], "reward_models.x.pth: unknown key; did you mean reward_models.x.path?"),
    ],
)
def test_what_a_mistyped_argument_causes_is_not_said(
    given: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config=quickstart", "--dry-run", *given]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"rljax: {line}")


@pytest.mark.parametrize("config", ["quickstart", "configs/quickstart.py"])
def test_a_config_without_its_option_is_taken_for_one(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([config, "--config.max_steps=0"]) == 2
    _, first, *others = capsys.readouterr().err.splitlines()
    assert first.strip() == f"{config}: unknown argument; did you mean --config={config}?"
    assert len(others) == 1
