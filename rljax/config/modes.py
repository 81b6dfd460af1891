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
    from_run: str | None = key(
        None,
        "directory of a run, or name in runs/: its figures are those not given below, and what it took is compared",
    )
    learner_tokens_per_second: float | None = key(
        None, "tokens, those of prompts too, that the learner trains in a second", low=0, low_open=True
    )
    engine_tokens_per_second: str | None = key(
        None, "tokens that one engine samples in a second: 1400, or by the requests that it runs, 1:40,16:500,64:1400"
    )
    prompt_tokens: float | None = key(
        None, "tokens of an attempt that are trained with it and not sampled; None: model.max_prompt_tokens", low=0
    )
    response_tokens: float | None = key(None, "mean length of a reply; None: model.max_response_tokens", low=1)
    response_tokens_std: float = key(0.0, "standard deviation of that; lengths are log-normal", low=0)
    turns: float | None = key(None, "replies in an attempt; None: the most that there may be", low=1)
    environment_seconds: float | None = key(
        None, "mean seconds of environment or reward behind a reply; None: 0", low=0
    )
    environment_seconds_std: float = key(0.0, "standard deviation of that; seconds are normal, and not below 0", low=0)
    publish_seconds: float | None = key(None, "seconds until a version is announced; None: 0", low=0)
    load_seconds: float | None = key(None, "seconds that an engine stands still to load a version; None: 0", low=0)
    steps: int = key(24, "steps that are counted of each simulated run", low=2, high=1000)
