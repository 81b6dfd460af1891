"""How many groups of environments each tag gets."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rljax.config.environments import EnvironmentConfig, TrainEnvManagerConfig, ValEnvManagerConfig, built_in, shares
from rljax.config.modes import PlayConfig
from rljax.config.schema import Config, RolloutConfig, TasksConfig, TasksetConfig
from rljax.config.validate import ConfigError
from tests.config.importer_files import RLVR, ROLL, lines


def config(**keys: Any) -> Config:
    train = TrainEnvManagerConfig(tags=("FrozenLake", "SimpleSokoban"), **keys)
    return Config(rollout=RolloutConfig(train_env_manager=train))


def test_equal_shares_where_nothing_is_said() -> None:
    assert shares(("a", "b", "c"), 8, None, "x") == {"a": 3, "b": 3, "c": 2}
    assert config(num_env_groups=7).train_groups == {"FrozenLake": 4, "SimpleSokoban": 3}
    # (1 + α)·b = 2·(64 / 8)
    assert sum(config().train_groups.values()) == 16


def test_a_partition_is_taken_as_it_is() -> None:
    assert config(num_env_groups=8, num_groups_partition=(6, 2)).train_groups == {"FrozenLake": 6, "SimpleSokoban": 2}
    val = ValEnvManagerConfig(tags=tuple(built_in())[:4], num_env_groups=1024, num_groups_partition=(256,) * 4)
    made = Config(mode="evaluate", rollout=RolloutConfig(val_env_manager=val))
    assert set(made.val_groups.values()) == {256}
    assert made.validates


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"num_env_groups": 8, "num_groups_partition": (6, 1)}, "add up to num_env_groups=8, not 7"),
        ({"num_env_groups": 8, "num_groups_partition": (8, 0)}, "must be numbers above 0"),
        ({"num_env_groups": 8, "num_groups_partition": (8,)}, "2 tags need as many numbers"),
        ({"num_env_groups": 1}, "rollout.train_env_manager.num_env_groups=1: 2 tags need at least one group each"),
    ],
)
def test_what_does_not_add_up_is_refused(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        config(**keys)


@pytest.mark.parametrize(
    ("tags", "environments", "says"),
    [
        (("FrozenLak",), built_in(), "'FrozenLak' is not in custom_envs; did you mean FrozenLake?"),
        (("x",), {"x": EnvironmentConfig()}, "custom_envs.x.id: missing"),
        (("x",), {"x": EnvironmentConfig(id="a", action_pattern="(")}, "action_pattern: no regular expression"),
        (("x",), {"x": EnvironmentConfig(id="a", action_pattern="a")}, "has no group"),
        (("x",), {"x": EnvironmentConfig(id="a", max_tokens_per_turn=65)}, "=65: above model.max_response_tokens=64"),
        (("validation/x",), {"validation/x": EnvironmentConfig(id="a")}, "'validation/x': a tag is letters, digits"),
        (("x",), {"x": EnvironmentConfig(id="a", history_length=2)}, "custom_envs.x.history_length=2: nothing shows"),
        ((), {}, "names no environment either"),
    ],
)
def test_environments_that_cannot_be_played_are_refused(tags: tuple[str, ...], environments: Any, says: str) -> None:
    train = TrainEnvManagerConfig(tags=tags)
    with pytest.raises(ConfigError, match=re.escape(says)):
        Config(rollout=RolloutConfig(train_env_manager=train), custom_envs=environments)


def test_all_environments_that_cannot_be_played_are_told_of_at_once() -> None:
    train, validate = TrainEnvManagerConfig(tags=("x",)), ValEnvManagerConfig(tags=("y", "z"), num_env_groups=2)
    environments = {name: EnvironmentConfig(id="a", max_tokens_per_turn=65) for name in "xyz"}
    with pytest.raises(ConfigError) as refused:
        Config(rollout=RolloutConfig(train_env_manager=train, val_env_manager=validate), custom_envs=environments)
    said = [str(error) for error in (refused.value, *refused.value.others)]
    assert [line.partition(".max")[0] for line in said] == ["custom_envs.x", "custom_envs.y", "custom_envs.z"]


def test_turns_before_are_shown_by_a_template_that_has_a_place_for_them() -> None:
    for environment in (
        EnvironmentConfig(id="a", history_length=0),
        EnvironmentConfig(id="a", history_length=2, template="{history}\n{observation}"),
    ):
        train = TrainEnvManagerConfig(tags=("x",))
        Config(rollout=RolloutConfig(train_env_manager=train), custom_envs={"x": environment})


def test_passes_over_what_has_no_end_are_refused() -> None:
    rollout = RolloutConfig(train_env_manager=TrainEnvManagerConfig(tags=("FrozenLake",)))
    with pytest.raises(ConfigError, match="total_epochs=2: environments have no last task"):
        Config(rollout=rollout, total_epochs=2)
    finite = {"digits": TasksetConfig(source="reverse_digits")}
    Config(rollout=rollout, total_epochs=2, tasks=TasksConfig(train=finite))


@pytest.mark.parametrize(
    ("text", "tag", "said"),
    [
        (ROLL, "FrozenLak", "--config.play.tag play.tag='FrozenLak': not in custom_envs; did you mean FrozenLake?"),
        (ROLL, "x", "--config.play.tag play.tag='x': not in custom_envs; there are FrozenLake, LargerSokoban, "),
        (RLVR, None, "--config.play.tag: missing, and no env manager has tags; write one of FrozenLake, "),
    ],
)
def test_what_cannot_be_played_is_told_with_the_rest(text: str, tag: str | None, said: str, write: Any) -> None:
    given = {"mode": "play", "learner.devices": "cpu", "max_steps": "0"} | ({"play.tag": tag} if tag else {})
    steps, line = lines(write(text), given)
    assert steps == "--config.max_steps max_steps=0: must be at least 1"
    assert line.startswith(said)


def test_what_is_played_is_the_first_of_a_manager_s_tags() -> None:
    train, validate = TrainEnvManagerConfig(tags=("FrozenLake",)), ValEnvManagerConfig(tags=("SimpleSokoban",))
    both = RolloutConfig(train_env_manager=train, val_env_manager=validate)
    assert Config(mode="play", rollout=both).played_tag == "SimpleSokoban"
    assert Config(mode="play", rollout=RolloutConfig(train_env_manager=train)).played_tag == "FrozenLake"
    assert Config(mode="play", rollout=both, play=PlayConfig(tag="LargerSokoban")).played_tag == "LargerSokoban"
