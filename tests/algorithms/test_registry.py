import numpy as np
import pytest

from rljax.algorithms.credit_assignment import batch_advantages
from rljax.algorithms.registry import Registry, advantages, aggregations, check_names, filters, policy_losses
from rljax.config.schema import AlgorithmConfig
from rljax.config.validate import ConfigError
from rljax.trajectory import Group, TaskId, Trajectory


def group_of(*rewards: float) -> Group:
    ids = np.array([1, 2], np.int32)
    mask = np.array([False, True])
    return Group(
        TaskId("t", 0, 0),
        tuple(
            Trajectory(ids, mask, np.zeros(2, np.float32), np.array([-1, 0], np.int32), np.array([[1, 2]], np.int32), r)
            for r in rewards
        ),
    )


def test_built_in_entries_are_found_without_a_list() -> None:
    assert {"grpo", "rloo"} <= set(advantages.names())
    assert {"vanilla", "ppo", "tis"} <= set(policy_losses.names())
    assert set(aggregations.names()) >= {
        "token-mean",
        "seq-mean-token-mean",
        "seq-mean-token-sum",
        "seq-mean-token-sum-norm",
    }
    assert "group_variance" in filters.names()


def test_the_default_config_leads_somewhere() -> None:
    check_names(AlgorithmConfig(filters=("group_variance",)))


@pytest.mark.parametrize("name", ["rloo", "gigpo", "reinforce++", "remax"])
def test_an_estimator_of_any_kind_is_found(name: str) -> None:
    check_names(AlgorithmConfig(adv_estimator=name))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (AlgorithmConfig(adv_estimator="grop"), ("algorithm.adv_estimator='grop'", "grpo")),
        (AlgorithmConfig(pg_variant="pppo"), ("algorithm.pg_variant='pppo'", "closest: ppo")),
        (AlgorithmConfig(aggregation="token_mean"), ("algorithm.aggregation='token_mean'", "token-mean")),
        (AlgorithmConfig(filters=("variance",)), ("algorithm.filters='variance'", "group_variance")),
        (AlgorithmConfig(adv_estimator="reinforc"), ("algorithm.adv_estimator='reinforc'", "no such advantage")),
        (AlgorithmConfig(pg_variant="zzz"), ("there are: ", "ppo", "tis", "vanilla")),
        (AlgorithmConfig(pg_variant="no.such.module:f"), ("algorithm.pg_variant", "no.such.module", "module:function")),
        (AlgorithmConfig(pg_variant="mix", loss={"variant": "pp0"}), ("algorithm.loss.variant='pp0'", "closest: ppo")),
        (AlgorithmConfig(pg_variant="mix", loss={"variant": "math:no_such"}), ("algorithm.loss.variant=", "no_such")),
        (AlgorithmConfig(pg_variant="math:no_such"), ("algorithm.pg_variant", "no_such")),
        (AlgorithmConfig(pg_variant="math:pi"), ("algorithm.pg_variant", "float")),
    ],
)
def test_a_wrong_name_is_refused_in_one_line_with_the_closest(config: AlgorithmConfig, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_names(config)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_module_function_reaches_any_importable_function() -> None:
    import math

    assert advantages.get("math:fsum") is math.fsum


def test_a_users_entry_is_found_and_can_be_replaced_like_a_cell_that_is_run_again() -> None:
    registry: Registry = Registry("advantage", "algorithm.adv_estimator", "rljax.algorithms.advantages")
    registry.register("mine")(lambda rewards: rewards)
    replacement = lambda rewards: -rewards  # noqa: E731
    assert registry.register("mine")(replacement) is replacement
    assert registry.get("mine") is replacement


def test_a_users_entry_of_a_built_in_name_stays() -> None:
    mine = advantages.register("grpo")(lambda rewards: rewards)
    assert advantages.get("grpo") is mine


def test_batch_advantages_are_in_batch_order_whatever_the_group_sizes() -> None:
    groups = [group_of(0.0, 3.0), group_of(7.0), group_of(0.0, 0.0, 3.0), group_of(2.0, 0.0)]
    got = batch_advantages(groups, AlgorithmConfig(adv_estimator="rloo"))
    # leave-one-out by hand: R minus the mean of the others
    # of two tokens each: one of the prompt, one that is trained
    np.testing.assert_allclose(got, [[0, a] for a in (-3, 3, 0, -1.5, -1.5, 3, 2, -2)])
    assert {values.dtype for values in got} == {np.dtype(np.float32)}


def test_an_advantage_function_that_breaks_its_contract_is_named() -> None:
    advantages.register("broken")(lambda rewards: rewards[:, :1])
    with pytest.raises(ValueError, match=r"'broken': returned values of shape \(1, 1\) for rewards of \(1, 2\)$"):
        batch_advantages([group_of(0.0, 1.0)], AlgorithmConfig(adv_estimator="broken"))
    advantages.register("broken")(lambda rewards: rewards * np.nan)
    with pytest.raises(ValueError, match=r"'broken': returned values that are not finite: \[nan nan\]$"):
        batch_advantages([group_of(0.0, 1.0)], AlgorithmConfig(adv_estimator="broken"))


def test_a_built_in_that_is_named_by_its_module_is_what_it_is_by_its_name() -> None:
    for slot in (policy_losses, advantages, filters):
        for entry in slot.built_in():
            named = f"{entry.function.__module__}:{entry.function.__name__}"
            assert slot.traits(named) == slot.traits(entry.name), named
    assert policy_losses.needs("rljax.algorithms.losses.decoupled_ppo:decoupled_ppo", {"proximal_policy": "recompute"})
    assert advantages.traits("math:fsum") == advantages.traits("there is none")
