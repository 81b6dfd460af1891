"""The habits of ml_collections: files that say some keys, references, placeholders, flags without a value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rljax.config.arguments import parse_arguments
from rljax.config.fields import ConfigError
from rljax.config.load import as_plain, load_config
from rljax.config.schema import Config
from rljax.config.tasksets import TasksetConfig

Load = Callable[..., Config]
TASKS = (
    """{"train": {"digits": {"source": "reverse_digits"}}, "validation": {"digits": {"source": "reverse_digits"}}}"""
)
HEAD = f"""
from ml_collections import ConfigDict, FrozenConfigDict, config_dict
from rljax.config.load import to_config_dict
from rljax.config.schema import Config, TasksConfig, TasksetConfig

TASKS = {TASKS}

def get_config():
"""


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def loaded(body: str, *arguments: str) -> Config:
        (tmp_path / "some.py").write_text(HEAD + "".join(f"    {line}\n" for line in body.splitlines()))
        return load_config(*parse_arguments([f"--config={tmp_path / 'some.py'}", *arguments]))

    return loaded


def test_a_file_of_some_keys_is_laid_over_the_defaults_before_overrides(load: Load) -> None:
    some = "return ConfigDict({'max_steps': 5, 'learner': {'optimizer': {'beta1': 0.8}}, 'tasks': TASKS})"
    assert load(some, "--config.observe.tensorboard=false").observe.tensorboard is False
    config = load(some, "--config.learner.optimizer.learning_rate=1e-3")
    assert (config.max_steps, config.learner.optimizer.beta1, config.learner.optimizer.learning_rate) == (5, 0.8, 1e-3)
    # what a group has by default where it is, and not what its class has elsewhere
    critic = "return {'algorithm': {'adv_estimator': 'gae', 'critic': {'optimizer': {'beta1': 0.8}}}, 'tasks': TASKS}"
    assert load(critic).algorithm.critic.optimizer.learning_rate == 1e-5


def test_keys_of_a_function_are_laid_over_those_of_the_one_that_is_named(load: Load) -> None:
    clip = "return {'algorithm': {'loss': {'clip_low': 0.1}}, 'tasks': TASKS}"
    assert (
        load(clip).algorithm.loss
        == load("return {'tasks': TASKS}", "--config.algorithm.loss.clip_low=0.1").algorithm.loss
    )
    cispo = "return {'algorithm': {'pg_variant': 'cispo', 'loss': {'clip_high': 0.3}}, 'tasks': TASKS}"
    named = ("--config.algorithm.pg_variant=cispo", "--config.algorithm.loss.clip_high=0.3")
    assert load(cispo).algorithm.loss == load("return {'tasks': TASKS}", *named).algorithm.loss
    with pytest.raises(ConfigError, match="clip_middle"):
        load("return {'algorithm': {'loss': {'clip_middle': 0.1}}, 'tasks': TASKS}")


@pytest.mark.parametrize(
    "returned",
    [
        "ConfigDict({'seed': 7, 'tasks': TASKS})",
        "FrozenConfigDict({'seed': 7, 'tasks': TASKS})",
        "{'seed': 7, 'tasks': TASKS}",
        "{'seed': 7, 'tasks': ConfigDict(TASKS)}",
        "Config(seed=7, tasks=tasks)",
        "{'seed': 7, 'tasks': tasks}",
        "to_config_dict(Config(seed=7, tasks=tasks))",
    ],
)
def test_get_config_may_return_any_of_these(returned: str, load: Load) -> None:
    made = "digits = {'digits': TasksetConfig(source='reverse_digits')}\n"
    made += "tasks = TasksConfig(train=digits, validation=digits)\n"
    config = load(f"{made}return {returned}", "--config.group_size=4")
    assert (config.seed, config.group_size, config.tasks.train["digits"].source) == (7, 4, "reverse_digits")
    assert as_plain(config) == as_plain(load("return {'tasks': TASKS}", "--config.seed=7", "--config.group_size=4"))


def test_what_get_config_may_not_return_is_one_line(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"get_config must return a ConfigDict, a dict or a Config, not list$"):
        load("return []")


REFERS = """c = ConfigDict({'group_size': 8, 'tasks': TASKS, 'algorithm': {}})
c.rollout_batch_size = 4 * c.get_ref('group_size')
c.algorithm.minibatch_size = c.get_ref('rollout_batch_size')
return c"""


def test_a_reference_has_what_the_command_line_gives(load: Load) -> None:
    def sizes(*arguments: str) -> tuple[int, int, int | None]:
        config = load(REFERS, *arguments)
        return config.group_size, config.rollout_batch_size, config.algorithm.minibatch_size

    assert sizes() == (8, 32, 32)
    assert sizes("--config.group_size=4") == (4, 16, 16)
    assert sizes("--config.rollout_batch_size=64") == (8, 64, 64)
    # one reference in two places is one value, as ml_collections has it
    assert sizes("--config.group_size=4", "--config.algorithm.minibatch_size=8") == (4, 8, 8)
    with pytest.raises(ConfigError, match=r"^group_size=many: expected an integer$"):
        sizes("--config.group_size=many")


def test_a_placeholder_is_filled_by_the_command_line(load: Load) -> None:
    made = "c = ConfigDict({'group_size': config_dict.required_placeholder(int), 'tasks': TASKS})\n"
    made += "c.eval_steps = config_dict.placeholder(int)\nreturn c"
    config = load(made, "--config.group_size=4")
    assert (config.group_size, config.eval_steps) == (4, None)
    with pytest.raises(ConfigError, match=r"some\.py: group_size: a placeholder; write --config\.group_size=VALUE$"):
        load(made)


def test_what_is_true_or_false_needs_no_value(load: Load) -> None:
    given = ["--config=x", "--config.fill_interval", "--noconfig.observe.tensorboard", "--config.seed", "-3"]
    assert parse_arguments(given)[1] == {"fill_interval": "true", "observe.tensorboard": "false", "seed": "-3"}
    assert parse_arguments(["--config=x", "--config.fill_interval", "False"])[1] == {"fill_interval": "False"}
    assert load("return {'tasks': TASKS}", "--noconfig.observe.tensorboard").observe.tensorboard is False
    for wrong, line in {
        "--noconfig.seed": r"^--noconfig\.seed: not true or false; write --config\.seed=VALUE$",
        "--noconfig.zzz": r"^--noconfig\.zzz: not true or false; write --config\.zzz=VALUE$",
        "--config.seed": r"^--config\.seed: no value; write --config\.seed=VALUE$",
    }.items():
        with pytest.raises(ConfigError, match=line):
            parse_arguments(["--config=x", wrong, "--config.max_steps=3"])


def test_a_taskset_is_made_on_the_command_line(load: Load) -> None:
    given = [f"--config.tasks.{kind}.sums.source=add_numbers" for kind in ("train", "validation")]
    config = load("return {'tasks': TASKS}", "--config.tasks.train.sums.weight=2", *given)
    assert config.tasks.train["sums"] == TasksetConfig(source="add_numbers", weight=2.0)
    assert config.tasks.validation["sums"] == TasksetConfig(source="add_numbers")
    assert list(config.tasks.train) == ["digits", "sums"]
    with pytest.raises(ConfigError, match=r"did you mean tasks\.train\.digits\.limit\?$"):
        load("return {'tasks': TASKS}", "--config.tasks.train.digit.limit=3")
