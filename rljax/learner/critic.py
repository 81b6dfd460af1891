"""Value objective: the loss of the critic."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rljax.learner.objective import Model, Progress, masked_sum, sampled_mask
from rljax.learner.packing import Batch
from rljax.learner.ratio_metrics import Sums
from rljax.models.common.params import Params
from rljax.models.common.value_head import values

_TOKENS = "tokens"


@dataclass(frozen=True)
class ValueObjective(Model):
    """Squared error of the values, clipped where ``algorithm.critic.value_clip`` is set."""

    def values(self, params: Params, batch: Batch) -> Float[Array, "row place"]:
        """Computes the value of the state before each trained target of one microbatch, float32."""
        return values(params, self.hidden(params, batch))

    def microbatch_loss(
        self, params: Params, batch: Batch, progress: Progress
    ) -> tuple[Float[Array, ""], tuple[Sums, Sums]]:
        """Computes Σ weight · ½·max((V − R)², (V_clipped − R)²), V_clipped within ``value_clip`` of the value before
        the batch. Demonstrations earn nothing and teach the critic nothing.

        Reference: Schulman et al. 2017, https://arxiv.org/abs/1707.06347, equation 9; clipping as in OpenAI's
        baselines, see Engstrom et al. 2020, https://arxiv.org/abs/2005.12729.
        """
        del progress
        mask = sampled_mask(batch)
        found, before = self.values(params, batch), batch.scores.values
        assert batch.returns is not None
        assert before is not None
        returns = batch.trained(batch.returns)
        clip = self.config.algorithm.critic.value_clip
        error = (found - returns) ** 2
        metrics = {"critic/value": found, "critic/return": returns, "critic/return_squared": returns**2}
        if clip is not None:
            near = before + jnp.clip(found - before, -clip, clip)
            clipped = (near - returns) ** 2
            metrics["critic/clip_fraction"] = (clipped > error).astype(jnp.float32)
            error = jnp.maximum(error, clipped)
        metrics["critic/error"] = error
        loss = masked_sum(0.5 * error * batch.trained(batch.weights), mask)
        sums = {name: masked_sum(jax.lax.stop_gradient(v), mask) for name, v in metrics.items()}
        return loss, (sums | {_TOKENS: jnp.sum(mask, dtype=jnp.float32)}, {})

    def metrics(self, sums: Sums, tokens: Int[Array, ""]) -> Sums:
        """Returns means over the sampled tokens, and ``critic/explained_variance``, 1 −
        error / variance of the returns.
        """
        del tokens
        means = {name: value / jnp.maximum(sums[_TOKENS], 1) for name, value in sums.items() if name != _TOKENS}
        variance = means.pop("critic/return_squared") - means["critic/return"] ** 2
        explained = 1 - means["critic/error"] / jnp.maximum(variance, 1e-8)
        return means | {"critic/explained_variance": jnp.where(variance > 1e-8, explained, jnp.nan)}
