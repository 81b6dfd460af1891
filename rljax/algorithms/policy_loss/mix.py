"""Reinforcement learning and imitation of demonstrations in one batch."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.policy_loss.sft import imitation
from rljax.algorithms.registry import policy_losses
from rljax.config.schema import AlgorithmConfig


@policy_losses.register("mix", needs=lambda config: policy_losses.needs(config.mix_variant, config))
def mix(inputs: LossInputs, config: AlgorithmConfig) -> TokenLoss:
    """μ·(−φ·logπ) on the tokens of demonstrations (`LossInputs.expert`), (1−μ)·loss of ``mix_variant`` on the others.

    μ: see `imitation_weight`, 0.1 as in Trinity-RFT; φ: see `sft.imitation`. The variant does not see the
    demonstrations, so that they change no ratio. Each kind of token is aggregated by itself, as published: μ alone says
    what demonstrations weigh, not how many or how long they are.

    Logged: what the variant logs, 0 on demonstrations; ``sft_weight``, μ; ``expert_fraction``.

    References: Zhang et al. 2025 (CHORD), https://arxiv.org/abs/2508.11408; Pan et al. 2025
    (Trinity-RFT's MIX), https://arxiv.org/abs/2505.17826.
    """
    expert = jnp.zeros_like(inputs.mask) if inputs.expert is None else inputs.expert
    others = inputs.sampled
    loss, metrics = policy_losses.get(config.mix_variant)(dataclasses.replace(inputs, mask=others), config)
    weight = imitation_weight(inputs.updates, config)
    metrics = {name: jnp.where(others, values, 0.0) for name, values in metrics.items()}
    metrics["sft_weight"] = jnp.full_like(loss, weight)
    metrics["expert_fraction"] = expert.astype(jnp.float32)
    return jnp.where(expert, weight * imitation(inputs, config), (1 - weight) * loss), metrics


def imitation_weight(updates: Int[Array, ""], config: AlgorithmConfig) -> Float[Array, ""]:
    """μ after so many optimizer updates.

    With ``sft_schedule`` constant it is ``sft_weight``. With chord it grows linearly from 0 to ``sft_weight_peak``
    within ``sft_warmup_updates``, falls to ``sft_weight_valley`` along half a cosine within ``sft_decay_updates``, and
    stays there; 0 updates of either leave it out. Peak and valley are 0.1 as in Trinity-RFT.

    Reference: Zhang et al. 2025 (CHORD-μ), https://arxiv.org/abs/2508.11408.
    """
    if config.sft_schedule == "constant":
        return jnp.asarray(config.sft_weight)
    peak, valley = config.sft_weight_peak, config.sft_weight_valley
    warm, decay = config.sft_warmup_updates, config.sft_decay_updates
    progress = jnp.clip((updates - warm) / decay, 0.0, 1.0) if decay else 1.0
    falling = valley + (peak - valley) * (1 + jnp.cos(jnp.pi * progress)) / 2
    return jnp.where(updates < warm, peak * updates / max(warm, 1), falling)
