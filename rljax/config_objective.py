"""What an objective must satisfy to learn from stale data, and combinations of its keys that have no meaning."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from rljax.config_algorithm import AlgorithmConfig, CriticConfig, KlConfig
from rljax.config_checks import ConfigError, registered

if TYPE_CHECKING:
    from rljax.config import Config

BOUNDING = frozenset(
    {
        "cispo",
        "dapo",
        "decoupled_ppo",
        "gspo",
        "kimi15",
        "opmd_kimi",
        "opmd_pairwise",
        "ppo",
        "sapo",
        "sppo",
        "tis",
        "topr",
    }
)
"""Losses that bound or penalise the step from the behaviour policy, or whose minimum does not depend on it."""

UNWEIGHTED = frozenset({"asymre", "kimi15", "opmd", "opmd_kimi", "opmd_pairwise", "rec", "sppo", "vanilla"})
"""Losses that do not weigh tokens by π/π_behaviour themselves, so that a correction may."""

IMITATING = frozenset({"mix", "sft"})
"""Losses that read which tokens are demonstrations."""


def check_objective(config: Config) -> None:
    """Refuses stale data that nothing corrects, and what contradicts itself.

    Raises:
        ConfigError: on the first such.
    """
    algorithm = config.algorithm
    _check_keys(algorithm)
    _check_read(algorithm)
    _check_whole(config)
    _check_expert(config)
    _check_reuse(config)
    if config.mode in ("both", "train") and config.staleness_bound > 0:
        _check_stable(algorithm, config.staleness_bound)


def bounds_step(algorithm: AlgorithmConfig) -> bool:
    """Whether the loss itself keeps the step within reach of its data."""
    loss = _loss(algorithm)
    if loss == "sft":
        return True  # what was sampled, however stale, has no loss
    if loss == "rec":
        return algorithm.rec_clip != "none" or algorithm.rec_regularizer == "k2"
    return loss in BOUNDING


def weighs_itself(algorithm: AlgorithmConfig) -> bool:
    """Whether the loss weighs by π/π_behaviour, or may do so, as one that is not built in."""
    loss = _loss(algorithm)
    return loss not in UNWEIGHTED or (loss == "rec" and algorithm.rec_weight in ("importance", "gspo-importance"))


def _loss(algorithm: AlgorithmConfig) -> str:
    return algorithm.mix_variant if algorithm.pg_variant == "mix" else algorithm.pg_variant


def _check_keys(algorithm: AlgorithmConfig) -> None:
    corrected = algorithm.correction
    for low, high in (("tis_low", "tis_high"), ("correction.low", "correction.high")):
        least, most = (_read(algorithm, name) for name in (low, high))
        if least > most:
            raise ConfigError(f"algorithm.{low}={least}: above {high}={most}")
    if algorithm.mix_variant == "mix":
        raise ConfigError("algorithm.mix_variant='mix': mixes with itself; name another loss, such as ppo")
    if corrected.level != "none" and corrected.mode == "truncate" and weighs_itself(algorithm):
        raise ConfigError(
            f"algorithm.correction.mode='truncate': pg_variant={_loss(algorithm)!r} is not known to leave weighing by "
            f"π/π_behaviour to the correction, and it would count twice; write mode=mask, or one of "
            f"{', '.join(sorted(UNWEIGHTED))}"
        )


def _check_read(algorithm: AlgorithmConfig) -> None:
    """Keys of a part that is off would be typos of whoever set them."""
    if algorithm.kl.where == "none" and dataclasses.replace(algorithm.kl, refresh_steps=None) != KlConfig():
        raise ConfigError("algorithm.kl: nothing reads its keys while kl.where=none; write kl.where=loss or reward")
    if algorithm.adv_estimator != "gae" and algorithm.critic != CriticConfig():
        raise ConfigError(
            f"algorithm.critic: nothing reads its keys with adv_estimator={algorithm.adv_estimator!r}; write gae"
        )
    if algorithm.drop_staler_than is not None and (algorithm.adv_estimator == "gae" or algorithm.kl.where == "reward"):
        raise ConfigError(
            f"algorithm.drop_staler_than={algorithm.drop_staler_than}: what is left out of a response has neither "
            "value nor divergence, so what comes before cannot be credited; leave it out with gae and kl.where=reward"
        )


def _check_whole(config: Config) -> None:
    """A loss that compares whole groups needs them in one update."""
    minibatch, group = config.algorithm.minibatch_size, config.group_size
    if _loss(config.algorithm) == "opmd_pairwise" and minibatch is not None and minibatch % group:
        raise ConfigError(
            f"algorithm.minibatch_size={minibatch}: opmd_pairwise compares the members of a group, and an update must "
            f"hold whole ones: write a multiple of group_size={group}"
        )


def _check_reuse(config: Config) -> None:
    algorithm, bound = config.algorithm, config.staleness_bound
    if algorithm.max_uses == 1 and algorithm.reuse_ratio != AlgorithmConfig().reuse_ratio:
        raise ConfigError(f"algorithm.reuse_ratio={algorithm.reuse_ratio}: nothing reads it; write max_uses=2 or more")
    if algorithm.max_uses > bound + 1:
        raise ConfigError(
            f"algorithm.max_uses={algorithm.max_uses}: the staleness bound is {bound}, which leaves a group "
            f"{bound + 1} steps at most; lower it, or write max_staleness={algorithm.max_uses - 1} or more"
        )


def _check_expert(config: Config) -> None:
    """Demonstrations, a share of them, and a loss that imitates: all or none."""
    source, ratio, loss = config.tasks.expert.source, config.algorithm.expert_data_ratio, config.algorithm.pg_variant
    if not source and config.tasks.expert != type(config.tasks.expert)():
        raise ConfigError("tasks.expert: there are no demonstrations; write tasks.expert.source=FILE.jsonl")
    if source and not ratio:
        raise ConfigError(f"tasks.expert.source={source!r}: no step trains it; write algorithm.expert_data_ratio=0.5")
    if ratio and not source:
        raise ConfigError(
            f"algorithm.expert_data_ratio={ratio}: there are no demonstrations; write tasks.expert.source=FILE.jsonl"
        )
    if source and loss in registered("policy_loss") - IMITATING:
        raise ConfigError(
            f"tasks.expert.source={source!r}: algorithm.pg_variant={loss!r} does not tell demonstrations from samples; "
            f"write pg_variant=mix, with mix_variant={loss}"
        )
    if loss in IMITATING and not source and config.mode in ("both", "train", "replay"):
        raise ConfigError(
            f"algorithm.pg_variant={loss!r}: there is nothing to imitate; write tasks.expert.source=FILE.jsonl and "
            "algorithm.expert_data_ratio"
        )


def _check_stable(algorithm: AlgorithmConfig, bound: int) -> None:
    if algorithm.allow_uncorrected or algorithm.correction.level != "none" or bounds_step(algorithm):
        return
    raise ConfigError(
        f"algorithm.pg_variant={_loss(algorithm)!r}: trains data up to {bound} steps stale with neither trust region "
        f"nor correction; write one of {', '.join(sorted(BOUNDING))}, or correction.level=token, or "
        "allow_uncorrected=true"
    )


def _read(algorithm: AlgorithmConfig, name: str) -> float:
    group, _, key = name.rpartition(".")
    return getattr(getattr(algorithm, group) if group else algorithm, key)
