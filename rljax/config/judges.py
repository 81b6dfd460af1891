"""The section ``judges`` of the config: models that score responses, each on engines of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rljax.config.engines import ENGINES
from rljax.config.fields import key
from rljax.config.generating import GeneratingConfig

ASKS_JUDGES = "llm_judge"
"""Name of the reward that asks a judge."""


@dataclass(frozen=True, kw_only=True)
class JudgeConfig:
    """A judge: a model whose weights stay as they are. Its name is its key in `judges`; ``llm_judge`` asks it."""

    path: str = key("", "directory | hub id | smollm2-135m | tiny")
    dtype: str = key("fp32", "of weights, computation and cache", choices=("fp32", "bf16"))
    max_prompt_tokens: int = key(2048, "a longer question is not judged: its trajectory fails", low=1)
    max_response_tokens: int = key(256, "budget of the judge's reply", low=1)
    engine: str = key("embedded", "as sidecar.engine, on one device", choices=tuple(ENGINES))
    num_engines: int = key(1, "engines of this judge, of each explorer", low=1)
    devices: str = key(
        "auto",
        "like sidecar.devices; auto: what learner and engines leave; embedded, where none is left: the engines'",
    )
    max_concurrency: int = key(32, "requests that one engine runs at once", low=1)
    gpu_memory_utilization: float | None = key(
        None, "vllm: share of a GPU's memory; None: 0.9", low=0, high=1, low_open=True
    )
    engine_args: Mapping[str, Any] = key({}, "vllm: further arguments of EngineArgs, by name")
    system_prompt: str | None = key(None, "system message, where the chat template has one")
    template: str | None = key(
        None, "message to it; {question}, {answer} and {response} are replaced; None: asks for [[0]] to [[10]]"
    )
    chat_template: str | None = key(None, "as model.chat_template, of the judge")
    enable_thinking: bool | None = key(
        None, "as model.enable_thinking: a judge that thinks may spend max_response_tokens without a rating"
    )
    generating_args: GeneratingConfig = field(default_factory=lambda: GeneratingConfig(temperature=0.0))
