"""Models of known sizes, and what is estimated of their update."""

from __future__ import annotations

from typing import Any

from rljax.config.schema import (
    Config,
    LearnerConfig,
    LoraConfig,
    MeshConfig,
    ModelConfig,
    PlanConfig,
    TasksConfig,
    TasksetConfig,
)
from rljax.models.common.architecture import Architecture
from rljax.pipeline.plan.estimate import Estimate
from rljax.pipeline.plan.targets import GIB, Target, find_target

SEVEN = Architecture("qwen2", 152064, 3584, 18944, 28, 28, 4, 128, attention_bias=True, max_position_embeddings=32768)
THIRTY_TWO = Architecture("qwen3", 151936, 5120, 25600, 64, 64, 8, 128, qk_norm=True, max_position_embeddings=40960)
ONE_AND_A_HALF = Architecture(
    "qwen2", 151936, 1536, 8960, 28, 12, 2, 128, tie_embeddings=True, attention_bias=True, max_position_embeddings=32768
)
HALF = Architecture("qwen2", 151936, 896, 4864, 24, 14, 2, 64, tie_embeddings=True, attention_bias=True)


def estimated(
    architecture: Architecture,
    mesh: dict[str, int],
    rows: int,
    row: int,
    remat: str = "full",
    chunk: int = 1024,
    share: float | None = None,
    platform: str = "gpu",
    dtype: str = "bf16",
    batch: int = 1024,
    rank: int | None = None,
    **keys: Any,
) -> Estimate:
    half = row // 2
    config = Config(
        rollout_batch_size=batch,
        group_size=4,
        model=ModelConfig(
            dtype=dtype,
            remat=remat,
            max_prompt_tokens=half,
            max_response_tokens=half,
            logprob_chunk=chunk,
            lora=LoraConfig(rank=rank),
        ),
        learner=LearnerConfig(rows_per_microbatch=rows, mesh=MeshConfig(**mesh), gpu_memory_utilization=share),
        tasks=TasksConfig(train={"t": TasksetConfig(source="reverse_digits")}),
        **keys,
    )
    return Estimate(config, architecture, config.learner.mesh, platform)


def target_named(name: str, **learner: Any) -> Target:
    tasks = TasksConfig(train={"t": TasksetConfig(source="reverse_digits")})
    return find_target(Config(plan=PlanConfig(target=name), learner=LearnerConfig(**learner), tasks=tasks))


class Device:
    """What JAX says of a device that is not here."""

    id = 0

    def __init__(self, platform: str, kind: str, gib: float | None, coords: tuple[int, ...] | None = None) -> None:
        self.platform, self.device_kind, self.coords = platform, kind, coords
        self.memory_stats = lambda: {"bytes_limit": gib * GIB} if gib else None
