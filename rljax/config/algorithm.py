"""Config keys of the objective, by ROLL's and Trinity-RFT's names where those are the field's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rljax.config import registries
from rljax.config.choice import Named, chosen_by, named_in, settle
from rljax.config.distill import DistillConfig
from rljax.config.fields import key

_LEARNING_RATE, _OF_ADAPTERS = 1e-6, 10.0  # Schulman et al. 2025, "LoRA Without Regret": at every rank ten times it


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW and its schedule."""

    learning_rate: float | None = key(None, "peak; None: 1e-6, and of an adapter (model.lora.rank) 1e-5", low=0)
    schedule: str = key("constant", "after the warm-up", choices=("constant", "linear", "cosine"))
    warmup_steps: int = key(0, "optimizer updates of linear warm-up", low=0)
    min_lr_ratio: float = key(0.0, "final over peak learning rate of linear and cosine", low=0, high=1)
    weight_decay: float = key(0.0, "decoupled weight decay", low=0)
    beta1: float = key(0.9, "decay of the first moment", low=0, high=1, high_open=True)
    beta2: float = key(0.999, "decay of the second moment", low=0, high=1, high_open=True)
    eps: float = key(1e-8, "Adam's epsilon", low=0, low_open=True)
    mu_dtype: str = key("fp32", "dtype of the first moment; bf16 needs beta1 <= 0.996", choices=("fp32", "bf16"))
    nu_dtype: str = key("fp32", "of the second moment; bf16 needs beta2 <= 0.996", choices=("fp32", "bf16"))
    grad_clip: float | None = key(1.0, "largest global gradient norm; None: no clipping", low=0)

    def peak(self, *, adapter: bool = False) -> float:
        """Returns the peak learning rate, of all weights or of an adapter of them."""
        default = _LEARNING_RATE * (_OF_ADAPTERS if adapter else 1)
        return default if self.learning_rate is None else self.learning_rate


@dataclass(frozen=True, kw_only=True)
class CriticConfig:
    """The critic of ``adv_estimator=gae``: a transformer that begins with the policy's weights and has a value head."""

    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(learning_rate=1e-5))
    warmup_steps: int = key(0, "steps at the start that train the critic alone", low=0)
    value_clip: float | None = key(None, "values are clipped to at most this far from those before the batch", low=0)


@dataclass(frozen=True, kw_only=True)
class KlConfig:
    """Divergence from the reference policy, which is the policy that the run began with."""

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
    """Correction of the mismatch between the sampling engine and the learner, per token, by w = π_train/π_behaviour."""

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
    advantage: Any = chosen_by(
        "adv_estimator", "keys of the estimator that adv_estimator names", *registries.ESTIMATORS
    )
    pg_variant: str = key("ppo", "name in the policy loss registry")
    loss: Any = chosen_by("pg_variant", "keys of the loss that pg_variant names", registries.policy_losses)
    aggregation: str = key("token-mean", "name in the aggregation registry")
    filters: tuple[str, ...] = key((), "names in the filter registry, or module:function; a filtered group is replaced")
    filter: Any = chosen_by("filters", "keys of each filter that filters names, by its name", registries.filters)
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
    entropy_coef: float = key(0.0, "weight of the entropy bonus that is subtracted from each token's loss", low=0)
    router_aux_loss_coef: float = key(0.0, "weight of the loss that has a model's experts used evenly", low=0)
    router_z_loss_coef: float = key(0.0, "weight of the loss that keeps the logits of a model's routers small", low=0)
    router_replay: str = key(
        "off",
        "routes of the engines, of a model with experts: off; record: they are counted where the learner's differ; "
        "replay: the learner uses them",
        choices=("off", "record", "replay"),
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
    whiten_advantages: bool = key(False, "advantages get mean 0 and deviation 1 over the trained tokens of the batch")
    advantage_clip: float | None = key(None, "advantages are clipped to at most this, either way", low=0, low_open=True)
    expert_data_ratio: float = key(
        0.0,
        "sft, mix: share of demonstrations (tasks.expert) in what a step trains; 1: nothing is sampled",
        low=0,
        high=1,
    )
    kl: KlConfig = field(default_factory=KlConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)

    def __post_init__(self) -> None:
        settle(self, "algorithm")

    @property
    def replays_routes(self) -> bool:
        """True where the learner sends tokens to the experts that engines have recorded."""
        return self.router_replay == "replay"

    @property
    def records_routes(self) -> bool:
        """True where the learner reads which experts engines have recorded; see `Config.records_routes`."""
        return self.router_replay != "off"

    def functions(self) -> Iterator[Named]:
        """Yields the functions that the objective names."""
        yield from named_in(self, "algorithm")
        yield Named("algorithm.aggregation", self.aggregation, (registries.aggregations,), "", {})
