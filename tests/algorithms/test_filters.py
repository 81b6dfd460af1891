import numpy as np
import pytest

from rljax.algorithms import filters
from rljax.config import AlgorithmConfig
from rljax.trajectory import Group, TaskId, Trajectory


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ([0, 0], "equal rewards"),
        ([0.1] * 3, "equal rewards"),
        ([1], "equal rewards"),
        ([0, 1e-9], None),
        ([0, 1, 0], None),
    ],
)
def test_group_variance(rewards: list[float], reason: str | None) -> None:
    one = np.zeros(1, np.int32)
    members = tuple(
        Trajectory(one, np.zeros(1, bool), np.zeros(1, np.float32), one - 1, np.zeros((0, 2), np.int32), float(r))
        for r in rewards
    )
    assert filters.get("group_variance")(Group(TaskId("t", 0, 0), members), AlgorithmConfig()) == reason
