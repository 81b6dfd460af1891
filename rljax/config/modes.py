"""Keys of ``mode=play`` and ``mode=plan``."""

from __future__ import annotations

from dataclasses import dataclass

from rljax.config.fields import key


@dataclass(frozen=True, kw_only=True)
class PlayConfig:
    """Keys of ``mode=play``: the player and the environment."""

    tag: str | None = key(None, "environment in custom_envs; None: the first of an env manager's")
    agent: str = key("human", "who plays; model: config.checkpoint", choices=("human", "scripted", "random", "model"))
    episodes: int = key(1, "held-out seeds to play", low=1)


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """Keys of ``mode=plan``."""

    target: str = key(
        "here", "devices: here | CHIP:SHAPE, CHIP as in rljax/config/chips.py, SHAPE such as 8, 4x4, 2x2x1"
    )
    all_shapes: bool = key(False, "compile what only batches of unlikely shapes need, as a run on accelerators does")
