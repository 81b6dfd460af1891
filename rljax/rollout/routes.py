"""Experts that engines recorded for the tokens of a sequence, of all passes that read it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sidecar.protocol import UNKNOWN_ROUTE


def join_routes(parts: Sequence[tuple[int, np.ndarray | None]]) -> np.ndarray | None:
    """Joins what several passes recorded that sampled one sequence, each where the one before it had ended.

    A pass sampled from all that lay before it: from the last token of the pass before, which nobody had read, to its
    own last but one. These tokens have what it recorded, -1 where that is nothing, whatever a later pass has recorded
    that read them again: what was sampled from them came of experts that nobody knows. The first pass sampled from the
    prompt too.

    Args:
        parts: of each pass the length of the sequence at its end, and the experts of the tokens before, ``[length,
            layers, picked]``, or None. A pass that sampled nothing is not one of them.

    Returns:
        int16 ``[length of the last, layers, picked]``; None where no pass recorded any.
    """
    shapes = [routes.shape[1:] for _, routes in parts if routes is not None]
    if not shapes:
        return None
    joined = np.full((parts[-1][0], *shapes[0]), UNKNOWN_ROUTE, np.int16)
    begin = 0
    for length, routes in parts:
        if routes is not None:
            joined[begin : length - 1] = routes[begin : length - 1]
        begin = length - 1
    return joined
