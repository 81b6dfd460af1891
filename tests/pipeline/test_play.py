"""Somebody plays an environment that does not say what can be done in it."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from gymnasium.spaces import Text

from rljax.config.environments import EnvironmentConfig
from rljax.config.schema import Config, PlayConfig, RolloutConfig, TrainEnvManagerConfig
from rljax.config.validate import ConfigError
from rljax.pipeline.play import play_without_model


class Nameless(gymnasium.Env[str, str]):
    """Any text is an action; none is named."""

    observation_space = Text(100)
    action_space = Text(100)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "say something", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "thanks", 1.0, True, False, {"success": True}


gymnasium.register("tests/Nameless-v0", lambda **_: Nameless(), disable_env_checker=True)


def config(agent: str) -> Config:
    tagged = {"nameless": EnvironmentConfig(id="tests/Nameless-v0")}
    managers = RolloutConfig(train_env_manager=TrainEnvManagerConfig(tags=("nameless",)))
    return Config(mode="play", play=PlayConfig(agent=agent), custom_envs=tagged, rollout=managers)


def test_a_random_player_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        play_without_model(config("random"), lambda _: None, lambda: "")
    assert str(caught.value) == (
        "play.agent=random: tests/Nameless-v0 names no actions to choose from; play it with play.agent=human or model"
    )


def test_a_person_plays_it() -> None:
    said: list[str] = []
    play_without_model(config("human"), said.append, lambda: "hello")
    assert said[-1] == "== solved: 1 actions, return 1\n"
