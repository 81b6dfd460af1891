"""Foreign keys: what to write for the keys of other programs, for error messages.

ROLL's and Trinity-RFT's stand in the importers' tables, TRL's and verl's in `rljax.config.habits`; here are their
groups, others' keys, and our own former ones.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from rljax.config.habits import HABITS
from rljax.config.importers.rule import Answer
from rljax.config.importers.translate import TABLES


@dataclass(frozen=True)
class ForeignKey:
    """A key of another program.

    Attributes:
        whose: name of the program.
        here: keys, or groups of keys, that say the same; none where nothing has to be said.
        remark: what differs.
    """

    whose: str
    here: tuple[str, ...]
    remark: str = ""

    def advice(self, prefix: str, keys: Collection[str]) -> str:
        """Returns what to write instead.

        Args:
            prefix: where the key was written, with a dot behind; empty at the top.
            keys: paths of all that there are.
        """
        remark = f" ({self.remark})" if self.here and self.remark else self.remark
        here = ", ".join(_within(prefix, key, keys) for key in self.here)
        return f"{self.whose} has it; {f'write {here}' if here else 'leave it out: '}{remark}"


def _within(prefix: str, key: str, keys: Collection[str]) -> str:
    """Returns the key of the optimizer in the group that was written to, where that has one: a critic has its own."""
    optimizer, _, name = key.rpartition(".")
    if optimizer != "learner.optimizer":
        return key
    return next((path for path in (f"{prefix}{name}", f"{prefix}optimizer.{name}") if prefix and path in keys), key)


def _trinity(*here: str, remark: str = "") -> ForeignKey:
    return ForeignKey("Trinity-RFT", here, remark)


def _clip(whose: str, *sides: str) -> ForeignKey:
    return ForeignKey(whose, tuple(f"algorithm.loss.clip_{side}" for side in sides or ("low", "high")))


def _roll(*here: str, remark: str = "") -> ForeignKey:
    return ForeignKey("ROLL", here, remark)


_SPREAD = "the group's settings are spread over these and more; --help WORD finds a key"
_RATIOS_ALONE = "w itself is bounded, by algorithm.correction.low and high"


def _loss(here: str, *losses: str) -> ForeignKey:
    return ForeignKey("an earlier rljax", (f"algorithm.loss.{here}",), f"with pg_variant={' or '.join(losses)}")


def _advantage(here: str, *estimators: str) -> ForeignKey:
    return ForeignKey(
        "an earlier rljax", (f"algorithm.advantage.{here}",), f"with adv_estimator={' or '.join(estimators)}"
    )


def _filter(name: str, here: str) -> ForeignKey:
    return ForeignKey("an earlier rljax", (f"algorithm.filter.{name}.{here}",))


_CLIPPED = ("ppo", "dapo", "decoupled_ppo")

MOVED = {
    "ratio_level": _loss("ratio_level", "ppo", "dapo"),
    "clip_low": _loss("clip_low", *_CLIPPED),
    "clip_high": _loss("clip_high", "ppo", "decoupled_ppo"),
    "dual_clip": _loss("dual_clip", *_CLIPPED, "gspo"),
    "dapo_clip_high": _loss("clip_high", "dapo"),
    "gspo_clip_low": _loss("clip_low", "gspo"),
    "gspo_clip_high": _loss("clip_high", "gspo"),
    "proximal_policy": _loss("proximal_policy", "decoupled_ppo"),
    "proximal_interpolation": _loss("proximal_interpolation", "decoupled_ppo"),
    "behaviour_weight_cap": _loss("behaviour_weight_cap", "decoupled_ppo"),
    "tis_low": _loss("low", "tis"),
    "tis_high": _loss("high", "tis"),
    "cispo_epsilon_low": _loss("clip_low", "cispo"),
    "cispo_epsilon_high": _loss("clip_high", "cispo"),
    "cispo_use_unified_mask": _loss("use_unified_mask", "cispo"),
    "topr_positive_weight": _loss("positive_weight", "topr"),
    "topr_negative_weight": _loss("negative_weight", "topr"),
    "kimi15_tau": _loss("tau", "kimi15"),
    "opmd_tau": ForeignKey(
        "an earlier rljax",
        ("algorithm.loss.tau", "algorithm.advantage.tau"),
        "with pg_variant=opmd, opmd_kimi or opmd_pairwise, with adv_estimator=opmd_logavgexp",
    ),
    "asymre_shift": _loss("shift", "asymre"),
    "sapo_tau_positive": _loss("tau_positive", "sapo"),
    "sapo_tau_negative": _loss("tau_negative", "sapo"),
    "sppo_epsilon": _loss("epsilon", "sppo"),
    "rec_clip": _loss("clip", "rec"),
    "rec_clip_low": _loss("clip_low", "rec"),
    "rec_clip_high": _loss("clip_high", "rec"),
    "rec_ring_low": _loss("ring_low", "rec"),
    "rec_ring_high": _loss("ring_high", "rec"),
    "rec_weight": _loss("weight", "rec"),
    "rec_temperature": _loss("temperature", "rec"),
    "rec_regularizer": _loss("regularizer", "rec"),
    "rec_regularizer_coef": _loss("regularizer_coef", "rec"),
    "mix_variant": _loss("variant", "mix"),
    "sft_phi": _loss("phi", "sft", "mix"),
    "sft_weight": _loss("weight", "mix"),
    "sft_schedule": _loss("schedule", "mix"),
    "sft_weight_peak": _loss("weight_peak", "mix"),
    "sft_weight_valley": _loss("weight_valley", "mix"),
    "sft_warmup_updates": _loss("warmup_updates", "mix"),
    "sft_decay_updates": _loss("decay_updates", "mix"),
    "gamma": _advantage("gamma", "agentic_reinforce", "reinforce", "reinforce++", "gae"),
    "lambd": _advantage("lambd", "gae"),
    "step_reward_gamma": _advantage("gamma", "step_reinforce", "gigpo"),
    "episode_reward_weight": _advantage("episode_weight", "gigpo"),
    "step_reward_weight": _advantage("step_weight", "gigpo"),
    "reward_grouping": _advantage("grouping", "gigpo", "step_reinforce"),
    "filter_mean_low": _filter("mean_band", "low"),
    "filter_mean_high": _filter("mean_band", "high"),
    "filter_min_std": _filter("min_std", "bound"),
}
"""Former keys of ``algorithm``, from before each function had keys of its own."""

FOREIGN_KEYS = MOVED | {
    # groups of keys
    "actor_rollout_ref": ForeignKey("verl", ("learner", "sidecar", "model"), _SPREAD),
    "custom_reward_function": ForeignKey("verl", ("tasks.train.NAME.rewards",)),
    "async_training": ForeignKey("verl", ("async_generation_ratio", "sync_interval")),
    "buffer": _trinity("tasks", "rollout_batch_size", "total_epochs"),
    "explorer_input": _trinity("tasks"),
    "taskset": _trinity("tasks.train", remark="or explorer.tasksets, for one explorer alone"),
    "trainer_input": _trinity(remark="experiences lie in the run's ledger"),
    "experience_buffer": _trinity(remark="experiences lie in the run's ledger"),
    "rollout_args": _trinity("sidecar.generating_args"),
    "rollout_model": _trinity("sidecar"),
    "cluster": _trinity("learner.devices", "sidecar.devices"),
    "synchronizer": _trinity("sync_method", "sync_interval", "async_generation_ratio"),
    "trainer": ForeignKey("Trinity-RFT or verl", ("learner",), _SPREAD),
    "advantage_fn_args": _trinity("algorithm.advantage"),
    "policy_loss_fn_args": _trinity("algorithm.loss"),
    "kl_loss_fn_args": _trinity("algorithm.kl"),
    "kl_penalty_fn_args": _trinity("algorithm.kl"),
    "entropy_loss_fn_args": _trinity("algorithm.entropy_coef"),
    "sample_strategy_args": _trinity("algorithm.drop_staler_than", "algorithm.expert_data_ratio"),
    "over_rollout": _trinity("rollout.train_env_manager.group_size_redundancy"),
    "actor_train": _roll("learner"),
    "actor_infer": _roll("sidecar"),
    "critic": _roll("algorithm.critic"),
    "training_args": _roll("learner.optimizer"),
    "model_args": _roll("model"),
    "strategy_args": _roll("learner.mesh", "sidecar"),
    "strategy_config": _roll("learner.mesh", "sidecar"),
    "data_args": _roll("tasks"),
    "train_env_manager": _roll("rollout.train_env_manager"),
    "val_env_manager": _roll("rollout.val_env_manager"),
    "env_config": _roll("custom_envs.NAME.kwargs"),
    "env_monitor": _roll("rollout.env_timeout", remark="an environment that hangs is replaced"),
    "validation": _roll("tasks.validation"),
    "rewards": _roll("tasks.train.NAME.rewards", remark="functions, not workers"),
    "reward_normalization": _roll(
        "algorithm.advantage.grouping", remark="of gigpo and step_reinforce; grpo compares within groups by itself"
    ),
    "train_infer_correction": _roll("algorithm.correction", remark="segment is turn"),
    "is_weight": _roll("algorithm.correction.mode", remark="truncate"),
    # in ROLL's lists, which no path leads into
    "agg_type": _roll("algorithm.correction.level", remark="segment is turn"),
    "ratio_enabled": _roll("algorithm.correction.mode", remark="mask"),
    "ratio_low": _roll("algorithm.correction.low"),
    "ratio_high": _roll("algorithm.correction.high"),
    "diff_enabled": _roll(remark=_RATIOS_ALONE),
    "diff_low": _roll(remark=_RATIOS_ALONE),
    "diff_high": _roll(remark=_RATIOS_ALONE),
    # the clip, which each program calls by a name of its own
    "eps_clip": _clip("OpenRLHF"),
    "eps_clip_low_high": _clip("OpenRLHF"),
    "eps_clip_high": _clip("slime", "high"),
    "accumulate_allreduce_grads_in_fp32": ForeignKey("Megatron", ("learner.reduce_dtype",), "fp32"),
    "grad_reduce_in_fp32": ForeignKey("Megatron", ("learner.reduce_dtype",), "fp32"),
    "exp_avg_dtype": ForeignKey("Megatron", ("learner.optimizer.mu_dtype",)),
    "exp_avg_sq_dtype": ForeignKey("Megatron", ("learner.optimizer.nu_dtype",)),
    "rollouter": ForeignKey("verl", ("explorer",)),
    "cliprange": _clip("TRL"),
    "cliprange_low": _clip("verl", "low"),
    "cliprange_high": _clip("verl", "high"),
    "clip_epsilon": _clip("TorchRL"),
}
"""Foreign keys by the last part of their path, beside those of the tables."""


def _switch(path: str) -> str:
    """Returns the name by which a switch is known, whoever's it is: of ``GROUP.enable`` the group's."""
    return path.removesuffix(".enable").rpartition(".")[2]


_HABITS = [(whose, answer) for whose, rows in HABITS.items() for row in rows for answer in row.answers()]
_RULES: list[tuple[str, Answer]] = [
    *((whose, rule) for whose, rules in TABLES.items() for rule in rules),
    *((whose, answer) for whose, answer in _HABITS if not answer.value),
    ("verl", Answer("data", ("tasks", "model", "rollout_batch_size"), _SPREAD, whole=True)),
]
_OF_VALUES = {
    (_switch(answer.path), answer.value.lower()): (whose, answer) for whose, answer in _HABITS if answer.value
}


def advice(dotted: str, name: str, prefix: str, keys: Collection[str], value: Any = None) -> str:
    """Returns what to write for a key that is another program's; empty where it is nobody's.

    Args:
        dotted: the whole path that was written.
        name: the part of it that there is not.
        prefix: what stands before that, with a dot behind; empty at the top.
        keys: paths of all that there are.
        value: what the key was given, as it is or as text; None where that is not known.
    """
    path = dotted.split(".")
    exact = [(whose, rule) for whose, rule in _RULES if rule.matches(path) is not None]
    if exact and (name not in FOREIGN_KEYS or (len(path) > 1 and name not in MOVED)):
        whose, rule = next((found for found in exact if found[1].here), exact[0])
        return _of_rule(whose, rule, prefix, name, keys, value)
    for whose, rule in _RULES:
        if rule.whole and not prefix and rule.matches(path[:1]) is not None:
            return _of_rule(whose, rule, prefix, name, keys, value)
    if name in FOREIGN_KEYS and path[-1] == name:
        return FOREIGN_KEYS[name].advice(prefix, keys)
    if path[-1] == name:  # a key that stands at the top there, of the group that it was written to
        for whose, rule in _RULES:
            if prefix and rule.matches([name]) is not None and any(key.startswith(prefix) for key in rule.here):
                return _of_rule(whose, rule, prefix, name, keys, value)
    ours = any(key.rpartition(".")[2] == path[-1] for key in keys)
    if found := _by_tail(path, prefix, ours, path[-1] == name):
        return _of_rule(*found, prefix, path[-1], keys, value)
    return FOREIGN_KEYS[name].advice(prefix, keys) if name in FOREIGN_KEYS else ""


def _by_tail(path: list[str], prefix: str, ours: bool, alone: bool) -> tuple[str, Answer] | None:
    """Finds the rule whose path ends most like the one that was written.

    Args:
        path: what was written.
        prefix: what of it there is, with a dot behind.
        ours: whether its last name is one of ours, elsewhere.
        alone: whether nothing but the last name is unknown.
    """
    best: tuple[tuple[int, bool, bool, bool, int], str, Answer] | None = None
    for whose, rule in _RULES:
        theirs = rule.path.split(".")
        same = next((n for n, (a, b) in enumerate(zip(reversed(path), reversed(theirs), strict=False)) if a != b), None)
        common = min(len(path), len(theirs)) if same is None else same
        if common == 0:
            continue
        group = rule.here[0].rpartition(".")[0] if rule.here else ""
        beside = bool(group) and fnmatchcase(prefix.rstrip("."), group.replace("NAME", "*"))
        if common == 1 and not beside and (not alone or (prefix and ours)):
            continue
        # of equals the program whose files are read here, and the policy
        rank = (
            common,
            whose in TABLES,
            beside or _of_group(theirs[0], prefix),
            theirs[0] != "critic",
            -len(theirs),
        )
        if best is None or rank > best[0]:
            best = rank, whose, rule
    return best and best[1:]


def _of_group(theirs: str, prefix: str) -> bool:
    """Returns whether a group of theirs is the one of ours that was written to."""
    return theirs in FOREIGN_KEYS and prefix.startswith(tuple(f"{here}." for here in FOREIGN_KEYS[theirs].here))


def _of_rule(whose: str, rule: Answer, prefix: str, name: str, keys: Collection[str], value: Any) -> str:
    written = "false" if str(value) == "0" else str(value).lower()
    whose, rule = _OF_VALUES.get((_switch(rule.path), written), (whose, rule))
    if rule.refused:
        return f"{whose} has it; {rule.remark}"
    if rule.here and rule.here[0].rpartition(".")[2] == name:
        return f"did you mean {_within(prefix, rule.here[0], keys)}?"
    return ForeignKey(whose, rule.here, rule.remark).advice(prefix, keys)
