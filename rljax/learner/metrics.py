"""Metrics of a learner step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rljax.algorithms.ratios import LOWEST
from rljax.learner.prepare import Minibatch
from rljax.learner.teachers import Teacher

LAST = "learning_rate"
NONFINITE = "policy/nonfinite_updates"
_REDUCE: dict[str, Callable[..., Any]] = {
    LAST: lambda values: values[-1],
    "policy/ratio_max": max,
    NONFINITE: sum,
}
_MAY_BE_MISSING = ("policy/", "entropy", "critic/explained_variance", "router/routes_")
"""Prefixes of metrics that are NaN in an update without such tokens; a non-finite loss is counted separately."""


def step_metrics(updates: Sequence[Mapping[str, np.ndarray]]) -> dict[str, float]:
    """Reduces the metrics of a step's updates to those of the step: means, but for the
    learning rate, maxima and counts.
    """
    if not updates:
        return {}
    found = {}
    for name in updates[0]:
        values = [float(metrics[name]) for metrics in updates]
        if name.startswith(_MAY_BE_MISSING):
            values = [value for value in values if not np.isnan(value)]
        if values:
            found[name] = float(_REDUCE.get(name, np.mean)(values))
    return found


def describe(minibatches: Sequence[Minibatch]) -> dict[str, float]:
    """Returns the sizes of a batch after the masks, as metrics: ``tokens/trained`` are those of the samples."""
    packed = [minibatch.packed for minibatch in minibatches]
    return {
        "tokens/trained": float(sum(t.loss_mask.sum() for m in minibatches for t in m.sampled)),
        "batch/demonstrations": float(sum(len(m.trajectories) - len(m.places) for m in minibatches)),
        "batch/trained_tokens": float(sum(p.trained_tokens for p in packed)),
        "batch/microbatches": float(sum(p.microbatches for p in packed)),
        "batch/fill": float(np.mean([p.fill for p in packed])) if packed else 1.0,
    }


def reverse_kl(minibatches: Sequence[Minibatch], teachers: Mapping[str, Teacher]) -> dict[str, float]:
    """Returns the mean of logπ_b − logπ_k over trained tokens, nats a token, by teacher, and by teacher and taskset.

    π_k is the teacher, π_b the policy that sampled the token, which for a fresh one is the policy itself: the mean is
    an unbiased estimate of KL(π_b ‖ π_k), and may be a little below 0. Tokens of tasksets in which a teacher has no
    weight do not count.
    """
    found: dict[str, float] = {}
    for name, teacher in teachers.items():
        gaps: dict[str, list[np.ndarray]] = {}
        for minibatch in minibatches:
            if name not in minibatch.scores.teachers:  # nothing is trained in it
                continue
            scored = minibatch.by_token(minibatch.scores.teachers[name])
            for trajectory, taskset, logprobs in zip(minibatch.sampled, minibatch.tasksets, scored, strict=True):
                if teacher.settings.weight_in(taskset):
                    mask = trajectory.loss_mask
                    sampled, taught = np.maximum([trajectory.logprobs[mask], logprobs[mask]], LOWEST, dtype=np.float64)
                    gaps.setdefault(taskset, []).append(sampled - taught)
        values = {f"{name}/{taskset}": np.concatenate(parts) for taskset, parts in sorted(gaps.items())}
        values[name] = np.concatenate([np.zeros(0), *values.values()])
        found |= {f"distill/{of}/reverse_kl": float(gap.mean()) for of, gap in values.items() if len(gap)}
    return found
