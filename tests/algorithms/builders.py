"""Trajectories and groups for tests, and strategies that make them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rljax.trajectory import Group, TaskId, Trajectory

Turn = tuple[int, int, float]
"""Tokens of text, tokens of the model, reward."""


def episode(turns: Sequence[Turn], **fields: Any) -> Trajectory:
    """Turns one after the other; ``reward`` is their sum unless given. Sampled tokens have version 0 unless given."""
    mask, spans = [], []
    for text, sampled, _ in turns:
        mask += [False] * text + [True] * sampled
        spans.append((len(mask) - sampled, len(mask)))
    laid = np.array(mask, np.bool_)
    rewards = np.array([reward for _, _, reward in turns], np.float64)
    given: dict[str, Any] = {
        "token_ids": np.arange(len(laid), dtype=np.int32),
        "loss_mask": laid,
        "logprobs": np.zeros(len(laid), np.float32),
        "versions": np.where(laid, 0, -1).astype(np.int32),
        "turns": np.array(spans, np.int32).reshape(-1, 2),
        "reward": float(rewards.sum()),
        "turn_rewards": rewards,
        "turn_states": ("s",) * len(turns),
    }
    return Trajectory(**(given | fields))


def answer(reward: float, tokens: int = 2, **fields: Any) -> Trajectory:
    """One turn after one token of a prompt, scored as a whole."""
    return episode([(1, tokens, 0.0)], reward=float(reward), turn_rewards=np.zeros(0), **fields)


def group(*members: Trajectory, tag: str = "t", index: int = 0) -> Group:
    return Group(TaskId(tag, 0, index), members)


def answers(*rewards: float, tag: str = "t") -> Group:
    return group(*map(answer, rewards), tag=tag)


# Quarters: exact in binary, so that what is equal is equal.
QUARTERS = st.integers(-8, 8).map(lambda n: n / 4)


@st.composite
def episodes(draw: Any) -> Trajectory:
    turns = draw(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 3), QUARTERS), min_size=0, max_size=3))
    whole: dict[str, Any] = {}
    if draw(st.booleans()):
        whole = {"turn_rewards": np.zeros(0), "reward": draw(QUARTERS)}
    made = episode(turns, finish_reason=draw(st.sampled_from(["stop", "length", "done", "sequence_length"])), **whole)
    versions = np.array(draw(st.lists(st.integers(0, 3), min_size=len(made.loss_mask), max_size=len(made.loss_mask))))
    made.versions[made.loss_mask] = versions[made.loss_mask] if len(versions) else 0
    return made


BATCHES = st.lists(
    st.builds(
        lambda members, tag: group(*members, tag=tag),
        st.lists(episodes(), min_size=1, max_size=3),
        st.sampled_from(["a", "b"]),
    ),
    min_size=0,
    max_size=3,
)
