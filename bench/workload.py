"""Workload of both learners: two batches of made-up trajectories, the same on every machine.

``dense``: 2 trajectories of 256 tokens, all but the first trained: nothing to gain from packing or by skipping prompts.

``lognormal``: 64 trajectories in groups of 8, prompts of 16 tokens, whole lengths lognormal with mean 104, at most 256.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from rljax.trajectory import Group, TaskId, Trajectory

LONGEST = 256
MEAN_LENGTH = 104
SIGMA = 0.6
"""Deviation of the logarithm of the lengths: the longest of 64 is then some four times the median."""
LEARNING_RATE = 1e-6


@dataclass(frozen=True)
class Case:
    """A batch and how it is split into microbatches.

    Attributes:
        name: of the batch.
        trajectories, group_size: of the batch.
        prompt: tokens that are not trained.
        rows: packed rows of a microbatch, for rljax.
        padded_rows: trajectories of a microbatch, for torch.
        uncounted: steps that a turn begins with, see `bench.paired.alternate`; a long step hides what they are for.
        target: ratio aimed for.
    """

    name: str
    trajectories: int
    group_size: int
    prompt: int
    rows: int
    padded_rows: int
    uncounted: int
    target: float


CASES = {
    "dense": Case("dense", 2, 2, 1, 2, 2, 2, 1.0),
    "lognormal": Case("lognormal", 64, 8, 16, 4, 8, 0, 2.0),
}


def lengths(case: Case) -> np.ndarray:
    """Returns the whole lengths in tokens, int64 ``[trajectories]``."""
    if case.name == "dense":
        return np.full(case.trajectories, LONGEST)
    rng = np.random.default_rng(0)
    drawn = rng.lognormal(0.0, SIGMA, case.trajectories)
    low, high = 1.0, float(LONGEST)
    for _ in range(60):  # the scale that gives the mean after cutting at LONGEST
        scale = math.sqrt(low * high)
        mean = np.clip(drawn * scale, case.prompt + 4, LONGEST).mean()
        low, high = (scale, high) if mean < MEAN_LENGTH else (low, scale)
    return np.clip(np.round(drawn * low), case.prompt + 4, LONGEST).astype(np.int64)


def make_groups(case: Case, vocab_size: int) -> list[Group]:
    """Makes the batch, with random tokens and rewards of 0 and 1; behaviour log-probabilities are left to the model."""
    rng = np.random.default_rng(1)
    members = []
    for index, length in enumerate(lengths(case).tolist()):
        mask = np.arange(length) >= case.prompt
        members.append(
            Trajectory(
                token_ids=rng.integers(0, vocab_size, length).astype(np.int32),
                loss_mask=mask,
                logprobs=np.zeros(length, np.float32),
                versions=np.where(mask, 0, -1).astype(np.int32),
                turns=np.array([[case.prompt, length]], np.int32),
                reward=float(index % case.group_size < case.group_size // 2),
                member=index % case.group_size,
            )
        )
    size = case.group_size
    return [
        Group(TaskId("made-up", 0, start // size), tuple(members[start : start + size]))
        for start in range(0, len(members), size)
    ]


def with_behaviour(groups: list[Group], scores: list[np.ndarray]) -> list[Group]:
    """Returns the batch as if sampled from a policy near the one that is trained: its scores
    and a little noise, in nats.
    """
    rng = np.random.default_rng(2)
    left = iter(scores)

    def sampled(trajectory: Trajectory) -> Trajectory:
        scored = np.concatenate([np.zeros(1, np.float32), next(left)])
        noisy = scored + rng.normal(0, 0.1, len(scored)).astype(np.float32)
        return replace(trajectory, logprobs=np.where(trajectory.loss_mask, noisy, 0).astype(np.float32))

    return [replace(group, trajectories=tuple(sampled(t) for t in group.trajectories)) for group in groups]
