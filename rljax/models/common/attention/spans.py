"""Spans of keys that queries see: the segments of packed rows in one integer a query."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int


class Spans(NamedTuple):
    """Keys that each query sees: those from `first` to `last`, both included, counted through the whole row.

    They say the same of a row that is cut over devices, where a device holds some of its queries and all of its keys.

    Attributes:
        first, last: none is seen where the first comes after the last.
        before: what is seen besides: a prompt that several segments share, which comes earlier in the row. None where
            nothing is shared.
    """

    first: Int[Array, "batch queries"]
    last: Int[Array, "batch queries"]
    before: Spans | None = None

    def within(self, window: int | Int[Array, ""]) -> Spans:
        """Returns what the queries see through a sliding window: of those keys the last `window`, their own among them.

        Args:
            window: in tokens; 0: all keys, where it is no array.
        """
        if isinstance(window, int) and not window:
            return self
        first, before = jnp.maximum(self.first, self.last - window + 1), self.before
        if before is not None:
            left = window - (self.last - self.first + 1)
            before = Spans(jnp.maximum(before.first, before.last - left + 1), before.last)
        return Spans(first, self.last, before)

    def visible(self, keys: Int[Array, " keys"]) -> Bool[Array, "batch queries keys"]:
        """Returns which of these keys each query sees."""
        seen = (keys >= self.first[..., None]) & (keys <= self.last[..., None])
        return seen if self.before is None else seen | self.before.visible(keys)


def causal_spans(segment_ids: Int[Array, "batch time"], shared: Int[Array, "batch time 2"] | None = None) -> Spans:
    """Returns what tokens see that attend causally within segments, each of which is one stretch of its row.

    Tokens of segment 0, padding, see themselves alone: so blocks of padding cost next to nothing.

    Args:
        segment_ids: of the tokens.
        shared: first and last place of a prompt that each token's segment continues; see `Batch.shared`.
    """
    places = jnp.broadcast_to(jnp.arange(segment_ids.shape[1], dtype=jnp.int32), segment_ids.shape)
    begins = segment_ids[:, 1:] != segment_ids[:, :-1]
    first = lax.cummax(jnp.where(jnp.pad(begins, ((0, 0), (1, 0))), places, 0), axis=1)
    before = None if shared is None else Spans(shared[..., 0], shared[..., 1])
    return Spans(jnp.where(segment_ids == 0, places, first), places, before)
