"""rljax: asynchronous reinforcement learning of language models, with a Flax learner and engines that generate ahead.

Importing this package starts nothing and touches no accelerator; `Run` brings the rest in when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rljax.config.schema import rules as config_rules

if TYPE_CHECKING:
    from rljax.config.schema import Config
    from rljax.run import Run

__all__ = ["Run", "load_config"]


def load_config(path: str, **overrides: Any) -> Config:
    """Loads ``FILE.py[:arg]``; overrides are given by dotted key: ``load_config(path, **{"learner.mesh.data": 2})``.

    Raises:
        rljax.config.validate.ConfigError: an unknown key, a wrong type or an impossible combination.
    """
    from rljax.config import load

    return load.load_config(path, overrides)


def __getattr__(name: str) -> Any:
    if name == "Run":
        from rljax.run import Run

        return Run
    raise AttributeError(f"module 'rljax' has no attribute {name!r}")
