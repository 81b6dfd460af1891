"""Reinforcement learning and imitation of demonstrations in one batch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.losses.sft import imitation
from rljax.algorithms.registry import policy_losses
from rljax.config.choice import chosen_by, settle
from rljax.config.fields import ConfigError, key


@dataclass(frozen=True, kw_only=True)
class Config:
    """Keys of ``algorithm.loss`` with ``pg_variant=mix``."""

    variant: str = key("ppo", "loss of what the policy said itself, by its name in the policy loss registry")
    variant_args: Any = chosen_by("variant", "keys of the loss that variant names", policy_losses)
    phi: bool = key(False, "imitated tokens are weighed by p(1 - p)")
    weight: float = key(0.1, "μ, the weight of imitation; the other loss has 1 - μ", low=0, high=1)
    schedule: str = key(
        "constant",
        "constant: weight; chord: warm-up from 0 to the peak, then a cosine to the valley",
        choices=("constant", "chord"),
    )
    weight_peak: float = key(0.1, "chord: μ after the warm-up", low=0, high=1)
    weight_valley: float = key(0.1, "chord: μ in the end", low=0, high=1)
    warmup_updates: int = key(200, "chord: optimizer updates of the warm-up", low=0)
    decay_updates: int = key(400, "chord: optimizer updates of the cosine", low=0)

    def __post_init__(self) -> None:
        if self.variant != "mix":  # which mixes with itself without end, and is refused
            settle(self, "algorithm.loss")

    def check(self, path: str) -> None:
        """Refuses a mixture without a loss to mix."""
        if self.variant == "mix":
            raise ConfigError(f"{path}.variant='mix': mixes with itself; name another loss, such as ppo")


@policy_losses.register(
    "mix",
    Config=Config,
    needs=lambda config: tuple(policy_losses.needs(config.variant, config.variant_args)),
    imitates=True,
    mixes="variant",
)
def mix(inputs: LossInputs, config: Config) -> TokenLoss:
    """μ·(−φ·logπ) on the tokens of demonstrations (`LossInputs.expert`), (1−μ)·loss of ``variant`` on the others.

    μ: see `imitation_weight`, 0.1 as in Trinity-RFT; φ: see `sft.imitation`. The variant does not see the
    demonstrations, so that they change no ratio. Each kind of token is aggregated by itself, as published: μ alone says
    what demonstrations weigh, not how many or how long they are.

    Logged: what the variant logs, 0 on demonstrations; ``sft_weight``, μ; ``expert_fraction``.

    References: Zhang et al. 2025 (CHORD), https://arxiv.org/abs/2508.11408; Pan et al. 2025
    (Trinity-RFT's MIX), https://arxiv.org/abs/2505.17826.
    """
    expert = jnp.zeros_like(inputs.mask) if inputs.expert is None else inputs.expert
    others = inputs.sampled
    loss, metrics = policy_losses.bound(config.variant, config.variant_args)(dataclasses.replace(inputs, mask=others))
    weight = imitation_weight(inputs.updates, config)
    metrics = {name: jnp.where(others, values, 0.0) for name, values in metrics.items()}
    metrics["sft_weight"] = jnp.full_like(loss, weight)
    metrics["expert_fraction"] = expert.astype(jnp.float32)
    return jnp.where(expert, weight * imitation(inputs, config.phi), (1 - weight) * loss), metrics


def imitation_weight(updates: Int[Array, ""], config: Config) -> Float[Array, ""]:
    """Returns μ after so many optimizer updates.

    With ``schedule`` constant it is ``weight``. With chord it grows linearly from 0 to ``weight_peak`` within
    ``warmup_updates``, falls to ``weight_valley`` along half a cosine within ``decay_updates``, and stays there; 0
    updates of either leave it out. Peak and valley are 0.1 as in Trinity-RFT.

    Reference: Zhang et al. 2025 (CHORD-μ), https://arxiv.org/abs/2508.11408.
    """
    if config.schedule == "constant":
        return jnp.asarray(config.weight)
    peak, valley = config.weight_peak, config.weight_valley
    warm, decay = config.warmup_updates, config.decay_updates
    progress = jnp.clip((updates - warm) / decay, 0.0, 1.0) if decay else 1.0
    falling = valley + (peak - valley) * (1 + jnp.cos(jnp.pi * progress)) / 2
    return jnp.where(updates < warm, peak * updates / max(warm, 1), falling)
