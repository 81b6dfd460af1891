"""What an objective must satisfy to learn from stale data, and combinations of its keys that have no meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rljax.config.algorithm import AlgorithmConfig
from rljax.config.names import built_in
from rljax.config.validate import ConfigError, imported, walk

if TYPE_CHECKING:
    from rljax.config.schema import Config

BOUNDING = frozenset(
    {
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
"""Losses that bound or penalise the step from the behaviour policy, or whose minimum does not depend on it; tis with
its default bounds. `bounds_step` knows those whose keys decide.
"""

LARGEST_LEAST_WEIGHT = 0.5
"""Up to this least weight a loss that weighs by a clipped ratio counts as bounding: above, it is nearly vanilla."""

UNWEIGHTED = frozenset({"asymre", "kimi15", "opmd", "opmd_kimi", "opmd_pairwise", "rec", "sppo", "vanilla"})
"""Losses that do not weigh tokens by π/π_behaviour themselves, so that a correction may."""

IMITATING = frozenset({"mix", "sft"})
"""Losses that read which tokens are demonstrations."""

OF_TRAJECTORIES = {"opmd_kimi": ("opmd_logavgexp",), "opmd_pairwise": ("opmd_mean", "dr_grpo")}
"""Losses that compare rewards with log-ratios to a reference, summed over trajectories; the estimators they take."""

AMONG_MEMBERS = frozenset({"dr_grpo", "grpo", "opmd_logavgexp", "opmd_mean", "rloo"})
"""Estimators that compare the members of a group, and give a group of one 0 whatever its reward is."""

_REMEDIES = {
    "cispo": "cispo_epsilon_low=1 as in the paper, or cispo_use_unified_mask=true, or ",
    "rec": "a rec_clip, or rec_weight=importance, or ",
    "tis": "tis_low=0, or ",
}


def check_objective(config: Config) -> None:
    """Refuses stale data that nothing corrects, and what contradicts itself.

    Raises:
        ConfigError: on the first such.
    """
    algorithm = config.algorithm
    _check_keys(algorithm)
    _check_read(algorithm)
    _check_partial(algorithm)
    _check_formula(algorithm)
    _check_whole(config)
    _check_expert(config)
    _check_reuse(config)
    _check_group_of_one(config)
    if config.mode in ("both", "train"):
        _check_vain(config)
        if config.staleness_bound > 0:
            _check_stable(algorithm, config.staleness_bound)
            _check_divergence(algorithm, config.staleness_bound)


def bounds_step(algorithm: AlgorithmConfig) -> bool:
    """Whether the loss itself keeps the step within reach of its data, or corrects for their policy."""
    loss = _loss(algorithm)
    if loss == "sft":
        return True  # what was sampled, however stale, has no loss
    if loss == "rec":
        corrected = algorithm.rec_weight == "importance"
        return corrected or algorithm.rec_clip != "none" or algorithm.rec_regularizer == "k2"
    if loss == "cispo":
        return algorithm.cispo_use_unified_mask or 1 - algorithm.cispo_epsilon_low <= LARGEST_LEAST_WEIGHT
    if loss == "tis":
        return algorithm.tis_low <= LARGEST_LEAST_WEIGHT
    return loss in BOUNDING


def weighs_itself(algorithm: AlgorithmConfig) -> bool:
    """Whether the loss weighs by π/π_behaviour, or may do so, as one that is not built in."""
    loss = _loss(algorithm)
    return loss not in UNWEIGHTED or (loss == "rec" and algorithm.rec_weight in ("importance", "gspo-importance"))


def _loss(algorithm: AlgorithmConfig) -> str:
    return algorithm.mix_variant if algorithm.pg_variant == "mix" else algorithm.pg_variant


def _loss_key(algorithm: AlgorithmConfig) -> str:
    return "mix_variant" if algorithm.pg_variant == "mix" else "pg_variant"


def _check_there(algorithm: AlgorithmConfig) -> None:
    """Comes before a refusal of what a function of one's own is not known to do: one that is not there is told so."""
    if ":" in _loss(algorithm):  # plain names `check_config` has looked up
        imported(f"algorithm.{_loss_key(algorithm)}", _loss(algorithm))


def _check_keys(algorithm: AlgorithmConfig) -> None:
    corrected = algorithm.correction
    _check_order("tis_low", algorithm.tis_low, "tis_high", algorithm.tis_high)
    if corrected.mode == "mask":
        _check_order("correction.low", corrected.low, "correction.high", corrected.high)
    if algorithm.mix_variant == "mix":
        raise ConfigError("algorithm.mix_variant='mix': mixes with itself; name another loss, such as ppo")
    if corrected.level != "none" and corrected.mode == "truncate" and weighs_itself(algorithm):
        _check_there(algorithm)
        raise ConfigError(
            f"algorithm.correction.mode='truncate': {_loss_key(algorithm)}={_loss(algorithm)!r} is not known to leave "
            f"weighing by π/π_behaviour to the correction, and it would count twice; write mode=mask, or one of "
            f"{', '.join(sorted(UNWEIGHTED))}"
        )


def _check_order(low: str, least: float, high: str, most: float) -> None:
    if least > most:
        raise ConfigError(f"algorithm.{low}={least}: above {high}={most}")


def _check_read(algorithm: AlgorithmConfig) -> None:
    """Keys of a part that is off would be typos of whoever set them, or look like a guard that is not there."""
    defaults = {path: value for path, value, _ in walk(AlgorithmConfig())}
    readers = _readers(algorithm)
    for path, value, _ in walk(algorithm):
        read, remedy = readers.get(path) or readers.get(path.partition(".")[0], (True, ""))
        if not read and value != defaults[path]:
            raise ConfigError(f"algorithm.{path}={value!r}: nothing reads it; write {remedy}")


def _readers(algorithm: AlgorithmConfig) -> dict[str, tuple[bool, str]]:
    """By key, or group of keys, of a part that may be off: whether anything reads it, and what turns the part on.

    Keys of losses and estimators are not among them: a config may hold those of several, for one key to choose.
    """
    kl, correction = algorithm.kl, algorithm.correction
    diverges, corrects = kl.where != "none", correction.level != "none"
    # A loss that is not built in may keep a reference of its own.
    refers = diverges or _loss(algorithm) in OF_TRAJECTORIES or _loss(algorithm) not in built_in("policy_loss")
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
        "critic": (algorithm.adv_estimator == "gae", "adv_estimator=gae"),
    }


def _check_partial(algorithm: AlgorithmConfig) -> None:
    """What is computed over whole responses takes none of which a part is left out."""
    limit, loss = algorithm.drop_staler_than, _loss(algorithm)
    if limit is None:
        return
    if algorithm.adv_estimator == "gae" or algorithm.kl.where == "reward":
        raise ConfigError(
            f"algorithm.drop_staler_than={limit}: what is left out of a response has neither value nor divergence, so "
            "what comes before cannot be credited; leave it out with gae and kl.where=reward"
        )
    if loss in OF_TRAJECTORIES:
        raise ConfigError(
            f"algorithm.drop_staler_than={limit}: {loss} sums log-ratios over whole trajectories, and what is left out "
            f"would be missing; leave it out with {' and '.join(OF_TRAJECTORIES)}"
        )


def _check_formula(algorithm: AlgorithmConfig) -> None:
    """An estimator of one's own is trusted to be what the formula takes."""
    loss, estimator = _loss(algorithm), algorithm.adv_estimator
    taken = OF_TRAJECTORIES.get(loss)
    if taken and estimator in built_in("*advantage") - {*taken}:
        raise ConfigError(
            f"algorithm.adv_estimator={estimator!r}: {loss} has its minimum at the regularised optimum with a baseline "
            f"of its own only; write adv_estimator={' or '.join(taken)}"
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
    if source and loss in built_in("policy_loss") - IMITATING:
        raise ConfigError(
            f"tasks.expert.source={source!r}: algorithm.pg_variant={loss!r} does not tell demonstrations from samples; "
            f"write pg_variant=mix, with mix_variant={loss}"
        )
    if loss in IMITATING and not source and config.mode in ("both", "train", "replay"):
        raise ConfigError(
            f"algorithm.pg_variant={loss!r}: there is nothing to imitate; write tasks.expert.source=FILE.jsonl and "
            "algorithm.expert_data_ratio"
        )


def _check_group_of_one(config: Config) -> None:
    """One member has nothing to be compared with."""
    algorithm = config.algorithm
    if config.group_size > 1 or config.mode not in ("both", "train", "explore"):
        return
    for name in algorithm.filters:
        if name in ("group_variance", "min_std"):
            raise ConfigError(
                f"algorithm.filters: {name} drops every group of one, whose reward does not vary; leave it out, or "
                "write group_size=8"
            )
    if config.mode != "explore" and algorithm.adv_estimator in AMONG_MEMBERS and not _learns_besides(algorithm):
        raise ConfigError(
            f"group_size=1: adv_estimator={algorithm.adv_estimator} compares the members of a group, and the advantage "
            "of one alone is 0, so that no reward is learned from; write group_size=8, or adv_estimator=reinforce"
        )


def _learns_besides(algorithm: AlgorithmConfig) -> bool:
    """Whether anything but rewards teaches: demonstrations, or who knows what; a pull to data or reference does not."""
    return algorithm.pg_variant in IMITATING or _loss(algorithm) not in built_in("policy_loss")


def _check_vain(config: Config) -> None:
    """Keys of which the formula says that they leave nothing to learn, or do nothing."""
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


def _check_stable(algorithm: AlgorithmConfig, bound: int) -> None:
    if algorithm.allow_uncorrected or algorithm.correction.level != "none" or bounds_step(algorithm):
        return
    _check_there(algorithm)
    loss = _loss(algorithm)
    masked = " with correction.mode=mask" if weighs_itself(algorithm) else ""
    raise ConfigError(
        f"algorithm.{_loss_key(algorithm)}={loss!r}: trains data up to {bound} steps stale with neither trust "
        f"region nor correction{_faint(algorithm)}; write {_REMEDIES.get(loss, '')}one of "
        f"{', '.join(sorted(BOUNDING - {loss}))}, or correction.level=token{masked}, or allow_uncorrected=true"
    )


def _faint(algorithm: AlgorithmConfig) -> str:
    """Why the weights of a loss that has some are no correction."""
    least = {"cispo": 1 - algorithm.cispo_epsilon_low, "tis": algorithm.tis_low}.get(_loss(algorithm))
    return "" if least is None else f" (its least weight, {least:g}, is above {LARGEST_LEAST_WEIGHT})"


def _check_divergence(algorithm: AlgorithmConfig, bound: int) -> None:
    kl = algorithm.kl
    if kl.where == "loss" and kl.resolved_estimator == "k1" and not algorithm.allow_uncorrected:
        raise ConfigError(
            f"algorithm.kl.estimator='k1': in the loss its expected gradient is 0 on fresh data, and on data up to "
            f"{bound} steps stale it drives the policy away from them without bound; write estimator=k2 or k3, or "
            "kl.where=reward, or allow_uncorrected=true"
        )
