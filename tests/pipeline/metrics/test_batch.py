"""What a batch says of its tags."""

from __future__ import annotations

import numpy as np

from rljax.ledger.leases import LeasedBatch
from rljax.pipeline.metrics.batch import batch_metrics
from rljax.rollout.workflows.single_turn import assemble
from rljax.rollout.workflows.workflow import Attempt
from rljax.trajectory import Group, TaskId
from sidecar.protocol import Completion, SamplingParams


def group(tag: str, *lengths: int, reward: float = 0.0) -> Group:
    made = []
    for member, length in enumerate(lengths):
        tokens = np.zeros(length, np.int32)
        completion = Completion(tokens, np.zeros(length, np.float32), tokens, "stop")
        made.append(assemble(np.zeros(3, np.int32), completion, Attempt(0, member), SamplingParams(), reward, {}))
    return Group(TaskId(tag, 0, 0), tuple(made))


def test_tokens_are_told_of_each_tag() -> None:
    values = batch_metrics(LeasedBatch(1, (1, 2), (group("Lake", 2, 4), group("Sokoban", 10, 20))))
    assert (values["train/Lake/tokens"], values["train/Sokoban/tokens"]) == (3.0, 15.0)


def test_a_right_answer_has_a_reward_of_one() -> None:
    rewards = (group("math", 2, 4, reward=1.0), group("math", 2, reward=0.9), group("code", 2, reward=0.0))
    values = batch_metrics(LeasedBatch(1, (1, 2, 3), rewards))
    assert (values["train/math/solved"], values["train/code/solved"]) == (2 / 3, 0.0)


def test_demonstrations_alone_have_no_rewards() -> None:
    values = batch_metrics(LeasedBatch(1, (), (), (), range(8, 16)))
    assert values == {"batch/reused_groups": 0.0, "tokens/sampled": 0.0}


def test_reused_groups_count_where_training_is_told_of_and_not_where_generation_is() -> None:
    values = batch_metrics(LeasedBatch(3, (1, 2), (group("Lake", 2, 4),), (group("Lake", 8),)))
    assert (values["tokens/sampled"], values["tokens/all"], values["batch/reused_groups"]) == (14.0, 23.0, 1.0)
    assert (values["response/mean_tokens"], values["train/Lake/groups"]) == (3.0, 1.0)
    # every token of a made-up trajectory is of version 0
    assert (values["staleness/mean"], values["staleness/max"]) == (3.0, 3.0)


def test_a_group_of_equal_rewards_is_flat_whatever_rounding_makes_of_their_mean() -> None:
    """The deviation in float32 of 11, 22 or 24 thirds is not 0."""
    thirds = tuple(group("Lake", *[2] * members, reward=1 / 3) for members in (3, 11, 22, 24))
    assert batch_metrics(LeasedBatch(1, (1, 2, 3, 4), thirds))["reward/flat_groups"] == 1.0
    mixed = Group(TaskId("Lake", 0, 0), (*thirds[0].trajectories, *group("Lake", 2).trajectories))
    assert batch_metrics(LeasedBatch(1, (1, 2), (thirds[1], mixed)))["reward/flat_groups"] == 0.5
