"""Validates the objective: that it can learn from stale data, and that no combination of its keys is meaningless."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rljax.config.algorithm import AlgorithmConfig
from rljax.config.choice import named_in
from rljax.config.fields import ConfigError, walk
from rljax.config.registries import (
    ESTIMATORS,
    EstimatorTraits,
    LossTraits,
    Registry,
    all_names,
    filters,
    policy_losses,
)
from rljax.config.schema import Config
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
    while found.traits.mixes:
        named = {one.key: one for one in named_in(found.keys, "algorithm.loss")}
        mixed = named[f"algorithm.loss.{found.traits.mixes}"]
        found = _loss(mixed.key, mixed.name, mixed.keys)
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


def check_objective(config: Config) -> None:
    """Refuses stale data without a correction, and keys that contradict each other.

    Raises:
        ConfigError: on the first such.
    """
    algorithm = config.algorithm
    if any(":" not in one.name and one.name not in all_names(one.slots) for one in algorithm.functions()):
        return  # `check_config` refuses the name; all below would be said of a function that there is not
    _check_keys(algorithm)
    _check_unread_keys(algorithm)
    _check_staleness_limit(algorithm)
    _check_estimator_of_loss(algorithm)
    _check_whole_groups(config)
    _check_expert(config)
    _check_reuse(config)
    _check_group_of_one(config)
    if config.mode in ("both", "train"):
        _check_meaningless_keys(config)
        if config.staleness_bound > 0:
            _check_stable(algorithm, config.staleness_bound)
            _check_divergence(algorithm, config.staleness_bound)


def _check_exists(loss: Loss) -> None:
    """Checks that the function exists before it is refused for a trait that it does not declare."""
    if ":" in loss.name:  # plain names `check_config` has looked up
        imported(loss.key, loss.name)


def _check_keys(algorithm: AlgorithmConfig) -> None:
    corrected, loss = algorithm.correction, loss_of(algorithm)
    if corrected.mode == "mask":
        _check_order("correction.low", corrected.low, "correction.high", corrected.high)
    if corrected.level != "none" and corrected.mode == "truncate" and loss.traits.weighs_tokens:
        _check_exists(loss)
        raise ConfigError(
            f"algorithm.correction.mode='truncate': {loss.short}={loss.name!r} is not known to leave weighing by "
            f"π/π_behaviour to the correction, and it would count twice; write mode=mask, or one of "
            f"{', '.join(unweighted())}"
        )


def _check_order(low: str, least: float, high: str, most: float) -> None:
    if least > most:
        raise ConfigError(f"algorithm.{low}={least}: above {high}={most}")


def _check_unread_keys(algorithm: AlgorithmConfig) -> None:
    """Refuses keys of a part that is off: they would be typos, or look like a guard that is not there."""
    defaults = {path: value for path, value, _ in walk(AlgorithmConfig())}
    readers = _readers(algorithm)
    for path, value, _ in walk(algorithm):
        read, remedy = readers.get(path) or readers.get(path.partition(".")[0], (True, ""))
        if not read and value != defaults[path]:
            raise ConfigError(f"algorithm.{path}={value!r}: nothing reads it; write {remedy}")


def _readers(algorithm: AlgorithmConfig) -> dict[str, tuple[bool, str]]:
    """Maps each key, or group of keys, of a part that may be off to whether anything reads it, and what turns it on.

    Keys of losses, estimators and filters are not among them: there are none but those of the chosen ones.
    """
    kl, correction, loss = algorithm.kl, algorithm.correction, loss_of(algorithm)
    diverges, corrects = kl.where != "none", correction.level != "none"
    # A loss that is not built in may keep a reference of its own.
    refers = diverges or "reference" in loss.traits.needs or not loss.known
    penalty = (algorithm.overlong == "penalty", "overlong=penalty")
    divergence = (diverges, "kl.where=loss or reward")
    corrected = (corrects, "correction.level=token")
    return {
        "reuse_ratio": (algorithm.max_uses > 1, "max_uses=2 or more"),
        "overlong_buffer": penalty,
        "overlong_penalty": penalty,
        "correction.mode": corrected,
        "correction.low": (corrects and correction.mode == "mask", "correction.mode=mask, and a correction.level"),
        "correction.high": corrected,
        "kl.estimator": divergence,
        "kl.coef": divergence,
        "kl.target": divergence,
        "kl.horizon": (diverges and kl.target is not None, "kl.target, and kl.where=loss or reward"),
        "kl.refresh_steps": (refers, "kl.where=loss or reward"),
        "critic": ("values" in _estimator(algorithm).needs, "adv_estimator=gae"),
    }


def _check_staleness_limit(algorithm: AlgorithmConfig) -> None:
    """Refuses ``drop_staler_than`` with parts of the objective that are computed over whole responses."""
    limit, loss = algorithm.drop_staler_than, loss_of(algorithm)
    if limit is None:
        return
    if "values" in _estimator(algorithm).needs or algorithm.kl.where == "reward":
        raise ConfigError(
            f"algorithm.drop_staler_than={limit}: what is left out of a response has neither value nor divergence, so "
            "what comes before cannot be credited; leave it out with gae and kl.where=reward"
        )
    if "sequences" in loss.traits.needs:
        raise ConfigError(
            f"algorithm.drop_staler_than={limit}: {loss.name} sums log-ratios over whole trajectories, and what is "
            "left out would be missing; leave it out"
        )


def _check_estimator_of_loss(algorithm: AlgorithmConfig) -> None:
    """Checks that the estimator is one that the loss's formula holds for; one that is not built in is not checked."""
    loss, estimator = loss_of(algorithm), algorithm.adv_estimator
    taken = loss.traits.estimators
    if not taken or not any(_is_built_in(slot, estimator) for slot in ESTIMATORS):
        return
    if estimator not in taken:
        raise ConfigError(
            f"algorithm.adv_estimator={estimator!r}: {loss.name} has its minimum at the regularised optimum with a "
            f"baseline of its own only; write adv_estimator={' or '.join(taken)}"
        )
    for name in loss.traits.shares:
        mine, its = getattr(loss.keys, name), getattr(algorithm.advantage, name)
        if mine != its:
            raise ConfigError(
                f"algorithm.advantage.{name}={its}: the baseline of {loss.name} is of the same {name}; write {mine}"
            )


def _check_whole_groups(config: Config) -> None:
    """Checks that a loss that compares whole groups has them in one update."""
    minibatch, group, loss = config.algorithm.minibatch_size, config.group_size, loss_of(config.algorithm)
    if loss.traits.whole_groups and minibatch is not None and minibatch % group:
        raise ConfigError(
            f"algorithm.minibatch_size={minibatch}: {loss.name} compares the members of a group, and an update must "
            f"hold whole ones: write a multiple of group_size={group}"
        )


def _estimator(algorithm: AlgorithmConfig) -> EstimatorTraits:
    name = algorithm.adv_estimator
    slot = next((slot for slot in ESTIMATORS if name in slot.names()), ESTIMATORS[0])
    traits: EstimatorTraits = slot.traits(name, algorithm.advantage)
    return traits


def _check_reuse(config: Config) -> None:
    algorithm, bound = config.algorithm, config.staleness_bound
    if algorithm.max_uses > bound + 1:
        raise ConfigError(
            f"algorithm.max_uses={algorithm.max_uses}: the staleness bound is {bound}, which leaves a group "
            f"{bound + 1} steps at most; lower it, or write max_staleness={algorithm.max_uses - 1} or more"
        )


def _check_expert(config: Config) -> None:
    """Checks demonstrations, their share, and a loss that imitates: all or none."""
    source, ratio, loss = config.tasks.expert.source, config.algorithm.expert_data_ratio, config.algorithm.pg_variant
    imitates = policy_losses.traits(loss).imitates
    if not source and config.tasks.expert != type(config.tasks.expert)():
        raise ConfigError("tasks.expert: there are no demonstrations; write tasks.expert.source=FILE.jsonl")
    if source and not ratio:
        raise ConfigError(f"tasks.expert.source={source!r}: no step trains it; write algorithm.expert_data_ratio=0.5")
    if ratio and not source:
        raise ConfigError(
            f"algorithm.expert_data_ratio={ratio}: there are no demonstrations; write tasks.expert.source=FILE.jsonl"
        )
    if source and not imitates and _is_built_in(policy_losses, loss):
        raise ConfigError(
            f"tasks.expert.source={source!r}: algorithm.pg_variant={loss!r} does not tell demonstrations from samples; "
            f"write pg_variant=mix, with loss.variant={loss}"
        )
    if config.imitates_alone and policy_losses.traits(loss, config.algorithm.loss).mixes:
        raise ConfigError(
            f"algorithm.pg_variant={loss!r}: with expert_data_ratio=1 nothing is sampled for loss.variant; "
            "write pg_variant=sft, or a lower ratio"
        )
    if imitates and not source and config.mode in ("both", "train", "replay"):
        raise ConfigError(
            f"algorithm.pg_variant={loss!r}: there is nothing to imitate; write tasks.expert.source=FILE.jsonl and "
            "algorithm.expert_data_ratio"
        )


def _check_group_of_one(config: Config) -> None:
    """Refuses groups of one where members are compared with each other."""
    algorithm = config.algorithm
    if config.group_size > 1 or config.mode not in ("both", "train", "explore"):
        return
    for name in algorithm.filters:
        if filters.traits(name).among_members:
            raise ConfigError(
                f"algorithm.filters: {name} drops every group of one, whose reward does not vary; leave it out, or "
                "write group_size=8"
            )
    if config.mode != "explore" and _estimator(algorithm).among_members and not _learns_without_rewards(algorithm):
        raise ConfigError(
            f"group_size=1: adv_estimator={algorithm.adv_estimator} compares the members of a group, and the advantage "
            "of one alone is 0, so that no reward is learned from; write group_size=8, or adv_estimator=reinforce"
        )


def _learns_without_rewards(algorithm: AlgorithmConfig) -> bool:
    """Returns whether anything but rewards teaches, as demonstrations do; penalties towards data or reference don't."""
    return policy_losses.traits(algorithm.pg_variant).imitates or not loss_of(algorithm).known


def _check_meaningless_keys(config: Config) -> None:
    """Refuses keys that, by the formula, leave nothing to learn or do nothing."""
    algorithm, bound = config.algorithm, config.staleness_bound
    kl, limit = algorithm.kl, algorithm.drop_staler_than
    if kl.target is not None and kl.coef == 0:
        raise ConfigError(
            f"algorithm.kl.target={kl.target}: kl.coef is adapted by factors, and 0 stays 0; write kl.coef above 0"
        )
    if limit is not None and limit >= bound:
        less = f", or write at most {bound - 1}" if bound else ""
        raise ConfigError(
            f"algorithm.drop_staler_than={limit}: drops nothing, since no token is staler than the bound of {bound} "
            f"(async_generation_ratio, sync_interval, max_staleness); leave it out{less}"
        )


def _steps(number: int) -> str:
    return f"{number} step" + "s" * (number != 1)


def _check_stable(algorithm: AlgorithmConfig, bound: int) -> None:
    loss = loss_of(algorithm)
    if algorithm.allow_uncorrected or algorithm.correction.level != "none" or loss.bounds_step:
        return
    _check_exists(loss)
    masked = " with algorithm.correction.mode=mask" if loss.traits.weighs_tokens else ""
    remedy = f"{loss.traits.remedy}, or " if loss.traits.remedy else ""
    others = ", ".join(name for name in bounding() if name != loss.name)
    least = loss.traits.least_weight
    # why the weights of a loss that has some are no correction
    faint = "" if least is None else f" (its least weight, {least:g}, is above {LARGEST_LEAST_WEIGHT})"
    raise ConfigError(
        f"{loss.key}={loss.name!r}: trains data up to {_steps(bound)} stale with neither trust region nor "
        f"correction{faint}; write {remedy}one of {others}, or algorithm.correction.level=token{masked}, "
        "or algorithm.allow_uncorrected=true"
    )


def _check_divergence(algorithm: AlgorithmConfig, bound: int) -> None:
    kl = algorithm.kl
    if kl.where == "loss" and kl.resolved_estimator == "k1" and not algorithm.allow_uncorrected:
        raise ConfigError(
            f"algorithm.kl.estimator='k1': in the loss its expected gradient is 0 on fresh data, and on data up to "
            f"{_steps(bound)} stale it drives the policy away from them without bound; write estimator=k2 or k3, or "
            "algorithm.kl.where=reward, or algorithm.allow_uncorrected=true"
        )
