"""Random masked batches in float64, and the inputs of losses made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from rljax.algorithms.inputs import LossInputs

ROWS, TIME = 3, 10
FLOATS = (
    "logprobs",
    "behaviour_logprobs",
    "advantages",
    "rewards",
    "proximal_logprobs",
    "reference_logprobs",
    "sequence_gap",
    "group_gap",
)


@dataclass(frozen=True)
class Cells:
    """Float64 arrays named as in `LossInputs`; what is not trained holds nonsense."""

    logprobs: np.ndarray
    behaviour_logprobs: np.ndarray
    advantages: np.ndarray
    rewards: np.ndarray
    proximal_logprobs: np.ndarray
    reference_logprobs: np.ndarray
    sequence_gap: np.ndarray
    group_gap: np.ndarray
    mask: np.ndarray
    segment_ids: np.ndarray
    turn_ids: np.ndarray
    expert: np.ndarray
    weights: np.ndarray
    updates: int = 0

    def inputs(self, logprobs: Any = None, expert: bool = False, **changes: Any) -> LossInputs:
        """What a loss sees; call it where 64 bits are on."""
        floats = {name: jnp.asarray(getattr(self, name)) for name in FLOATS}
        if logprobs is not None:
            floats["logprobs"] = logprobs
        return LossInputs(
            **{
                **floats,
                "mask": jnp.asarray(self.mask),
                "segment_ids": jnp.asarray(self.segment_ids, jnp.int32),
                "turn_ids": jnp.asarray(self.turn_ids, jnp.int32),
                "updates": jnp.asarray(self.updates, jnp.int32),
                "expert": jnp.asarray(self.expert) if expert else None,
                **changes,
            }
        )


def random_cells(seed: int, density: float = 0.7, scale: float = 0.3, longest: int = 5) -> Cells:
    """Sequences of one to ``longest`` places, cut into turns; ``scale`` is how far the policies are apart."""
    rng = np.random.default_rng(seed)
    shape = (ROWS, TIME)
    segments, turns = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for row in range(ROWS):
        ends = np.cumsum(rng.integers(1, longest + 1, TIME))
        segments[row] = 1 + np.searchsorted(ends, np.arange(TIME), side="right")
        turns[row] = rng.integers(0, 1000) + np.cumsum(rng.random(TIME) < 0.4)
    mask = rng.random(shape) < density
    behaviour = -rng.exponential(1.0, shape)
    near = lambda size: behaviour + rng.normal(0, size, shape)  # noqa: E731
    floats = {
        "logprobs": near(scale),
        "behaviour_logprobs": behaviour,
        "advantages": rng.normal(0, 1, shape) * (rng.random(shape) > 0.1),
        "rewards": rng.integers(-1, 2, shape).astype(float),
        "proximal_logprobs": near(scale),
        "reference_logprobs": near(scale),
        "sequence_gap": rng.normal(0, scale, shape),
        "group_gap": rng.normal(0, scale, shape),
    }
    nonsense = rng.choice([np.nan, np.inf, -np.inf, 1e30], shape)
    floats = {name: np.where(mask, values, nonsense) for name, values in floats.items()}
    return Cells(
        **floats,
        mask=mask,
        segment_ids=np.where(mask, segments, rng.integers(0, 9, shape)),
        turn_ids=np.where(mask, turns, rng.integers(0, 9, shape)),
        expert=rng.random(shape) < 0.4,
        weights=rng.random(shape),
        updates=int(rng.integers(0, 700)),
    )


def batches() -> st.SearchStrategy[Cells]:
    """From nothing trained to everything, from policies that hardly differ to some that have little in common.

    What tells most comes first, since hypothesis begins there.
    """
    return st.builds(
        random_cells,
        st.integers(0, 2**32 - 1),
        st.sampled_from([0.7, 1.0, 0.2, 0.0]),
        st.sampled_from([0.3, 1.5, 0.001]),
        st.sampled_from([5, 2 * TIME, 1]),
    )
