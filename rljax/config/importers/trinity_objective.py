"""Translates Trinity-RFT's objective: its algorithms, the functions that they name, and the optimizer's schedule."""

from __future__ import annotations

from typing import Any

from rljax.config.importers.rule import LEFT_OUT, Document, Found, Refusal, Values, no_choice
from rljax.config.importers.trinity_values import known_steps

_K2 = {"kl.where": "loss", "kl.estimator": "k2", "kl.coef": 0.001}
_PPO = {"pg_variant": "ppo", "loss.dual_clip": 3.0}
_GAE = {"adv_estimator": "gae", "advantage.gamma": 1.0, "advantage.lambd": 1.0, "whiten_advantages": True}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {**_GAE, **_PPO, **_K2},
    "grpo": {"adv_estimator": "grpo", **_PPO, **_K2},
    "dapo": {"adv_estimator": "grpo", "pg_variant": "dapo"},
    "reinforceplusplus": {"adv_estimator": "reinforce++", **_PPO, **_K2},
    "rloo": {"adv_estimator": "rloo", **_PPO, **_K2},
    "opmd": {**_K2, "adv_estimator": "opmd_mean", "pg_variant": "opmd"},
    "asymre": {"adv_estimator": "grpo", "pg_variant": "asymre"},
    "topr": {**_K2, "adv_estimator": "reinforce", "pg_variant": "topr"},
    "cispo": {**_K2, "adv_estimator": "grpo", "pg_variant": "cispo"},
    "gspo": {**_K2, "adv_estimator": "grpo", "pg_variant": "gspo", "aggregation": "seq-mean-token-mean"},
    "sapo": {**_K2, "adv_estimator": "grpo", "pg_variant": "sapo"},
    "sppo": {"adv_estimator": "opmd_mean", "pg_variant": "sppo"},
    "rec": {"adv_estimator": "dr_grpo", "pg_variant": "rec"},
}
_LOSSES: dict[str, dict[str, Any]] = {
    "ppo": _PPO,
    **{name: {"pg_variant": name} for name in ("gspo", "cispo", "sapo", "sppo", "opmd", "topr", "rec")},
}
_ADVANTAGES: dict[str, dict[str, Any]] = {
    "grpo": {"adv_estimator": "grpo"},
    "rloo": {"adv_estimator": "rloo"},
    "opmd": {"adv_estimator": "opmd_mean"},
    "ppo": _GAE,
    "reinforceplusplus": {"adv_estimator": "reinforce++"},
    "remax": {"adv_estimator": "remax"},
}
_KL = {"none": None, "k1": "k1", "k2": "k2", "k3": "k3", "low_var_kl": "k3_clamped"}
_OTHERS = {
    "advantage_fn": ("adv_estimator", "advantage.", "whiten_advantages"),
    "advantage_fn_args.gamma": ("advantage.gamma",),
    "advantage_fn_args.lam": ("advantage.lambd",),
    "policy_loss_fn": ("pg_variant", "loss."),
    "policy_loss_fn_args.clip_ratio_c": ("loss.dual_clip",),
    "kl_loss_fn": ("kl.",),
    "kl_loss_fn_args.kl_coef": ("kl.coef",),
    "loss_agg_mode": ("aggregation",),
}
"""Keys, or beginnings of keys, of an algorithm that another key of the file says in its place."""


def algorithm(found: Found) -> Values:
    """Translates ``algorithm_type``: estimator, loss and divergence at once, but for what the file says itself."""
    if found.value not in ALGORITHMS:
        unknown = no_choice(found.value, ALGORITHMS, "algorithm.adv_estimator", "algorithm.pg_variant")
        raise Refusal(
            f"{unknown}; its divergence is --config.algorithm.kl.where, without which there is none",
            *unknown.keys,
            near=unknown.near,
        )
    return _left(ALGORITHMS[found.value], found.document)


def _left(values: Values, document: Document, *its: str) -> Values:
    """Returns our keys of a function without those that others than ``its`` keys of the file say."""
    said = [
        begin
        for path, begins in _OTHERS.items()
        if path not in its and document.given(f"algorithm.{path}") is not LEFT_OUT
        for begin in begins
    ]
    return {f"algorithm.{key}": value for key, value in values.items() if not key.startswith(tuple(said))}


def _whole(document: Document) -> dict[str, Any]:
    named = document.get("algorithm.algorithm_type")
    return ALGORITHMS.get(named, {}) if isinstance(named, str) else {}


def estimator(document: Document) -> str:
    """Returns our name of the estimator of a file."""
    named = str(document.get("algorithm.advantage_fn"))
    return str(_ADVANTAGES.get(named, _whole(document)).get("adv_estimator", "grpo"))


def loss_name(document: Document) -> str:
    """Returns our name of the policy loss of a file."""
    named = str(document.get("algorithm.policy_loss_fn"))
    return str(_LOSSES.get(named, _whole(document)).get("pg_variant", "ppo"))


def _named(key: str, path: str, table: dict[str, dict[str, Any]]) -> Any:
    def make(found: Found) -> Values:
        if found.value not in table:
            raise no_choice(found.value, table, key)
        return _left(table[found.value], found.document, path)

    return make


advantage = _named("algorithm.adv_estimator", "advantage_fn", _ADVANTAGES)
loss = _named("algorithm.pg_variant", "policy_loss_fn", _LOSSES)


def kl(found: Found) -> Values | str:
    """Translates ``kl_loss_fn`` and ``kl_penalty_fn``: the estimator, and what the divergence is taken from."""
    where = "loss" if "kl_loss_fn" in found.path else "reward"
    if found.value not in _KL:
        unknown = no_choice(found.value, _KL, "algorithm.kl.estimator")
        raise Refusal(f"{unknown} and --config.algorithm.kl.where={where}", *unknown.keys, near=unknown.near)
    if found.value == "none":
        other = found.beside("kl_penalty_fn" if where == "loss" else "kl_loss_fn", "none")
        return {"algorithm.kl.where": "none"} if where == "loss" and other == "none" else "it is off"
    coef = found.beside(f"{found.path.rpartition('.')[2]}_args.kl_coef", 0.001)
    return {"algorithm.kl.where": where, "algorithm.kl.estimator": _KL[found.value], "algorithm.kl.coef": coef}


def kl_coef(found: Found) -> Values | str:
    """Translates ``kl_coef`` of the divergence in the loss or in the reward, where there is that one."""
    path = found.path.rpartition(".")[0].removesuffix("_args")
    named = found.document.get(path)
    if named is None:
        named = "k2" if path.endswith("kl_loss_fn") and "kl.where" in _whole(found.document) else "none"
    return "there is no such divergence" if named == "none" else {"algorithm.kl.coef": found.value}


_HORIZON = "the size of the data is not known before they are read; write buffer.total_steps, or --config."


def warmup_ratio(found: Found) -> Values | str:
    """Translates ``lr_warmup_steps_ratio``, a share of steps that must be known."""
    if not found.value:
        return "it is 0"
    if (steps := known_steps(found.document)) is None:
        key = "learner.optimizer.warmup_steps"
        raise Refusal(f"{_HORIZON}{key}", key)
    return {"learner.optimizer.warmup_steps": round(found.value * steps)}


def schedule(found: Found) -> Values:
    """Translates ``lr_scheduler_type`` and ``warmup_style``; a decay ends with steps that must be known."""
    if found.value not in ("constant", "linear", "cosine"):
        raise no_choice(found.value, ("constant", "linear", "cosine"), "learner.optimizer.schedule")
    if found.value != "constant" and known_steps(found.document) is None:
        raise Refusal(f"{_HORIZON}max_steps and learner.optimizer.schedule", "learner.optimizer.schedule")
    return {"learner.optimizer.schedule": found.value}


def least_rate(found: Found) -> Values | str:
    """Translates ``min_lr_ratio``, to which a decay leads."""
    get = found.document.get
    named = get("algorithm.optimizer.warmup_style") or get("algorithm.optimizer.lr_scheduler_type", "constant")
    return "there is no decay" if named == "constant" else {"learner.optimizer.min_lr_ratio": found.value}
