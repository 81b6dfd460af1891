"""Config keys of environments, and of how many of them run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljax.config.fields import ConfigError, key

ANSWER = "<answer>(.*?)</answer>"
PLACES = ("process", "ray", "loop")


@dataclass(frozen=True, kw_only=True)
class EnvironmentConfig:
    """One kind of environment. Its name in `custom_envs` is the tag by which env managers call it.

    Templates know {env_instruction}, {turn_idx}, {observation}, {suffix}, {actions_left}, {max_response_length},
    {history} and {history_length}; other braces are text.
    """

    id: str = key("", "gymnasium id of an environment of texts; PACKAGE:ID imports the package first")
    kwargs: Mapping[str, Any] = key({}, "arguments of gymnasium.make")
    place: str = key(
        "process",
        "where it computes: process: worker processes; ray: these on the nodes of launcher=ray; loop: beside the "
        "explorer, for those that never take long: one that hangs there stops its explorer",
        choices=PLACES,
    )
    system_prompt: str | None = key(None, "system message, where the chat template has one")
    first_template: str = key("{env_instruction}\n\n", "stands before the first user message")
    template: str = key(
        "Turn {turn_idx}:\n{observation}\n{suffix}\nYou have {actions_left} actions left. "
        "Answer with <answer>your action</answer>.",
        "user message of each turn",
    )
    action_pattern: str = key(ANSWER, "regular expression; its first group is the action in a reply")
    format_penalty: float = key(0.0, "taken off the reward of a turn without a valid action", low=0)
    max_actions: int = key(10, "valid actions of an episode", low=1)
    max_turns: int | None = key(None, "replies of an episode; None: max_actions", low=1)
    max_tokens_per_turn: int | None = key(None, "budget of a reply; None: what generating_args say", low=1)
    history_length: int | None = key(
        None,
        "turns shown in a prompt that is made anew each turn, a row of its own; None: the whole dialogue, one row",
        low=0,
    )

    @property
    def turn_limit(self) -> int:
        """Most replies of an episode."""
        return self.max_turns or self.max_actions


@dataclass(frozen=True, kw_only=True)
class TrainEnvManagerConfig:
    """The environments that training tasks run in."""

    tags: tuple[str, ...] = key((), "names in custom_envs")
    num_env_groups: int | None = key(None, "groups under way at once; None: as many as are claimed ahead", low=1)
    num_groups_partition: tuple[int, ...] | None = key(None, "groups of each tag; None: equal shares")
    group_size_redundancy: int = key(0, "members started beyond group_size; the last to end are cancelled", low=0)
    max_env_num_per_worker: int = key(16, "environments in one worker process", low=1)
    max_traj_per_env: int | None = key(None, "episodes that an environment plays before a fresh one; None: all", low=1)


@dataclass(frozen=True, kw_only=True)
class ValEnvManagerConfig:
    """The environments that validation runs in."""

    tags: tuple[str, ...] = key((), "names in custom_envs")
    num_env_groups: int = key(64, "seeds of a validation", low=1)
    num_groups_partition: tuple[int, ...] | None = key(None, "seeds of each tag; None: equal shares")
    group_size: int = key(1, "episodes of each seed; greedy ones are all the same", low=1)
    max_env_num_per_worker: int = key(16, "environments in one worker process", low=1)


def shares(tags: Sequence[str], groups: int, partition: Sequence[int] | None, path: str) -> dict[str, int]:
    """Distributes groups over tags, by ``partition`` or evenly; what does not divide goes to the first ones.

    Raises:
        ConfigError: the partition does not fit the tags or the number of groups, or a tag has no group.
    """
    if groups < len(tags):
        raise ConfigError(f"{path}.num_env_groups={groups}: {len(tags)} tags need at least one group each")
    if partition is None:
        each, rest = divmod(groups, max(len(tags), 1))
        return {tag: each + (index < rest) for index, tag in enumerate(tags)}
    if len(partition) != len(tags):
        raise ConfigError(f"{path}.num_groups_partition={tuple(partition)}: {len(tags)} tags need as many numbers")
    if sum(partition) != groups or min(partition, default=1) < 1:
        raise ConfigError(
            f"{path}.num_groups_partition={tuple(partition)}: must be numbers above 0 that add up to "
            f"num_env_groups={groups}, not {sum(partition)}"
        )
    return dict(zip(tags, partition, strict=True))


def built_in() -> dict[str, EnvironmentConfig]:
    """Returns the environments of this repository, with the penalties that ROLL's examples give them."""
    return {
        "FrozenLake": EnvironmentConfig(id="rljax/FrozenLake-v0", place="loop", format_penalty=0.01),
        "SimpleSokoban": EnvironmentConfig(id="rljax/SimpleSokoban-v0", place="loop", format_penalty=0.15),
        "LargerSokoban": EnvironmentConfig(id="rljax/LargerSokoban-v0", place="loop", format_penalty=0.15),
        "SokobanDifferentGridVocab": EnvironmentConfig(
            id="rljax/SokobanDifferentGridVocab-v0", place="loop", format_penalty=0.15
        ),
        "WebShop": EnvironmentConfig(id="rljax/WebShop-v0", format_penalty=0.05),
    }
