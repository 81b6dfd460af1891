"""What a step's row says of filtered groups."""

from __future__ import annotations

from rljax.pipeline.metrics.filters import filter_metrics


def test_every_filter_of_the_run_has_its_curve_from_the_first_step_on() -> None:
    assert filter_metrics(["overlong", "group_variance"], {"group_variance: equal rewards": 4}) == {
        "rollout/filtered": 4.0,
        "rollout/filtered/overlong": 0.0,
        "rollout/filtered/group_variance": 4.0,
    }


def test_a_filter_of_somebody_elses_module_keeps_its_name() -> None:
    found = filter_metrics(["my.rules:dull"], {"my.rules:dull: too dull: 3 of 4": 2, "other: why": 1})
    assert found == {"rollout/filtered": 3.0, "rollout/filtered/my.rules:dull": 2.0, "rollout/filtered/other": 1.0}


def test_each_taskset_is_told_what_it_lost() -> None:
    found = filter_metrics(["min_std"], {"min_std: flat": 3}, {"math": 3, "code": 0})
    assert (found["train/math/filtered"], found["train/code/filtered"]) == (3.0, 0.0)


def test_a_run_without_filters_has_no_such_row() -> None:
    assert filter_metrics([], {}) == {}
