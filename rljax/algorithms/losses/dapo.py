"""Clipped importance ratios, with a higher upper bound."""

from __future__ import annotations

from dataclasses import dataclass

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.losses import ppo
from rljax.algorithms.losses.ppo import clipped_surrogate
from rljax.algorithms.registry import policy_losses
from rljax.algorithms.spans import span_ratio
from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class Config(ppo.Config):
    """Keys of ``algorithm.loss`` with ``pg_variant=dapo``."""

    clip_high: float = key(0.28, "the ratio is clipped above at 1 + clip_high", low=0)


@policy_losses.register("dapo", Config=Config, bounds_step=True)
def dapo(inputs: LossInputs, config: Config) -> TokenLoss:
    """ppo with clip-higher: the ratio is clipped below at 1 − ``clip_low`` and above at 1 + ``clip_high``, 0.28.

    A token that was improbable may so gain probability faster, which keeps the entropy up. ``ratio_level``,
    ``dual_clip`` and what is logged: as for ppo. The rest of DAPO is ``aggregation=token-mean`` and filters.

    Reference: Yu et al. 2025, https://arxiv.org/abs/2503.14476, equation 10.
    """
    ratio = span_ratio(inputs, config.ratio_level)
    return clipped_surrogate(ratio, inputs.advantages, config.clip_low, config.clip_high, config.dual_clip)
