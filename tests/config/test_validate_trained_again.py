"""What is refused of demonstrations and of groups that are trained again, and how many of each a step has."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rljax.config.schema import AlgorithmConfig, RowsConfig, TasksConfig
from rljax.config.validate import ConfigError
from tests.config.making import DEMONSTRATIONS, TASKSET, make

EXPERT: list[tuple[dict[str, Any], str, str]] = [
    (
        {"expert_data_ratio": 0.5},
        "",
        "algorithm.expert_data_ratio=0.5: there are no demonstrations; write tasks.expert",
    ),
    ({"pg_variant": "mix"}, "shown.jsonl", "tasks.expert.source='shown.jsonl': no step trains it; write algorithm.exp"),
    (
        {"pg_variant": "dapo", "expert_data_ratio": 0.5},
        "shown.jsonl",
        "tasks.expert.source='shown.jsonl': algorithm.pg_variant='dapo' does not tell demonstrations from samples; "
        "write pg_variant=mix, with loss.variant=dapo",
    ),
    ({"pg_variant": "sft"}, "", "algorithm.pg_variant='sft': there is nothing to imitate; write tasks.expert.source="),
    ({"pg_variant": "mix"}, "", "algorithm.pg_variant='mix': there is nothing to imitate"),
    ({"expert_data_ratio": 1.5}, "shown.jsonl", "algorithm.expert_data_ratio=1.5: must be at most 1"),
    (
        {"pg_variant": "mix", "expert_data_ratio": 1.0},
        "shown.jsonl",
        "algorithm.pg_variant='mix': with expert_data_ratio=1 nothing is sampled for loss.variant; write "
        "pg_variant=sft",
    ),
]


def test_keys_of_demonstrations_need_a_source() -> None:
    tasks = TasksConfig(train={"digits": TASKSET}, expert=RowsConfig(answer_key="solution"))
    with pytest.raises(ConfigError, match=r"tasks.expert: there are no demonstrations; write tasks.expert.source"):
        make(tasks=tasks)


@pytest.mark.parametrize(("keys", "source", "message"), EXPERT)
def test_demonstrations_their_share_and_a_loss_that_imitates_come_together(
    keys: dict[str, Any], source: str, message: str
) -> None:
    tasks = TasksConfig(train={"digits": TASKSET}, expert=RowsConfig(source=source))
    with pytest.raises(ConfigError) as caught:
        make(tasks=tasks, algorithm=AlgorithmConfig(**keys))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "more", "message"),
    [
        ({"max_uses": 0}, {}, "algorithm.max_uses=0: must be at least 1"),
        ({"max_uses": 2, "reuse_ratio": 1.0}, {}, "algorithm.reuse_ratio=1.0: must be below 1"),
        ({"reuse_ratio": 0.3}, {}, "algorithm.reuse_ratio=0.3: nothing reads it; write max_uses=2 or more"),
        (
            {"max_uses": 3},
            {},
            "algorithm.max_uses=3: the staleness bound is 1, which leaves a group 2 steps at most; lower it, or write "
            "max_staleness=2 or more",
        ),
        ({"max_uses": 2}, {"async_generation_ratio": 0.0}, "the staleness bound is 0, which leaves a group 1 steps"),
    ],
)
def test_groups_are_reused_no_longer_than_their_staleness_allows(
    keys: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make(algorithm=AlgorithmConfig(**keys), **more)
    assert message in str(caught.value)


@pytest.mark.parametrize(("share", "count"), [(0.5, 8), (0.2, 2), (0.75, 24), (0.01, 1)])
def test_the_share_of_reused_groups_is_of_the_batch_with_them(share: float, count: int) -> None:
    reusing = AlgorithmConfig(max_uses=2, reuse_ratio=share)
    assert make(algorithm=reusing, rollout_batch_size=64, group_size=8).reused_per_batch == count
    assert make().reused_per_batch == 0


def test_a_loss_of_ones_own_may_imitate() -> None:
    tasks = TasksConfig(train={"digits": TASKSET}, expert=DEMONSTRATIONS)
    own = AlgorithmConfig(pg_variant="my.module:loss", expert_data_ratio=0.5, allow_uncorrected=True)
    make(tasks=tasks, algorithm=own)
    with pytest.raises(ConfigError, match=r"tasks\.expert\.template='none': must contain {prompt}"):
        make(tasks=dataclasses.replace(tasks, expert=RowsConfig(source="a.jsonl", template="none")), algorithm=own)


@pytest.mark.parametrize(("batch", "share", "count"), [(48, 0.25, 16), (64, 0.5, 64), (64, 0.1, 7), (8, 0.01, 1)])
def test_the_share_is_of_samples_and_demonstrations_together(batch: int, share: float, count: int) -> None:
    tasks = TasksConfig(train={"digits": TASKSET}, expert=DEMONSTRATIONS)
    algorithm = AlgorithmConfig(pg_variant="mix", expert_data_ratio=share)
    assert make(tasks=tasks, algorithm=algorithm, rollout_batch_size=batch).demonstrations_per_batch == count
    assert make(rollout_batch_size=batch).demonstrations_per_batch == 0


def test_demonstrations_alone_make_up_the_batch_and_nothing_is_sampled() -> None:
    """Neither tasks to sample nor whole groups are asked for; those of a config that also trains by rewards rest."""
    imitating = AlgorithmConfig(pg_variant="sft", expert_data_ratio=1.0, max_uses=2)
    for train in ({}, {"digits": TASKSET}):
        alone = make(
            tasks=TasksConfig(train=train, expert=DEMONSTRATIONS),
            algorithm=imitating,
            rollout_batch_size=12,
            group_size=8,
        )
        assert (alone.imitates_alone, alone.demonstrations_per_batch, alone.groups_per_batch) == (True, 12, 0)
        assert (alone.reused_per_batch, alone.staleness_credit) == (0, 0)
        assert (alone.explored, alone.train_groups) == (("tasks.train", {}), {})
    with pytest.raises(ConfigError, match=r"tasks\.train: no taskset to train on"):
        make(tasks=TasksConfig(expert=DEMONSTRATIONS), algorithm=dataclasses.replace(imitating, expert_data_ratio=0.9))
