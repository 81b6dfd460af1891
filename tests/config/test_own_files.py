"""What one's own `config.py` has wrong is judged with what the command line says, all at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from rljax.command_line import main
from rljax.config.fields import ConfigError
from rljax.config.load import load_config
from rljax.config.refusals import RefusedConfig
from rljax.config.schema import AlgorithmConfig, Config, TasksConfig, TasksetConfig

IMPORTS = """
from rljax.config.load import load_config, to_config_dict
from rljax.config.schema import *
TASKS = TasksConfig(train={"digits": TasksetConfig(source="reverse_digits", rewards=("digits",))})
"""


def file(folder: Path, body: str) -> str:
    path = folder / "mine.py"
    path.write_text(f"{IMPORTS}\ndef get_config():\n    return {body}\n")
    return str(path)


WRONG = (
    "Config(tasks=TASKS, max_steps=0, model=ModelConfig(tiny=TinyConfig(num_layers=0)), "
    'algorithm=AlgorithmConfig(loss={"clip_hihg": 2.0}))'
)


@pytest.mark.parametrize("body", [WRONG, f"to_config_dict({WRONG})"])
def test_what_a_file_has_wrong_is_told_with_the_rest_and_an_override_settles_it(body: str, tmp_path: Path) -> None:
    mine = file(tmp_path, body)
    settled = {"model.tiny.num_layers": "2", "max_steps": "3"}
    with pytest.raises(RefusedConfig) as refused:
        load_config(mine, {"launcher": "none", "group_size": "0", "model.tiny.num_layers": "2"})
    assert sorted(line.split(":")[0].strip() for line in str(refused.value).splitlines()[1:]) == [
        "algorithm.loss.clip_hihg",
        "group_size=0",
        "launcher='none'",
        "max_steps=0",
    ]
    with pytest.raises(ConfigError, match=r"^algorithm\.loss\.clip_hihg: ppo has no such key; closest: clip_high"):
        load_config(mine, settled)
    config = load_config(mine, {**settled, "algorithm.loss": {}})
    assert (config.max_steps, config.model.tiny.num_layers) == (3, 2)


def test_outside_of_a_file_it_is_refused_at_once(tmp_path: Path) -> None:
    tasks = TasksConfig(train={"digits": TasksetConfig(source="reverse_digits", rewards=("digits",))})
    load_config(file(tmp_path, "Config(tasks=TASKS)"))
    with pytest.raises(ConfigError, match=r"^max_steps=0: must be at least 1$"):
        Config(tasks=tasks, max_steps=0)
    with pytest.raises(ConfigError, match=r"clip_hihg: ppo has no such key"):
        AlgorithmConfig(loss={"clip_hihg": 2.0})


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("TinyConfig(hiden_size=8)", "model.tiny.hiden_size: unknown key; did you mean model.tiny.hidden_size"),
        ("OptimizerConfig(bata1=1)", "learner.optimizer.bata1: unknown key; did you mean learner.optimizer.beta1?"),
        ("TasksetConfig(sourc='x')", "tasks.train.NAME.sourc: unknown key; did you mean tasks.train.NAME.source?"),
        ("TinyConfig(zzzz=1)", "model.tiny.zzzz: unknown key; model.tiny has: "),
    ],
)
def test_an_unknown_key_is_answered_from_the_group_that_it_was_given_to(body: str, told: str, tmp_path: Path) -> None:
    mine = file(tmp_path, f"Config(tasks=TASKS, model={body})")
    with pytest.raises(ConfigError) as refused:
        load_config(mine)
    assert str(refused.value).startswith(f"{mine}: {told}")
    assert str(refused.value).endswith(f" ({mine}:7)")


def test_the_table_of_a_config_that_a_file_loads_stays_one(tmp_path: Path) -> None:
    mine = file(tmp_path, 'load_config("quickstart", {"max_steps": "0", "seeed": "1"})')
    with pytest.raises(RefusedConfig) as refused:
        load_config(mine)
    assert str(refused.value).splitlines() == [
        f"{mine}: quickstart: keys that are refused:",
        "  seeed: unknown key; did you mean seed?",
        "  max_steps=0: must be at least 1",
    ]


def test_a_dry_run_executes_a_file_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = file(tmp_path, "print('is executed') or Config(tasks=TASKS)")
    for given, code in ((["--dry-run"], 0), (["--dry-run=x.py"], 2), (["--dry-run", "--config.max_stpes=1"], 2)):
        assert main([f"--config={mine}", *given]) == code
        assert capsys.readouterr().out.count("is executed") == 1
