"""Settings that all processes of a run must share before they use the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rljax.config.schema import Config


@dataclass(frozen=True)
class RunSpec:
    """Settings that all processes of a run must share."""

    seed: int
    group_size: int
    batch_groups: int
    alpha: float
    staleness_bound: int
    sync_interval: int
    max_steps: int
    total_epochs: int | None
    claim_timeout: float
    demonstrations: int = 0
    max_uses: int = 1
    reused_groups: int = 0
    fill_interval: bool = False

    MUTABLE: ClassVar[tuple[str, ...]] = ("max_steps", "total_epochs", "claim_timeout")
    KEYS: ClassVar[dict[str, str]] = {
        "batch_groups": "rollout_batch_size / group_size",
        "alpha": "async_generation_ratio",
        "staleness_bound": "max_staleness",
        "claim_timeout": "rollout.claim_timeout",
        "max_uses": "algorithm.max_uses",
        "reused_groups": "reused groups of a step (rollout_batch_size / group_size and algorithm.reuse_ratio)",
        "demonstrations": "demonstrations of a step (rollout_batch_size and algorithm.expert_data_ratio)",
    }

    @classmethod
    def of(cls, config: Config) -> RunSpec:
        """Returns the shared part of a config."""
        return cls(
            seed=config.seed,
            group_size=config.group_size,
            batch_groups=config.groups_per_batch,
            alpha=config.async_generation_ratio,
            staleness_bound=config.staleness_bound,
            sync_interval=config.sync_interval,
            max_steps=config.max_steps,
            total_epochs=config.total_epochs,
            claim_timeout=config.rollout.claim_timeout,
            demonstrations=config.demonstrations_per_batch,
            max_uses=config.algorithm.max_uses,
            reused_groups=config.reused_per_batch,
            fill_interval=config.fill_interval,
        )

    def demonstrated_at(self, step: int) -> range:
        """Returns the positions of the demonstrations that a step trains: each is trained once, so no row has it."""
        return range(step * self.demonstrations, (step + 1) * self.demonstrations)
