"""Keys of the objective. ROLL's and Trinity-RFT's names where those are the field's own."""

from __future__ import annotations

from dataclasses import dataclass

from rljax.config_checks import key


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """The objective."""

    adv_estimator: str = key("grpo", "name in the advantage registry")
    pg_variant: str = key("ppo", "name in the policy loss registry")
    aggregation: str = key("token-mean", "name in the aggregation registry")
    filters: tuple[str, ...] = key((), "names in the filter registry, or module:function; a filtered group is replaced")
    ppo_epochs: int = key(1, "passes over each batch", low=1)
    minibatch_size: int | None = key(None, "trajectories per optimizer update; None: the whole batch", low=1)
    clip_low: float = key(0.2, "ppo: the ratio is clipped below at 1 - clip_low", low=0, high=1)
    clip_high: float = key(0.2, "ppo: the ratio is clipped above at 1 + clip_high", low=0)
    dual_clip: float | None = key(None, "ppo: bound on the loss where the advantage is negative; None: off", low=1)
    entropy_coef: float = key(0.0, "weight of the entropy bonus that is subtracted from each token's loss", low=0)
    reward_grouping: str = key(
        "group",
        "what episode scores (gigpo) and returns of turns (step_reinforce) are compared within",
        choices=("group", "tag", "batch"),
    )
    whiten_advantages: bool = key(False, "advantages get mean 0 and deviation 1 over the trained tokens of the batch")
    advantage_clip: float | None = key(None, "advantages are clipped to at most this, either way", low=0, low_open=True)
    gamma: float = key(1.0, "agentic_reinforce: discount from turn to turn", low=0, high=1)
    step_reward_gamma: float = key(0.95, "step_reinforce, gigpo: discount from turn to turn", low=0, high=1)
    episode_reward_weight: float = key(1.0, "gigpo: weight of the episode's advantage", low=0)
    step_reward_weight: float = key(1.0, "gigpo: weight of the turn's advantage", low=0)
    tis_low: float = key(0.0, "tis: lower bound of the ratio", low=0)
    tis_high: float = key(1.0, "tis: upper bound of the ratio", low=0)
