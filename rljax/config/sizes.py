"""Sizes of what a learner trains at once, by the config."""

from __future__ import annotations

from collections.abc import Iterator

from rljax.config.environments import EnvironmentConfig
from rljax.config.schema import Config


def minibatch_size(config: Config) -> int:
    """Returns the sampled trajectories of one update; where only demonstrations are trained, those."""
    return config.algorithm.minibatch_size or config.rollout_batch_size


def minibatches_per_step(config: Config) -> int:
    """Returns the minibatches that a step is cut into; each is trained ``ppo_epochs`` times."""
    return config.rollout_batch_size // minibatch_size(config)


def sampled_per_minibatch(config: Config) -> int:
    """Returns the most sampled trajectories of one update, with its share of reused groups."""
    reused = -(-config.reused_per_batch // minibatches_per_step(config)) * config.group_size
    return minibatch_size(config) * (not config.imitates_alone) + reused


def demonstrations_per_minibatch(config: Config) -> int:
    """Returns the most demonstrations of one update."""
    return -(-config.demonstrations_per_batch // minibatches_per_step(config))


def trajectories_per_minibatch(config: Config) -> int:
    """Returns the most trajectories of one update: sampled ones and demonstrations."""
    return sampled_per_minibatch(config) + demonstrations_per_minibatch(config)


def rows_per_trajectory(config: Config) -> int:
    """Returns the most rows of its own that a sampled trajectory may have, but for one of a user's workflow, which
    nothing limits.
    """
    return max((one.turn_limit for one in _played(config) if one.history_length is not None), default=1)


def sequences_per_minibatch(config: Config) -> tuple[int, int]:
    """Returns the most sequences that one update packs into rows: the rows of sampled trajectories, and
    demonstrations, each of which is one.
    """
    return sampled_per_minibatch(config) * rows_per_trajectory(config), demonstrations_per_minibatch(config)


def sequences_per_step(config: Config) -> tuple[int, int]:
    """Returns the same of all updates of a step."""
    sampled = (config.groups_per_batch + config.reused_per_batch) * config.group_size
    return sampled * rows_per_trajectory(config), config.demonstrations_per_batch


def sampled_parts(config: Config) -> tuple[int, int]:
    """Returns the tokens of the longest sampled row: those of the prompt, and of the reply where that is as long as it
    may be. A dialogue has as many replies as turns, or as there is room for.
    """
    reply = min(config.sidecar.generating_args.max_new_tokens or config.longest, config.model.max_response_tokens)
    found = [
        min(one.max_tokens_per_turn or reply, reply) * (one.turn_limit if one.history_length is None else 1)
        for one in _played(config)
    ]
    answered = bool(config.explored[1]) or not found
    response = min(max([*found, reply] if answered else found), config.longest - 1)
    return (config.longest if found else _asked(config, response)) - response, response


def demonstration_parts(config: Config) -> tuple[int, int]:
    """Returns the tokens of the prompt and of the reply of a demonstration that is as long as it may be."""
    response = min(config.model.max_response_tokens, config.longest - 1)
    return _asked(config, response) - response, response


def plays_environments(config: Config) -> bool:
    """Returns whether trained trajectories are played in environments, whose prompts nobody knows beforehand."""
    return any(True for _ in _played(config))


def plays_dialogues(config: Config) -> bool:
    """Returns whether a trained row may hold several replies, with what an environment says between them."""
    return any(one.history_length is None and one.turn_limit > 1 for one in _played(config))


def _asked(config: Config, response: int) -> int:
    """Returns the tokens of a question and a response of so many."""
    return min(config.model.max_prompt_tokens + response, config.longest)


def _played(config: Config) -> Iterator[EnvironmentConfig]:
    """Yields the environments that trained trajectories are played in."""
    tags = () if config.imitates_alone else config.rollout.train_env_manager.tags
    return (config.custom_envs[tag] for tag in tags)
