"""`sidecar.update_policy=pin`: how many versions engines hold, and what it needs."""

from __future__ import annotations

from typing import Any

import pytest

from rljax.config.fields import ConfigError
from rljax.config.model import LoraConfig
from rljax.config.schema import Config, ModelConfig, SidecarConfig, TasksConfig, TasksetConfig
from rljax.config.validate_placement import versions_held


def pinned(engine: str = "embedded", rank: int | None = 4, policy: str = "pin", **changes: Any) -> Config:
    return Config(
        model=ModelConfig(lora=LoraConfig(rank=rank)),
        sidecar=SidecarConfig(engine=engine, update_policy=policy),
        tasks=TasksConfig(train={"sums": TasksetConfig(source="add_numbers", rewards=("exact",))}),
        **changes,
    )


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ({"async_generation_ratio": 0.0}, 1),
        ({"async_generation_ratio": 2.0}, 3),
        ({"async_generation_ratio": 1.5, "sync_interval": 2}, 4),
        ({"async_generation_ratio": 1.0, "max_staleness": 5}, 6),
        ({"mode": "explore", "async_generation_ratio": 1.0}, 2),
        ({"mode": "serve", "async_generation_ratio": 1.0}, 0),
        ({"mode": "evaluate", "async_generation_ratio": 1.0}, 0),
        ({"policy": "in_flight", "async_generation_ratio": 1.0}, 0),
    ],
)
def test_as_many_versions_are_held_as_may_be_in_use(changes: dict[str, Any], held: int) -> None:
    assert versions_held(pinned(**changes)) == held


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"rank": None},
            "as adapters of one model, and there is none; write model.lora.rank=16, say, or one of in_flight, keep_kv",
        ),
        (
            {"rank": 600, "engine": "vllm"},
            "=vllm holds adapters up to rank 512, and model.lora.rank is 600",
        ),
        ({"sync_method": "nccl", "engine": "vllm_async"}, "with sync_method=nccl the learner sends merged models"),
    ],
)
def test_what_cannot_hold_several_is_refused_in_one_line(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        pinned(**changes)
    message = str(refused.value)
    assert message.startswith("sidecar.update_policy=pin: ")
    assert line in message
    assert "\n" not in message


def test_the_embedded_engine_takes_any_rank() -> None:
    assert versions_held(pinned(rank=600)) == 2
