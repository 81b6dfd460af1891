"""Sharing of a prompt's places by the sequences of a row: whether there is any, and which of a batch to come may."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from rljax.config.fields import ConfigError
from rljax.config.schema import Config
from rljax.config.sizes import plays_environments, sequences_per_minibatch
from rljax.models.common.architecture import Architecture


def shares_prompts(config: Config, architecture: Architecture, platform: str) -> bool:
    """Returns whether sequences of a row share the places of a prompt, on devices of that platform.

    Raises:
        ConfigError: they shall, in a model with experts.
    """
    asked = config.learner.share_prompts
    if architecture.experts is None:
        # The kernels of accelerators know no shared prompts; with dropout each attempt's prompt has its own.
        return platform == "cpu" and not config.model.lora.dropout if asked is None else asked
    if asked:
        raise ConfigError(
            "learner.share_prompts=True: the model has experts, whose routers would count a prompt once for all of its "
            "attempts, and follow the routes that one of them recorded; leave it unset"
        )
    return False


def expected_prompts(config: Config, shared: bool) -> Int[np.ndarray, " sequences"] | None:
    """Returns a number of the prompt for each of the most sequences that one update packs: sampled ones group by group,
    then demonstrations. None: nothing is shared, or environments say the prompts, and nobody knows how long they are.
    """
    if not shared or plays_environments(config):
        return None
    sampled, shown = sequences_per_minibatch(config)
    return np.concatenate([np.arange(sampled) // config.group_size, sampled + np.arange(shown)])
