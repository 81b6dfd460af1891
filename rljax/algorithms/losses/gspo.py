"""Clipped importance ratios of sequences."""

from __future__ import annotations

from dataclasses import dataclass

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.losses.ppo import clipped_surrogate
from rljax.algorithms.registry import policy_losses
from rljax.algorithms.spans import span_ratio
from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.loss`` with ``pg_variant=gspo``."""

    clip_low: float = key(3e-4, "the ratio is clipped below at 1 - clip_low", low=0, high=1)
    clip_high: float = key(4e-4, "the ratio is clipped above at 1 + clip_high", low=0)
    dual_clip: float | None = key(None, "bound on the loss where the advantage is negative; None: off", low=1)


@policy_losses.register("gspo", Config=Config, bounds_step=True)
def gspo(inputs: LossInputs, config: Config) -> TokenLoss:
    """−min(sA, clip(s, 1−ε_lo, 1+ε_hi)·A), with s = exp(mean of logπ − logπ_behaviour over the sequence).

    Means of many tokens lie near 1, so ε is small: ``clip_low`` 3e-4 and ``clip_high`` 4e-4 (section 5.1).
    The loss of the paper is had with ``aggregation=seq-mean-token-mean``, where the weights of a sequence's tokens add
    up to those of one. The gradient flows through the mean: where advantages differ within a sequence, each of its
    tokens moves by the mean of them. verl stops it there, and each moves by its own.
    ``dual_clip`` and what is logged: as for ppo.

    Reference: Zheng et al. 2025, https://arxiv.org/abs/2507.18071, equations 5 and 7.
    """
    ratio = span_ratio(inputs, "sequence")
    return clipped_surrogate(ratio, inputs.advantages, config.clip_low, config.clip_high, config.dual_clip)
