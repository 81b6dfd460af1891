"""Rewards that do not differ for ten steps are told, once for each streak, and the first such at its third step."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rljax.config.load import load_config
from rljax.config.schema import ObserveConfig
from rljax.ledger.leases import LeasedBatch
from rljax.observe.flat_rewards import STEPS, flat_streaks
from rljax.pipeline.metrics.batch import batch_metrics
from rljax.pipeline.observers import LearnerObservers
from rljax.trajectory import Group
from tests.observe.test_samples import TASK, decode, trajectory


def row(step: int, mean: float = 0.5, std: float = 0.5, flat: float = 1.0) -> dict[str, float]:
    return {"step": step, "reward/mean": mean, "reward/std": std, "reward/flat_groups": flat}


def groups(step: int, rewards: list[list[float]]) -> LeasedBatch:
    made = [
        Group(TASK, tuple(dataclasses.replace(trajectory("2+2=", [(b"four", step)]), reward=r) for r in of_group))
        for of_group in rewards
    ]
    return LeasedBatch(step, tuple(range(len(made))), tuple(made))


def test_a_streak_is_told_from_its_tenth_step_on() -> None:
    rows = [row(0), *(row(step) for step in range(1, 12)), row(12, flat=0.9), *(row(step) for step in range(13, 22))]
    found = flat_streaks(rows, group_size=8)
    assert [(streak.first, streak.last, streak.zero) for streak in found] == [(1, 11, False)]
    assert str(found[0]).startswith("steps 1 to 11: in every group all rewards were equal")
    found = flat_streaks([*rows, row(22)], group_size=8)
    assert [(streak.first, streak.last) for streak in found] == [(1, 11), (13, 22)]


def test_steps_that_learn_from_teachers_are_not_told_that_nothing_can_be_learnt() -> None:
    rows = [row(step, mean=0.0, std=0.0) | {"distill/big/reverse_kl": 0.3} for step in range(1, 21)]
    assert flat_streaks(rows, group_size=8) == []


def test_rewards_that_are_all_zero_are_told_as_such() -> None:
    (streak,) = flat_streaks([row(step, mean=0.0, std=0.0) for step in range(1, 11)], group_size=8)
    assert streak.zero
    assert "every reward was 0" in str(streak)
    mixed = [row(1), *(row(step, mean=0.0, std=0.0) for step in range(2, 11))]
    assert [streak.zero for streak in flat_streaks(mixed, group_size=8)] == [False]


def test_of_groups_of_one_the_whole_batch_must_be_equal() -> None:
    assert flat_streaks([row(step) for step in range(1, 20)], group_size=1) == []
    assert len(flat_streaks([row(step, mean=1.0, std=0.0) for step in range(1, 20)], group_size=1)) == 1


def test_rows_without_rewards_end_a_streak() -> None:
    rows: list[dict[str, Any]] = [row(step) for step in range(1, 10)]
    assert flat_streaks([*rows, {"step": 10}, row(11)], group_size=8) == []


@pytest.mark.parametrize(
    ("rewards", "said", "kept"),
    [
        ([[0.0, 0.0], [0.0, 0.0]], "every reward was 0", "1 to 14 (every reward is 0), 16 to 29 (every reward is 0)"),
        ([[1.0, 1.0], [0.0, 0.0]], "in every group", "1 to 14, 16 to 29"),
    ],
)
def test_the_learner_says_it_once_a_streak_and_the_first_time_early(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rewards: list[list[float]], said: str, kept: str
) -> None:
    observe = ObserveConfig(progress="lines", tensorboard=False, trace=False, samples_per_step=0)
    config = dataclasses.replace(load_config("configs/quickstart.py"), observe=observe, logging_steps=1000)
    model: Any = SimpleNamespace(tokenizer=SimpleNamespace(decode=decode))
    teaches = [[1.0, 0.0], [0.0, 0.0]]
    with LearnerObservers(config, tmp_path, model, dict) as observers:
        for step in range(1, 2 * STEPS + 10):
            batch = groups(step, teaches if step == STEPS + 5 else rewards)
            observers.step(step, batch_metrics(batch), batch)
        observers.finish({}, {})
    assert f"steps <b>{kept}</b>" in (tmp_path / "report.html").read_text()
    told = [line for line in capsys.readouterr().out.splitlines() if said in line]
    assert [line.partition(":")[0] for line in told] == ["steps 1 to 3", "steps 1 to 10", "steps 16 to 25"]
