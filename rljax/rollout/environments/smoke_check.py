"""Checks of environments: that their ids are known, and, before any task is claimed, that they can be made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rljax.config.environments import EnvironmentConfig
from rljax.config.refusals import Refusals
from rljax.config.validate import ConfigError
from rljax.rollout.environments.hosts import EnvironmentHost
from rljax.rollout.environments.session import EnvironmentFailure, EnvironmentSpec, check_registered

SEEDS_TRIED = 3
"""An environment that fails for all of these seeds is taken to fail for all; a rare failure is left to retries."""


async def smoke_check(
    tags: Iterable[str], environments: Mapping[str, EnvironmentConfig], hosts: Mapping[str, EnvironmentHost]
) -> None:
    """Makes and resets an environment of each tag, on the host where its episodes will run. It
    is kept for the first episode.

    Raises:
        ConfigError: one cannot be made, or cannot be reset.
    """
    for tag in tags:
        config = environments[tag]
        for seed in range(SEEDS_TRIED):
            try:
                async with hosts[config.place].session(EnvironmentSpec(config.id, config.kwargs)) as session:
                    await session.reset(seed)
                break
            except EnvironmentFailure as error:
                failure = error
        else:
            raise _refusal(tag, failure)


def unknown_ids(tags: Iterable[str], environments: Mapping[str, EnvironmentConfig]) -> Refusals:
    """Yields a refusal for each of these tags whose id gymnasium does not know; makes no environment."""
    for tag in tags:
        try:
            check_registered(environments[tag].id)
        except EnvironmentFailure as error:
            yield _refusal(tag, error)


def _refusal(tag: str, failure: EnvironmentFailure) -> ConfigError:
    return ConfigError(f"custom_envs.{tag}: {' '.join(str(failure).split())}")
