"""Translates ROLL's objective: estimator and loss, the divergence, normalised rewards, the correction."""

from __future__ import annotations

from typing import Any

from rljax.config.importers.rule import Document, Found, Refusal, Values


def kl(found: Found) -> Values | str:
    """Translates where the divergence is taken from, how it is estimated and weighed: one of ROLL's two places."""
    get = found.document.get
    loss, reward = bool(get("use_kl_loss")), bool(get("add_token_level_kl"))
    if loss and reward:
        raise Refusal(
            "the divergence is taken from the loss or from the reward; write one of the two", "algorithm.kl.where"
        )
    if not (loss or reward):
        return "neither use_kl_loss nor add_token_level_kl asks for it"
    if loss:
        values = {"where": "loss", "estimator": "k3_clamped", "coef": get("kl_loss_coef", 0.0)}
    else:
        estimators = {"kl": "k1", "mse": "k2"}
        named = get("kl_penalty", "kl")
        if named not in estimators:
            raise Refusal("there is no such estimator; write --config.algorithm.kl.estimator", "algorithm.kl.estimator")
        values = {"where": "reward", "estimator": estimators[named], "coef": get("init_kl_coef", 0.2)}
        if get("target_kl") is not None:
            values |= {"target": get("target_kl"), "horizon": get("kl_horizon", 10_000)}
    return {f"algorithm.kl.{name}": value for name, value in values.items()}


def loss_name(document: Document) -> str:
    """Returns the name of the policy loss, which is ours too."""
    return str(document.get("actor_train.pg_variant", "ppo"))


def clip(found: Found) -> Values | str:
    """Translates the bounds of the ratio, of a loss that has some: ``pg_clip``, or two where ``use_pg_clip_range``."""
    get = found.document.get
    if get("actor_train.pg_variant", "ppo") != "ppo":
        return "only ppo clips the ratio by it"
    ranged = bool(get("use_pg_clip_range"))
    if found.path in ("pg_clip_low", "pg_clip_high") and not ranged:
        return "use_pg_clip_range is off"
    if found.path == "pg_clip" and ranged:
        return "use_pg_clip_range is on"
    low, high = (get("pg_clip_low"), get("pg_clip_high")) if ranged else (get("pg_clip"),) * 2
    values = {"algorithm.loss.clip_low": low, "algorithm.loss.clip_high": high}
    return values | ({"algorithm.loss.dual_clip": 1 + 2 * get("pg_clip")} if get("dual_clip_loss") else {})


def of_estimator(key: str, *names: str) -> Any:
    """Returns the function of a key that the estimators of these names alone have."""

    def make(found: Found) -> Values | str:
        named = found.document.get("adv_estimator")
        return {f"algorithm.advantage.{key}": found.value} if named in names else f"{named} has none"

    return make


def normalization(found: Found) -> Values | str:
    """Translates ``reward_normalization`` of agentic files, and ``norm_*_type``: over what rewards are compared."""
    get = found.document.get
    grouping, method = get("reward_normalization.grouping", "batch"), get("reward_normalization.method", "identity")
    named = {"traj_group_id": "group", "tags": "tag", "batch": "batch"}
    if grouping not in named:
        raise Refusal("write traj_group_id, tags or batch, or --config.algorithm.norm_mean", "algorithm.norm_mean")
    if method not in ("identity", "mean", "mean_std"):
        raise Refusal("write identity, mean or mean_std, or --config.algorithm.norm_mean", "algorithm.norm_mean")
    estimator, within = get("adv_estimator"), named[grouping]
    if estimator == "grpo":
        return "grpo compares the members of a group by itself"
    if estimator in ("gigpo", "step_reinforce"):
        return {"algorithm.advantage.grouping": within}
    mean = within if get("reward_normalization.norm_mean_type") or method.startswith("mean") else None
    std = within if get("reward_normalization.norm_std_type") or method == "mean_std" else None
    return {"algorithm.norm_mean": mean, "algorithm.norm_std": std}


def of_rewards(key: str) -> Any:
    """Returns the function of ``norm_mean_type`` or ``norm_std_type``."""

    def make(found: Found) -> Values | str:
        if found.document.get("adv_estimator") == "grpo":
            return "grpo compares the members of a group by itself"
        if found.value not in (None, "batch", "group", "running"):
            raise Refusal("write batch, group or running", f"algorithm.{key}")
        return {f"algorithm.{key}": found.value}

    return make


def correction(found: Found) -> Values | str:
    """Translates ``train_infer_correction``: a truncated weight, or one filter that masks."""
    get = found.document.get
    levels = {"token": "token", "segment": "turn", "geometric": "geometric", "sequence": "sequence"}
    given = get("train_infer_correction.filters", []) or []
    acts = [one for one in given if one.get("enabled") and (one.get("ratio_enabled", True) or one.get("diff_enabled"))]
    filters = acts
    weighs = bool(get("train_infer_correction.is_weight.enabled"))
    if len(filters) + weighs > 1 or any(one.get("diff_enabled") for one in filters):
        raise Refusal(
            "one weight or one filter by ratios; write --config.algorithm.correction", "algorithm.correction.*"
        )
    if weighs:
        level = levels[get("train_infer_correction.is_weight.weight_type", "token")]
        values = {"level": level, "mode": "truncate"}
        values["high"] = get("train_infer_correction.is_weight.upper_bound", 1.2)
    elif filters:
        values = {"level": levels[filters[0].get("agg_type", "token")], "mode": "mask"}
        values |= {"low": filters[0].get("ratio_low", 0.8), "high": filters[0].get("ratio_high", 1.2)}
    else:
        return "it is off"
    return {f"algorithm.correction.{key}": value for key, value in values.items()}


def of_critic(key: str) -> Any:
    """Returns the function of a key of the critic's optimizer."""

    def make(found: Found) -> Values | str:
        if found.document.get("adv_estimator") != "gae":
            return "there is no critic, unless adv_estimator is gae"
        return {f"algorithm.critic.optimizer.{key}": found.value}

    return make
