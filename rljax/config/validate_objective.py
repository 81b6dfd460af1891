"""Validates the objective: that it can learn from stale data, and that no combination of its keys is meaningless."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from rljax.config.algorithm import AlgorithmConfig
from rljax.config.fields import ConfigError, walk
from rljax.config.refusals import Refusals, Rule, collected
from rljax.config.registries import ESTIMATORS, EstimatorTraits, LossTraits, Registry, filters, policy_losses
from rljax.config.schema import Config, RowsConfig
from rljax.config.types import imported

LARGEST_LEAST_WEIGHT = 0.5
"""Up to this least weight a loss that weighs by a clipped ratio counts as bounding: above, it is nearly vanilla."""


@dataclass(frozen=True)
class Loss:
    """Loss of the sampled tokens: the one that is named, or the one that it mixes in.

    Attributes:
        key: path of the key that names it.
        name: value of that key.
        keys: values of its own keys.
        traits: its traits with these keys.
        known: whether it is built in, so that a trait that it does not declare does not hold.
    """

    key: str
    name: str
    keys: Any
    traits: LossTraits
    known: bool

    @property
    def bounds_step(self) -> bool:
        """True if the loss bounds the step from the behaviour policy, or corrects for that policy."""
        least = self.traits.least_weight
        return bool(self.traits.bounds_step) or (least is not None and least <= LARGEST_LEAST_WEIGHT)

    @property
    def short(self) -> str:
        """Its key without the group of the objective."""
        return self.key.removeprefix("algorithm.")


def loss_of(algorithm: AlgorithmConfig) -> Loss:
    """Returns the loss of the sampled tokens."""
    found = _loss("algorithm.pg_variant", algorithm.pg_variant, algorithm.loss)
    while name := found.traits.mixes:
        group = next(
            f.name for f in dataclasses.fields(found.keys) if getattr(f.metadata.get("choice"), "by", "") == name
        )
        found = _loss(f"algorithm.loss.{name}", getattr(found.keys, name), getattr(found.keys, group))
    return found


def _loss(key: str, name: str, keys: Any) -> Loss:
    return Loss(key, name, keys, policy_losses.traits(name, keys), _is_built_in(policy_losses, name))


def bounding() -> list[str]:
    """Returns the built-in losses that bound the step from the behaviour policy by their defaults, by name."""
    losses = [_loss("", entry.name, None) for entry in policy_losses.built_in()]
    return [loss.name for loss in losses if loss.bounds_step and not loss.traits.imitates]


def unweighted() -> list[str]:
    """Returns the built-in losses that do not weigh tokens by π/π_behaviour themselves by their defaults, by name."""
    return [entry.name for entry in policy_losses.built_in() if not policy_losses.traits(entry.name).weighs_tokens]


def _is_built_in(slot: Registry[Any], name: str) -> bool:
    return any(entry.name == name for entry in slot.built_in())


def check_objective(config: Config) -> Refusals:
    """Refuses stale data without a correction, and keys that contradict each other."""
    unread: list[Rule[Config]] = [partial(_check_read, path, value) for path, value, _ in walk(AlgorithmConfig())]
    functions = (_check_order, _check_correction, *unread, _check_dropped_values, _check_dropped_sequences)
    estimator = (_check_estimator, _check_shares, _check_whole_groups, _check_filters, _check_group_of_one)
    expert = (_check_no_expert, _check_expert_ratio, _check_no_ratio, _check_imitated, _check_imitating, _check_mixed)
    trained = (_check_kl_target, _check_dropped, _check_stable, _check_divergence)
    return collected(config, *functions, *estimator, *expert, _check_reuse, *trained)


def _trains(config: Config) -> bool:
    return config.mode in ("both", "train")


def _check_exists(loss: Loss) -> None:
    """Checks that the function exists before it is refused for a trait that it does not declare."""
    if ":" in loss.name:  # plain names `check_functions` has looked up
        imported(loss.key, loss.name)


def _check_order(config: Config) -> Refusals:
    corrected = config.algorithm.correction
    if corrected.mode == "mask" and corrected.low > corrected.high:
        yield ConfigError(f"algorithm.correction.low={corrected.low}: above correction.high={corrected.high}")


def _check_correction(config: Config) -> Refusals:
    corrected, loss = config.algorithm.correction, loss_of(config.algorithm)
    if corrected.level != "none" and corrected.mode == "truncate" and loss.traits.weighs_tokens:
        _check_exists(loss)
        yield ConfigError(
            f"algorithm.correction.mode='truncate': {loss.short}={loss.name!r} is not known to leave weighing by "
            f"π/π_behaviour to the correction, and it would count twice; write mode=mask, or one of "
            f"{', '.join(unweighted())}"
        )


def _check_read(path: str, default: Any, config: Config) -> Refusals:
    """Refuses a key of a part that is off: it would be a typo, or look like a guard that is not there."""
    reader = _READERS.get(path) or _READERS.get(path.partition(".")[0])
    value = functools.reduce(getattr, path.split("."), config.algorithm) if reader else default
    if reader and value != default and not reader[0](config.algorithm):
        yield ConfigError(f"algorithm.{path}={value!r}: nothing reads it; write {reader[1]}")


def _penalises(algorithm: AlgorithmConfig) -> bool:
    return algorithm.overlong == "penalty"


def _corrects(algorithm: AlgorithmConfig) -> bool:
    return algorithm.correction.level != "none"


def _diverges(algorithm: AlgorithmConfig) -> bool:
    return algorithm.kl.where != "none"


def _refers(algorithm: AlgorithmConfig) -> bool:
    if _diverges(algorithm):
        return True
    loss = loss_of(algorithm)
    return "reference" in loss.traits.needs or not loss.known  # one that is not built in may keep its own


_DIVERGENCE = (_diverges, "kl.where=loss or reward")
_PENALTY = (_penalises, "overlong=penalty")
_REWARDED = (lambda a: estimator_traits(a).reads_rewards, "an adv_estimator that reads rewards")
_CORRECTED = (_corrects, "correction.level=token")
_READERS: dict[str, tuple[Callable[[AlgorithmConfig], bool], str]] = {
    "norm_mean": _REWARDED,
    "norm_std": _REWARDED,
    "reward_clip": _REWARDED,
    "reuse_ratio": (lambda a: a.max_uses > 1, "max_uses=2 or more"),
    "overlong_buffer": _PENALTY,
    "overlong_penalty": _PENALTY,
    "correction.mode": _CORRECTED,
    "correction.low": (
        lambda a: _corrects(a) and a.correction.mode == "mask",
        "correction.mode=mask, and a correction.level",
    ),
    "correction.high": _CORRECTED,
    "kl.estimator": _DIVERGENCE,
    "kl.coef": _DIVERGENCE,
    "kl.target": _DIVERGENCE,
    "kl.horizon": (lambda a: _diverges(a) and a.kl.target is not None, "kl.target, and kl.where=loss or reward"),
    "kl.refresh_steps": (_refers, "kl.where=loss or reward"),
    "critic": (lambda a: "values" in estimator_traits(a).needs, "adv_estimator=gae"),
}
"""Keys, and groups of keys, of a part that may be off: whether anything reads it, and what turns it on.

Keys of losses, estimators and filters are not among them: there are none but those of the chosen ones.
"""


def _check_dropped_values(config: Config) -> Refusals:
    """Refuses ``drop_staler_than`` with what is computed over whole responses; so does the next."""
    algorithm = config.algorithm
    if (limit := algorithm.drop_staler_than) is None:
        return
    if algorithm.kl.where == "reward" or "values" in estimator_traits(algorithm).needs:
        yield ConfigError(
            f"algorithm.drop_staler_than={limit}: what is left out of a response has neither value nor divergence, so "
            "what comes before cannot be credited; leave it out with gae and kl.where=reward"
        )


def _check_dropped_sequences(config: Config) -> Refusals:
    limit, loss = config.algorithm.drop_staler_than, loss_of(config.algorithm)
    if limit is not None and "sequences" in loss.traits.needs:
        yield ConfigError(
            f"algorithm.drop_staler_than={limit}: {loss.name} sums log-ratios over whole trajectories, and what is "
            "left out would be missing; leave it out"
        )


def _baseline_of(algorithm: AlgorithmConfig) -> Loss | None:
    """Returns the loss where its formula holds for some estimators only, and the chosen one is built in."""
    loss = loss_of(algorithm)
    checked = loss.traits.estimators and any(_is_built_in(slot, algorithm.adv_estimator) for slot in ESTIMATORS)
    return loss if checked else None


def _check_estimator(config: Config) -> Refusals:
    """Checks that the estimator is one that the loss's formula holds for."""
    loss, estimator = _baseline_of(config.algorithm), config.algorithm.adv_estimator
    if loss and estimator not in loss.traits.estimators:
        yield ConfigError(
            f"algorithm.adv_estimator={estimator!r}: {loss.name} has its minimum at the regularised optimum with a "
            f"baseline of its own only; write adv_estimator={' or '.join(loss.traits.estimators)}"
        )


def _check_shares(config: Config) -> Refusals:
    """Checks the keys that the estimator shares with the loss."""
    loss, algorithm = _baseline_of(config.algorithm), config.algorithm
    if not loss or algorithm.adv_estimator not in loss.traits.estimators:
        return
    for name in loss.traits.shares:
        mine, its = getattr(loss.keys, name), getattr(algorithm.advantage, name)
        if mine != its:
            yield ConfigError(
                f"algorithm.advantage.{name}={its}: the baseline of {loss.name} is of the same {name}; write {mine}"
            )


def _check_whole_groups(config: Config) -> Refusals:
    """Checks that a loss that compares whole groups has them in one update."""
    minibatch, group = config.algorithm.minibatch_size, config.group_size
    if minibatch is not None and minibatch % group and (loss := loss_of(config.algorithm)).traits.whole_groups:
        yield ConfigError(
            f"algorithm.minibatch_size={minibatch}: {loss.name} compares the members of a group, and an update must "
            f"hold whole ones: write a multiple of group_size={group}"
        )


def estimator_traits(algorithm: AlgorithmConfig) -> EstimatorTraits:
    """Returns the traits of the advantage estimator."""
    name = algorithm.adv_estimator
    slot = next((slot for slot in ESTIMATORS if name in slot.names()), ESTIMATORS[0])
    traits: EstimatorTraits = slot.traits(name, algorithm.advantage)
    return traits


def _check_reuse(config: Config) -> Refusals:
    algorithm, bound = config.algorithm, config.staleness_bound
    if algorithm.max_uses > bound + 1:
        yield ConfigError(
            f"algorithm.max_uses={algorithm.max_uses}: the staleness bound is {bound}, which leaves a group "
            f"{bound + 1} steps at most; lower it, or write max_staleness={algorithm.max_uses - 1} or more"
        )


_NO_EXPERT = "there are no demonstrations; write tasks.expert.source=FILE.jsonl"


def _check_no_expert(config: Config) -> Refusals:
    """Checks that there are demonstrations where their keys are set; they, their share, and a loss that imitates are
    all there, or none of them.
    """
    if not config.tasks.expert.source and config.tasks.expert != RowsConfig():
        yield ConfigError(f"tasks.expert: {_NO_EXPERT}")


def _check_expert_ratio(config: Config) -> Refusals:
    source = config.tasks.expert.source
    if source and not config.algorithm.expert_data_ratio:
        yield ConfigError(f"tasks.expert.source={source!r}: no step trains it; write algorithm.expert_data_ratio=0.5")


def _check_no_ratio(config: Config) -> Refusals:
    ratio = config.algorithm.expert_data_ratio
    if ratio and not config.tasks.expert.source:
        yield ConfigError(f"algorithm.expert_data_ratio={ratio}: {_NO_EXPERT}")


def _check_imitated(config: Config) -> Refusals:
    source, loss = config.tasks.expert.source, config.algorithm.pg_variant
    if source and _is_built_in(policy_losses, loss) and not policy_losses.traits(loss).imitates:
        yield ConfigError(
            f"tasks.expert.source={source!r}: algorithm.pg_variant={loss!r} does not tell demonstrations from samples; "
            f"write pg_variant=mix, with loss.variant={loss}"
        )


def _check_imitating(config: Config) -> Refusals:
    source, loss = config.tasks.expert.source, config.algorithm.pg_variant
    if not source and policy_losses.traits(loss).imitates and config.mode in ("both", "train", "replay"):
        yield ConfigError(
            f"algorithm.pg_variant={loss!r}: there is nothing to imitate; write tasks.expert.source=FILE.jsonl and "
            "algorithm.expert_data_ratio"
        )


def _check_mixed(config: Config) -> Refusals:
    loss = config.algorithm.pg_variant
    if config.imitates_alone and policy_losses.traits(loss, config.algorithm.loss).mixes:
        yield ConfigError(
            f"algorithm.pg_variant={loss!r}: with expert_data_ratio=1 nothing is sampled for loss.variant; write "
            "pg_variant=sft, or a lower ratio"
        )


def _check_filters(config: Config) -> Refusals:
    """Refuses filters that compare members in groups of one; so does the next of estimators."""
    if config.group_size > 1 or config.mode not in ("both", "train", "explore"):
        return
    for name in config.algorithm.filters:
        if filters.traits(name).among_members:
            yield ConfigError(
                f"algorithm.filters: {name} drops every group of one, whose reward does not vary; leave it out, or "
                "write group_size=8"
            )


def _check_group_of_one(config: Config) -> Refusals:
    if config.group_size > 1 or not _trains(config):
        return
    algorithm = config.algorithm
    if estimator_traits(algorithm).among_members and not _learns_without_rewards(algorithm):
        yield ConfigError(
            f"group_size=1: adv_estimator={algorithm.adv_estimator} compares the members of a group, and the advantage "
            "of one alone is 0, so that no reward is learned from; write group_size=8, or adv_estimator=reinforce"
        )


def _learns_without_rewards(algorithm: AlgorithmConfig) -> bool:
    """Returns whether anything but rewards teaches, as demonstrations do; penalties towards data or reference don't."""
    return policy_losses.traits(algorithm.pg_variant).imitates or not loss_of(algorithm).known


def _check_kl_target(config: Config) -> Refusals:
    """Refuses keys that, by the formula, leave nothing to learn or do nothing; so does the next."""
    kl = config.algorithm.kl
    if kl.target is not None and kl.coef == 0 and _trains(config):
        yield ConfigError(
            f"algorithm.kl.target={kl.target}: kl.coef is adapted by factors, and 0 stays 0; write kl.coef above 0"
        )


def _check_dropped(config: Config) -> Refusals:
    limit, bound = config.algorithm.drop_staler_than, config.staleness_bound
    if limit is not None and limit >= bound and _trains(config):
        less = f", or write at most {bound - 1}" if bound else ""
        yield ConfigError(
            f"algorithm.drop_staler_than={limit}: drops nothing, since no token is staler than the bound of {bound} "
            f"(async_generation_ratio, sync_interval, max_staleness); leave it out{less}"
        )


def _steps(number: int) -> str:
    return f"{number} step" + "s" * (number != 1)


def _check_stable(config: Config) -> Refusals:
    algorithm, loss, bound = config.algorithm, loss_of(config.algorithm), config.staleness_bound
    if not _trains(config) or bound == 0:
        return
    if algorithm.allow_uncorrected or algorithm.correction.level != "none" or loss.bounds_step:
        return
    _check_exists(loss)
    masked = " with algorithm.correction.mode=mask" if loss.traits.weighs_tokens else ""
    remedy = f"{loss.traits.remedy}, or " if loss.traits.remedy else ""
    others = ", ".join(name for name in bounding() if name != loss.name)
    least = loss.traits.least_weight
    # why the weights of a loss that has some are no correction
    faint = "" if least is None else f" (its least weight, {least:g}, is above {LARGEST_LEAST_WEIGHT})"
    yield ConfigError(
        f"{loss.key}={loss.name!r}: trains data up to {_steps(bound)} stale with neither trust region nor "
        f"correction{faint}; write {remedy}one of {others}, or algorithm.correction.level=token{masked}, "
        "or algorithm.allow_uncorrected=true"
    )


def _check_divergence(config: Config) -> Refusals:
    kl, bound = config.algorithm.kl, config.staleness_bound
    drives = kl.where == "loss" and kl.resolved_estimator == "k1" and not config.algorithm.allow_uncorrected
    if drives and bound > 0 and _trains(config):
        yield ConfigError(
            f"algorithm.kl.estimator='k1': in the loss its expected gradient is 0 on fresh data, and on data up to "
            f"{_steps(bound)} stale it drives the policy away from them without bound; write estimator=k2 or k3, or "
            "algorithm.kl.where=reward, or algorithm.allow_uncorrected=true"
        )
