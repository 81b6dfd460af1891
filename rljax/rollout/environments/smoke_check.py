"""Environment smoke check: fails before any task is claimed for an environment that cannot be made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rljax.config.environments import EnvironmentConfig
from rljax.config.validate import ConfigError
from rljax.rollout.environments.hosts import EnvironmentHost
from rljax.rollout.environments.session import EnvironmentFailure, EnvironmentSpec

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
                failure = " ".join(str(error).split())
        else:
            raise ConfigError(f"custom_envs.{tag}: {failure}")
