"""Sampling parameters of the config."""

from __future__ import annotations

from dataclasses import dataclass

from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class GeneratingConfig:
    """Sampling parameters of generation."""

    temperature: float = key(1.0, "divides the logits, 0.01 or more; 0 (greedy) is for validation only", low=0)
    top_p: float = key(1.0, "nucleus mass; 1: untruncated", low=0, high=1, low_open=True)
    top_k: int = key(0, "candidates; 0: untruncated", low=0)
    min_p: float = key(
        0.0, "validation by vllm: least share of the likeliest candidate's probability; 0: untruncated", low=0, high=1
    )
    repetition_penalty: float = key(
        1.0, "validation by vllm: makes tokens that were there less likely; 1: none", low=0, low_open=True
    )
    max_new_tokens: int | None = key(None, "budget of one turn; None: model.max_response_tokens", low=1)
    stop: tuple[str, ...] = key((), "strings that end a turn; tokens are never trimmed")
