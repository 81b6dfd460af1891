"""Translates the adapters (LoRA) of ROLL's and Trinity-RFT's files."""

from __future__ import annotations

from typing import Any

from rljax.config.importers.rule import LEFT_OUT, Found, Refusal, Values

KEYS = ("model.lora.rank", "model.lora.alpha", "model.lora.targets")
_ARGS = "actor_train.model_args"


def of_roll(found: Found) -> Values:
    """Translates ``lora_rank``, ``lora_alpha`` and ``lora_target``, without which ROLL adapts nothing."""
    document = found.document
    if document.given(f"{_ARGS}.lora_target") is LEFT_OUT:
        raise Refusal("without lora_target ROLL has no adapter; write it, or leave this out", *KEYS)
    rank = int(document.number(f"{_ARGS}.lora_rank", 8))
    alpha = float(document.number(f"{_ARGS}.lora_alpha", 2 * rank))
    targets = _targets(document.get(f"{_ARGS}.lora_target"), f"{_ARGS}.lora_target")
    return dict(zip(KEYS, (rank, alpha, targets), strict=True))


def of_trinity(found: Found) -> Values | str:
    """Translates ``lora_configs``: a list of one, whose rank and alpha are 32 where it does not say them."""
    if found.value == []:
        return "all weights are trained"
    if not isinstance(found.value, list) or len(found.value) > 1 or not isinstance(found.value[0], dict):
        raise Refusal("one adapter is trained; write a list of one, or --config.model.lora.rank", *KEYS)
    (given,) = found.value
    if unread := sorted(set(given) - {"name", "lora_rank", "lora_alpha", "target_modules"}):
        near = "; a directory of PEFT's is --config.model.path" * ("path" in unread)
        raise Refusal(f"{unread[0]} is not translated: leave it out{near}", *KEYS)
    rank, alpha = given.get("lora_rank", 32), given.get("lora_alpha", 32)
    targets = _targets(given.get("target_modules", "all-linear"), found.path)
    return dict(zip(KEYS, (rank, float(alpha) if isinstance(alpha, int) else alpha, targets), strict=True))


def _targets(value: Any, path: str) -> tuple[str, ...]:
    """Returns the names of matrices, which PEFT takes as a text with commas or as a list."""
    named = value.split(",") if isinstance(value, str) else value
    if not isinstance(named, list) or not all(isinstance(one, str) and one.strip() for one in named):
        raise Refusal("write q_proj,v_proj, or all-linear", "model.lora.targets", of=path)
    return tuple(one.strip() for one in named)
