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
    overlong: str = key(
        "keep",
        "keep: all are trained; mask: not those cut off by a limit; penalty: long ones lose up to overlong_penalty",
        choices=("keep", "mask", "penalty"),
    )
    overlong_buffer: int | None = key(
        None, "penalty: tokens before model.max_response_tokens in which it grows from 0 to all of it", low=1
    )
    overlong_penalty: float = key(1.0, "penalty: what a response of model.max_response_tokens loses", low=0)
    drop_staler_than: int | None = key(
        None, "tokens that are staler than this many steps when they are trained are masked; None: off", low=0
    )
    norm_mean: str | None = key(
        None,
        "mean that is taken off rewards: of the group, its taskset, the batch, or all so far; None: none",
        choices=(None, "group", "tag", "batch", "running"),
    )
    norm_std: str | None = key(
        None,
        "deviation that rewards are divided by: of the group, its taskset, the batch, or all so far; None: none",
        choices=(None, "group", "tag", "batch", "running"),
    )
    reward_clip: float | None = key(
        None, "normalised rewards are clipped to at most this, either way", low=0, low_open=True
    )
    whiten_rewards: bool = key(
        False, "reinforce, reinforce++, gae: token rewards are divided by their deviation over the batch's tokens"
    )
    difficulty_loss_weight: bool = key(
        False, "losses of a group count 0.5 + 1.5·(1 − its mean reward), made 1 on average"
    )
    length_loss_weight: bool = key(
        False, "losses of a trajectory count 1.5 (the shortest) to 0.5 (the longest), made 1 on average"
    )
    filter_mean_low: float | None = key(None, "mean_band: drops groups whose mean reward is below; None: no bound")
    filter_mean_high: float | None = key(None, "mean_band: drops groups whose mean reward is above; None: no bound")
    filter_min_std: float = key(0.0, "min_std: drops groups whose rewards deviate by no more than this", low=0)
    whiten_advantages: bool = key(False, "advantages get mean 0 and deviation 1 over the trained tokens of the batch")
    advantage_clip: float | None = key(None, "advantages are clipped to at most this, either way", low=0, low_open=True)
    gamma: float = key(
        1.0,
        "discount: agentic_reinforce: from turn to turn; reinforce, reinforce++, gae: from token to token",
        low=0,
        high=1,
    )
    lambd: float = key(0.95, "gae: λ, from one step of the critic (0) to the whole return (1)", low=0, high=1)
    opmd_tau: float = key(1.0, "opmd_logavgexp: temperature τ of the reward", low=0, low_open=True)
    step_reward_gamma: float = key(0.95, "step_reinforce, gigpo: discount from turn to turn", low=0, high=1)
    episode_reward_weight: float = key(1.0, "gigpo: weight of the episode's advantage", low=0)
    step_reward_weight: float = key(1.0, "gigpo: weight of the turn's advantage", low=0)
    tis_low: float = key(0.0, "tis: lower bound of the ratio", low=0)
    tis_high: float = key(1.0, "tis: upper bound of the ratio", low=0)
