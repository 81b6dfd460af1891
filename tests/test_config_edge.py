"""What comes in from config files and the command line (promise P9)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rljax.config_checks import ConfigError
from rljax.config_edge import load_config, parse_arguments

SIMPLE = """
from rljax.config import Config, TasksConfig, TasksetConfig
from rljax.config_edge import to_config_dict

def get_config(arg="4"):
    digits = TasksetConfig(source="reverse_digits", args={"digits": int(arg)})
    return to_config_dict(Config(tasks=TasksConfig(train={"digits": digits}, validation={"digits": digits})))
"""


@pytest.fixture
def simple(tmp_path: Path) -> str:
    (tmp_path / "simple.py").write_text(SIMPLE)
    return str(tmp_path / "simple.py")


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("eval_steps=7", 7),
        ("eval_steps=None", None),
        ("async_generation_ratio=2", 2.0),
        ("learner.optimizer.learning_rate=1e-3", 1e-3),
        ("observe.tensorboard=false", False),
        ("algorithm.filters=group_variance", ("group_variance",)),
        ("algorithm.filters=a,b,", ("a", "b")),
        ("algorithm.filters=()", ()),
        ("algorithm.filters=", ()),
        ("sidecar.generating_args.stop=('a,b', '\\n')", ("a,b", "\n")),
        ("sidecar.generating_args.stop=)", (")",)),
        ("sidecar.generating_args.stop=(a,b)", ("a", "b")),
        ("tasks.train.digits.reward_weights=2", (2.0,)),
        ("tasks.train.digits.reward_weights=none", None),
        ("tasks.train.digits.args.digits=6", 6),
        ("tasks.train.digits.args={}", {}),
        ("tasks.validation={}", {}),
        ("run_dir=/tmp/x=y", "/tmp/x=y"),
    ],
)
def test_an_override_has_the_type_of_its_key(override: str, value: Any, simple: str) -> None:
    path, overrides = parse_arguments([f"--config={simple}", f"--config.{override}"])
    found: Any = load_config(path, overrides)
    for name in override.partition("=")[0].split("."):
        found = found[name] if isinstance(found, Mapping) else getattr(found, name)
    assert found == value
    assert isinstance(found, Mapping if isinstance(value, dict) else type(value))


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("max_step=3", "max_step: unknown key; did you mean max_steps?"),
        ("learning_rate=1", "learning_rate: unknown key; did you mean learner.optimizer.learning_rate?"),
        ("learner.mesh.tensors=2", "learner.mesh.tensors: unknown key; did you mean learner.mesh.tensor?"),
        ("tasks.train.digit.limit=3", "tasks.train.digit.limit: unknown key; did you mean"),
        ("max_steps=1e3", "max_steps=1e3: expected an integer"),
        ("max_steps=None", "max_steps=None: expected an integer"),
        ("observe.tensorboard=yes", "observe.tensorboard=yes: expected true or false"),
        ("learner=3", "learner=3: this is a group of keys; write learner.KEY=VALUE"),
        ("seed.x=3", "seed.x: seed is a single value and has no key 'x'"),
        ("algorithm.filters=a,,b", "algorithm.filters='a,,b': an element is empty"),
        ("sidecar.generating_args.stop=\n", "sidecar.generating_args.stop='\\n': an element is empty"),
        ("tasks.train.digits.reward_weights=a", "tasks.train.digits.reward_weights=a: expected a number"),
    ],
)
def test_an_override_that_cannot_be_meant_is_one_line(override: str, line: str, simple: str) -> None:
    path, overrides = parse_arguments([f"--config={simple}", f"--config.{override}"])
    with pytest.raises(ConfigError) as refused:
        load_config(path, overrides)
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


def test_the_argument_of_a_config_file_and_its_faults(simple: str, tmp_path: Path) -> None:
    assert load_config(f"{simple}:9").tasks.train["digits"].args == {"digits": 9}
    assert load_config(simple).run_dir == "runs/simple"
    with pytest.raises(ConfigError, match=r"simple\.py: ValueError: invalid literal"):
        load_config(f"{simple}:many")
    with pytest.raises(ConfigError, match=r"no such config file; did you mean .*simple\.py\?"):
        load_config(str(tmp_path / "simpel.py"))
    with pytest.raises(ConfigError, match="--config: missing"):
        parse_arguments([])
    with pytest.raises(ConfigError, match=r"--steps: unknown argument; write --config=FILE\.py"):
        parse_arguments([f"--config={simple}", "--steps=3"])


def test_none_is_no_tuple() -> None:
    quickstart = str(Path(__file__).parents[1] / "configs" / "quickstart.py")
    with pytest.raises(ConfigError, match=r"filters=None: expected a tuple: a,b,c; an empty one is written .*=\(\)"):
        load_config(quickstart, {"algorithm.filters": "None"})
    assert load_config(quickstart, {"algorithm.filters": "()"}).algorithm.filters == ()
