"""Spans of keys that queries see: the segments of packed rows in one integer a query."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int


class Spans(NamedTuple):
    """Keys that each query sees: those from `first` to `last`, both included, counted through the whole row.

    They say the same of a row that is cut over devices, where a device holds some of its queries and all of its keys.
    """

    first: Int[Array, "batch queries"]
    last: Int[Array, "batch queries"]

    def within(self, window: int | Int[Array, ""]) -> Spans:
        """Returns what the queries see through a sliding window: of those keys the last `window`, their own among them.

        Args:
            window: in tokens; 0: all keys, where it is no array.
        """
        if isinstance(window, int) and not window:
            return self
        return Spans(jnp.maximum(self.first, self.last - window + 1), self.last)

    def visible(self, keys: Int[Array, " keys"]) -> Bool[Array, "batch queries keys"]:
        """Returns which of these keys each query sees."""
        return (keys >= self.first[..., None]) & (keys <= self.last[..., None])


def causal_spans(segment_ids: Int[Array, "batch time"]) -> Spans:
    """Returns what tokens see that attend causally within segments, each of which is one stretch of its row.

    Tokens of segment 0, padding, see themselves alone: so blocks of padding cost next to nothing.
    """
    places = jnp.broadcast_to(jnp.arange(segment_ids.shape[1], dtype=jnp.int32), segment_ids.shape)
    begins = segment_ids[:, 1:] != segment_ids[:, :-1]
    first = lax.cummax(jnp.where(jnp.pad(begins, ((0, 0), (1, 0))), places, 0), axis=1)
    return Spans(jnp.where(segment_ids == 0, places, first), places)
