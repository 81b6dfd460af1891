"""The rule's arithmetic, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from rljax.config.schema import staleness_credit
from rljax.ledger.staleness import claimable, feasible, slack


@pytest.mark.parametrize(
    ("alpha", "b", "groups"),
    [
        (0, 8, 8),
        (0.5, 8, 12),
        (0.5, 1, 1),
        (0.5, 3, 4),
        (1, 8, 16),
        (2.5, 4, 14),
        (7, 2, 16),
        # 1.1 · 10 is 11.000000000000002 in floating point, 1.3 · 10 is 13.0, and (1 + 0.15) · 20 is 22.999999999999996
        (0.1, 10, 11),
        (0.1, 9, 9),
        (0.3, 10, 13),
        (0.15, 20, 23),
        (0.7, 10, 17),
        (1e-9, 8, 8),
    ],
)
def test_credit_is_the_floor_of_the_decimal_product(alpha: float, b: int, groups: int) -> None:
    assert staleness_credit(alpha, b) == groups


def test_feasible_by_hand() -> None:
    # b=2, next step 5: two may be due at 5, four by 6, six by 7.
    assert feasible({}, 5, 2)
    assert feasible({5: 2, 6: 2, 7: 2}, 5, 2)
    assert feasible({7: 6}, 5, 2)
    assert not feasible({5: 3}, 5, 2)
    assert not feasible({5: 1, 6: 4}, 5, 2)
    assert not feasible({4: 1}, 5, 2), "overdue"
    assert feasible({5: 1, 6: 3, 9: 1}, 5, 2)


def test_the_example_of_the_contract() -> None:
    """ARCHITECTURE.md's table, by hand: b = 2, α = 1, k = 1, so that four groups may be outstanding and S is 1."""
    assert staleness_credit(1.0, 2) == 4
    assert claimable({}, 0, 2, deadline=1) == 4, "version 0: two can be trained by step 0, four by step 1"
    assert feasible({1: 2}, 1, 2), "two of the four are leased for step 0: step 1 trains the others"
    assert claimable({1: 2}, 1, 2, deadline=2) == 2, "version 1"
    assert not feasible({1: 1, 2: 1}, 2, 2), "one of d=1 is late, and step 1 may not leave without it"
    assert feasible({2: 2}, 2, 2), "both of d=1 are leased for step 1"


def test_slack_by_hand() -> None:
    # By 5: 2 − 1; by 6: 4 − 1 − 2; by 9: 10 − 1 − 2 − 4. What is overdue fits nowhere.
    assert slack({5: 1, 6: 2, 9: 4}, 5, 2) == {5: 1, 6: 1, 9: 3}
    assert slack({3: 1, 5: 1}, 5, 2) == {3: -1, 5: 0}


def test_claimable_by_hand() -> None:
    # b=2, next step 5. With one due at 5, three more fit by 6, however they are spread.
    assert claimable({5: 1}, 5, 2, deadline=6) == 3
    assert claimable({}, 5, 2, deadline=5) == 2
    assert claimable({}, 5, 2, deadline=4) == 0, "could only be trained too late"
    # A newcomer due at 5 takes room from those due at 6.
    assert claimable({6: 4}, 5, 2, deadline=5) == 0
    assert claimable({6: 3}, 5, 2, deadline=5) == 1
    # A newcomer due at 7 does not care that 5 is full.
    assert claimable({5: 2}, 5, 2, deadline=7) == 4
    assert claimable({5: 3}, 5, 2, deadline=7) == 0, "what is infeasible already is not made worse"
