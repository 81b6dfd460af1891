"""Policy gradient without importance ratios."""

from __future__ import annotations

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.registry import policy_losses


@policy_losses.register("vanilla", weighs_tokens=False)
def vanilla(inputs: LossInputs) -> TokenLoss:
    """−A·logπ, whose gradient is the policy gradient of on-policy data.

    Reference: Williams 1992, https://doi.org/10.1007/BF00992696.
    """
    return -inputs.advantages * inputs.bounded_logprobs, {}
