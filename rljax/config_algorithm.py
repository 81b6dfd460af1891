"""Keys of the objective. ROLL's and Trinity-RFT's names where those are the field's own."""

from __future__ import annotations

from dataclasses import dataclass, field

from rljax.config_checks import key


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW and its schedule."""

    learning_rate: float = key(1e-6, "peak learning rate", low=0)
    schedule: str = key("constant", "after the warm-up", choices=("constant", "linear", "cosine"))
    warmup_steps: int = key(0, "optimizer updates of linear warm-up", low=0)
    min_lr_ratio: float = key(0.0, "final over peak learning rate of linear and cosine", low=0, high=1)
    weight_decay: float = key(0.0, "decoupled weight decay", low=0)
    beta1: float = key(0.9, "decay of the first moment", low=0, high=1)
    beta2: float = key(0.999, "decay of the second moment", low=0, high=1)
    eps: float = key(1e-8, "Adam's epsilon", low=0)
    grad_clip: float | None = key(1.0, "largest global gradient norm; None: no clipping", low=0)


@dataclass(frozen=True, kw_only=True)
class CriticConfig:
    """The critic of ``adv_estimator=gae``: a transformer like the policy's, from the same weights, with a value head."""

    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(learning_rate=1e-5))
    warmup_steps: int = key(0, "steps at the start that train the critic alone", low=0)
    value_clip: float | None = key(None, "values are clipped to at most this far from those before the batch", low=0)


@dataclass(frozen=True, kw_only=True)
class KlConfig:
    """The divergence from the reference policy, which is the policy that the run began with."""

    where: str = key("none", "what the divergence is taken from", choices=("none", "loss", "reward"))
    estimator: str = key("k3", "of each token", choices=("k1", "k2", "k3", "k3_clamped"))
    coef: float = key(0.001, "its weight, at the start where it is adapted", low=0)
    target: float | None = key(
        None, "divergence in nats a token that coef is adapted to; None: fixed", low=0, low_open=True
    )
    horizon: int = key(10_000, "trajectories over which coef is adapted", low=1)
    refresh_steps: int | None = key(None, "steps after which the policy becomes the reference; None: never", low=1)


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
    kl: KlConfig = field(default_factory=KlConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
