"""Keys of the objective. ROLL's and Trinity-RFT's names where those are the field's own."""

from __future__ import annotations

from dataclasses import dataclass, field

from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW and its schedule."""

    learning_rate: float = key(1e-6, "peak learning rate", low=0)
    schedule: str = key("constant", "after the warm-up", choices=("constant", "linear", "cosine"))
    warmup_steps: int = key(0, "optimizer updates of linear warm-up", low=0)
    min_lr_ratio: float = key(0.0, "final over peak learning rate of linear and cosine", low=0, high=1)
    weight_decay: float = key(0.0, "decoupled weight decay", low=0)
    beta1: float = key(0.9, "decay of the first moment", low=0, high=1, high_open=True)
    beta2: float = key(0.999, "decay of the second moment", low=0, high=1, high_open=True)
    eps: float = key(1e-8, "Adam's epsilon", low=0, low_open=True)
    grad_clip: float | None = key(1.0, "largest global gradient norm; None: no clipping", low=0)


@dataclass(frozen=True, kw_only=True)
class CriticConfig:
    """The critic of ``adv_estimator=gae``: a transformer that begins with the policy's weights and has a value head."""

    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(learning_rate=1e-5))
    warmup_steps: int = key(0, "steps at the start that train the critic alone", low=0)
    value_clip: float | None = key(None, "values are clipped to at most this far from those before the batch", low=0)


@dataclass(frozen=True, kw_only=True)
class KlConfig:
    """The divergence from the reference policy, which is the policy that the run began with."""

    where: str = key("none", "what the divergence is taken from", choices=("none", "loss", "reward"))
    estimator: str | None = key(
        None, "of each token; None: k1 in the reward, k3 in the loss", choices=(None, "k1", "k2", "k3", "k3_clamped")
    )
    coef: float = key(0.001, "its weight, at the start where it is adapted", low=0)
    target: float | None = key(
        None,
        "divergence of the trained policy, nats a token, that coef is adapted to; None: fixed",
        low=0,
        low_open=True,
    )
    horizon: int = key(10_000, "trajectories over which coef is adapted", low=1)
    refresh_steps: int | None = key(None, "steps after which the policy becomes the reference; None: never", low=1)

    @property
    def resolved_estimator(self) -> str:
        """Estimator that is used: the one whose gradient is that of a divergence where it is taken from."""
        return self.estimator or ("k1" if self.where == "reward" else "k3")


@dataclass(frozen=True, kw_only=True)
class CorrectionConfig:
    """Correction of the gap between what sampled a token and what trains it, by w = π_train/π_behaviour."""

    level: str = key(
        "none",
        "what w is the ratio of; turn, geometric: exp(mean log w) of the turn, of the sequence; sequence: exp(sum)",
        choices=("none", "token", "turn", "geometric", "sequence"),
    )
    mode: str = key(
        "truncate",
        "truncate: losses times min(w, high); mask: no loss outside low <= w <= high",
        choices=("truncate", "mask"),
    )
    low: float = key(0.8, "mask: lowest w that is trained", low=0)
    high: float = key(1.2, "truncate: largest factor; mask: highest w that is trained", low=0, low_open=True)


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """The objective."""

    adv_estimator: str = key("grpo", "name in the advantage registry")
    pg_variant: str = key("ppo", "name in the policy loss registry")
    aggregation: str = key("token-mean", "name in the aggregation registry")
    filters: tuple[str, ...] = key((), "names in the filter registry, or module:function; a filtered group is replaced")
    ppo_epochs: int = key(1, "passes over each batch", low=1)
    minibatch_size: int | None = key(None, "trajectories per optimizer update; None: the whole batch", low=1)
    max_uses: int = key(1, "steps that may train a group, none of them later than the staleness bound allows", low=1)
    reuse_ratio: float = key(
        0.5,
        "max_uses above 1: largest share of a batch's groups that were trained before",
        low=0,
        high=1,
        low_open=True,
        high_open=True,
    )
    allow_uncorrected: bool = key(
        False, "train stale data with neither a trust region nor a correction, or with kl.estimator=k1 in the loss"
    )
    correction: CorrectionConfig = field(default_factory=CorrectionConfig)
    ratio_level: str = key(
        "token",
        "ppo, dapo: the ratio of a token, or the geometric mean over its turn or sequence",
        choices=("token", "turn", "sequence"),
    )
    clip_low: float = key(0.2, "ppo, dapo, decoupled_ppo: the ratio is clipped below at 1 - clip_low", low=0, high=1)
    clip_high: float = key(0.2, "ppo, decoupled_ppo: the ratio is clipped above at 1 + clip_high", low=0)
    dual_clip: float | None = key(
        None, "ppo, dapo, gspo, decoupled_ppo: bound on the loss where the advantage is negative; None: off", low=1
    )
    dapo_clip_high: float = key(0.28, "dapo: the ratio is clipped above at 1 + dapo_clip_high", low=0)
    gspo_clip_low: float = key(3e-4, "gspo: the ratio is clipped below at 1 - gspo_clip_low", low=0, high=1)
    gspo_clip_high: float = key(4e-4, "gspo: the ratio is clipped above at 1 + gspo_clip_high", low=0)
    proximal_policy: str = key(
        "recompute",
        "decoupled_ppo: recompute: the policy before the batch, one forward pass; interpolate: from the other two",
        choices=("recompute", "interpolate"),
    )
    proximal_interpolation: float = key(
        0.5, "decoupled_ppo: share of the policy in the interpolated one, the rest being the behaviour's", low=0, high=1
    )
    behaviour_weight_cap: float = key(
        5.0, "decoupled_ppo: largest ratio of the proximal to the behaviour policy", low=0, low_open=True
    )
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
    overlong_penalty: float = key(
        1.0, "penalty: what a trajectory loses whose longest turn has model.max_response_tokens", low=0
    )
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
    step_reward_gamma: float = key(0.95, "step_reinforce, gigpo: discount from turn to turn", low=0, high=1)
    episode_reward_weight: float = key(1.0, "gigpo: weight of the episode's advantage", low=0)
    step_reward_weight: float = key(1.0, "gigpo: weight of the turn's advantage", low=0)
    tis_low: float = key(0.0, "tis: lower bound of the ratio", low=0)
    tis_high: float = key(1.0, "tis: upper bound of the ratio", low=0)
    cispo_epsilon_low: float = key(1.0, "cispo: the weight is clipped below at 1 - cispo_epsilon_low", low=0, high=1)
    cispo_epsilon_high: float = key(0.28, "cispo: the weight is clipped above at 1 + cispo_epsilon_high", low=0)
    cispo_use_unified_mask: bool = key(False, "cispo: tokens whose gradient ppo would clip away are left out")
    topr_positive_weight: float = key(1.0, "topr: weight where the reward is above 0", low=0)
    topr_negative_weight: float = key(1.0, "topr: weight where it is not", low=0)
    kimi15_tau: float = key(0.1, "kimi15: weight of the squared log-ratio", low=0, low_open=True)
    opmd_tau: float = key(1.0, "opmd, opmd_logavgexp: temperature τ of the reward", low=0, low_open=True)
    asymre_shift: float = key(-0.1, "asymre: what the baseline is above the mean reward; below 0: beneath it")
    sapo_tau_positive: float = key(1.0, "sapo: steepness of the gate, advantage above 0", low=0, low_open=True)
    sapo_tau_negative: float = key(1.05, "sapo: steepness of the gate elsewhere", low=0, low_open=True)
    sppo_epsilon: float = key(0.3, "sppo: ratios from 1/(1 + ε) to 1 + ε are trained", low=0, low_open=True)
    rec_clip: str = key(
        "none",
        "rec: which ratios are trained; gspo-one-side: by the geometric mean of the sequence's",
        choices=("none", "one-side", "gspo-one-side", "two-side", "ring"),
    )
    rec_clip_low: float = key(0.2, "rec: ratios are trained from 1 - rec_clip_low", low=0, high=1)
    rec_clip_high: float = key(0.2, "rec: ratios are trained up to 1 + rec_clip_high", low=0)
    rec_ring_low: float = key(0.6, "rec: ring: and below 1 - rec_ring_low where A > 0", low=0, high=1)
    rec_ring_high: float = key(2.0, "rec: ring: and above 1 + rec_ring_high where A < 0", low=0)
    rec_weight: str = key(
        "none",
        "rec: importance: times the ratio; gspo-importance: times the geometric mean of the sequence's ratios; "
        "advantage: times exp(A/rec_temperature)",
        choices=("none", "importance", "gspo-importance", "advantage"),
    )
    rec_temperature: float = key(1.0, "rec: temperature of the weight by advantage", low=0, low_open=True)
    rec_regularizer: str = key(
        "none",
        "rec: k2: the squared log-ratio; forward-kl: imitation of the data",
        choices=("none", "k2", "forward-kl"),
    )
    rec_regularizer_coef: float = key(0.1, "rec: weight of the regularizer", low=0, low_open=True)
    mix_variant: str = key("ppo", "mix: loss of what the policy said itself, by its name in the policy loss registry")
    expert_data_ratio: float = key(
        0.0, "sft, mix: share of demonstrations (tasks.expert) in what a step trains", low=0, high=1, high_open=True
    )
    sft_phi: bool = key(False, "sft, mix: imitated tokens are weighed by p(1 - p)")
    sft_weight: float = key(0.1, "mix: μ, the weight of imitation; the other loss has 1 - μ", low=0, high=1)
    sft_schedule: str = key(
        "constant",
        "mix: constant: sft_weight; chord: warm-up from 0 to the peak, then a cosine to the valley",
        choices=("constant", "chord"),
    )
    sft_weight_peak: float = key(0.1, "mix: chord: μ after the warm-up", low=0, high=1)
    sft_weight_valley: float = key(0.1, "mix: chord: μ in the end", low=0, high=1)
    sft_warmup_updates: int = key(200, "mix: chord: optimizer updates of the warm-up", low=0)
    sft_decay_updates: int = key(400, "mix: chord: optimizer updates of the cosine", low=0)
    kl: KlConfig = field(default_factory=KlConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
