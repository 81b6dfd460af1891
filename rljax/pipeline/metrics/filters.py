"""Metrics and messages about the groups that filters rejected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rljax.ledger.filtered_streak import FilteredStreak

LONG_STREAK = 100
"""Groups filtered in a row, none kept, after which somebody should look at the filter."""


def filter_metrics(
    names: Sequence[str], reasons: Mapping[str, int], tasksets: Mapping[str, int] | None = None
) -> dict[str, float]:
    """Returns ``rollout/filtered``, and the same by filter: of ``names``, the run's own, and of any in ``reasons``.

    Nothing where there is no filter. ``reasons`` are the ledger's, "<filter>: <why>", with their number; ``tasksets``
    the same by taskset, for ``train/<taskset>/filtered``.

    >>> filter_metrics(["mean_band"], {"mean_band: mean reward too low": 2, "mean_band: mean reward too high": 1})
    {'rollout/filtered': 3.0, 'rollout/filtered/mean_band': 3.0}
    """
    by_filter = dict.fromkeys(names, 0)
    for reason, count in reasons.items():
        name = reason.split(": ")[0]
        by_filter[name] = by_filter.get(name, 0) + count
    if not by_filter:
        return {}
    every = {f"rollout/filtered/{name}": float(count) for name, count in by_filter.items()}
    of_tasksets = {f"train/{name}/filtered": float(count) for name, count in (tasksets or {}).items()}
    return {"rollout/filtered": float(sum(by_filter.values())), **every, **of_tasksets}


def streak_warning(streak: FilteredStreak) -> str:
    """Returns a warning for a run that filters all it generates."""
    return (
        f"{streak.groups} groups in a row were filtered and none was kept, most by {streak.reason}; widen the bound of "
        "this filter (algorithm.filters, algorithm.filter) or choose tasks of another difficulty. The run goes on "
        "trying, and no wait_timeout ends it as long as groups are made"
    )
