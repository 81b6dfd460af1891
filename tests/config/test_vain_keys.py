"""What is refused since by formula nothing would be learned, or nothing done."""

from __future__ import annotations

from typing import Any

import pytest

from rljax.config.schema import AlgorithmConfig, KlConfig, LearnerConfig, OptimizerConfig
from rljax.config.validate import ConfigError
from tests.config.making import make

ALONE = [AlgorithmConfig(adv_estimator=name) for name in ("dr_grpo", "grpo", "opmd_logavgexp", "opmd_mean", "rloo")]


@pytest.mark.parametrize(
    "algorithm",
    [
        *ALONE,
        AlgorithmConfig(pg_variant="kimi15"),
        AlgorithmConfig(pg_variant="opmd_pairwise", adv_estimator="opmd_mean"),
        AlgorithmConfig(kl=KlConfig(where="loss")),
        AlgorithmConfig(whiten_advantages=True),
        AlgorithmConfig(entropy_coef=0.01),
        AlgorithmConfig(norm_mean="batch", norm_std="batch"),
        AlgorithmConfig(kl=KlConfig(where="reward")),
        AlgorithmConfig(pg_variant="asymre", allow_uncorrected=True),
        AlgorithmConfig(pg_variant="rec", loss={"regularizer": "forward-kl"}, allow_uncorrected=True),
    ],
    ids=lambda a: f"{a.pg_variant}-{a.adv_estimator}",
)
def test_a_group_of_one_that_is_compared_with_nothing_is_not_trained(algorithm: AlgorithmConfig) -> None:
    for mode in ("both", "train"):
        with pytest.raises(ConfigError) as caught:
            make(algorithm=algorithm, group_size=1, mode=mode)
        assert str(caught.value) == (
            f"group_size=1: adv_estimator={algorithm.adv_estimator} compares the members of a group, and the advantage "
            "of one alone is 0, so that no reward is learned from; write group_size=8, or adv_estimator=reinforce"
        )
    for mode in ("explore", "evaluate", "replay", "audit"):
        make(algorithm=algorithm, group_size=1, mode=mode)
    make(algorithm=algorithm, group_size=2)


@pytest.mark.parametrize(
    "algorithm",
    [
        *(AlgorithmConfig(adv_estimator=name) for name in ("reinforce", "reinforce++", "gae", "remax", "gigpo")),
        *(AlgorithmConfig(adv_estimator=name) for name in ("step_reinforce", "agentic_reinforce", "my.module:mine")),
        *(AlgorithmConfig(pg_variant=name, allow_uncorrected=True) for name in ("sft", "mix", "my:loss")),
    ],
    ids=lambda a: f"{a.pg_variant}-{a.adv_estimator}",
)
def test_a_group_of_one_that_something_is_learned_of_is_trained(algorithm: AlgorithmConfig) -> None:
    make(algorithm=algorithm, group_size=1)


@pytest.mark.parametrize("name", ["group_variance", "min_std"])
def test_a_filter_that_drops_every_group_of_one_is_refused(name: str) -> None:
    algorithm = AlgorithmConfig(adv_estimator="reinforce", filters=("overlong", name))
    for mode in ("both", "train", "explore"):
        with pytest.raises(
            ConfigError, match=rf"^algorithm.filters: {name} drops every group of one, .* group_size=8$"
        ):
            make(algorithm=algorithm, group_size=1, mode=mode)
    make(algorithm=algorithm, group_size=1, mode="evaluate")
    make(algorithm=algorithm, group_size=2)
    make(algorithm=AlgorithmConfig(adv_estimator="reinforce", filters=("overlong",)), group_size=1)


def test_a_coefficient_of_0_is_not_adapted() -> None:
    for where in ("loss", "reward"):
        with pytest.raises(ConfigError, match=r"^algorithm.kl.target=0.1: .* 0 stays 0; write kl.coef above 0$"):
            make(algorithm=AlgorithmConfig(kl=KlConfig(where=where, coef=0.0, target=0.1)))
    make(algorithm=AlgorithmConfig(kl=KlConfig(where="loss", coef=0.0)))
    make(algorithm=AlgorithmConfig(kl=KlConfig(where="loss", coef=1e-4, target=0.1)))


@pytest.mark.parametrize(
    ("more", "limit", "way_out"),
    [
        ({}, 1, "staler than the bound of 1 .*; leave it out, or write at most 0$"),
        ({}, 5, "staler than the bound of 1 "),
        ({"async_generation_ratio": 0.0}, 0, r"staler than the bound of 0 .*max_staleness\); leave it out$"),
        ({"max_staleness": 4}, 4, "staler than the bound of 4 .*; leave it out, or write at most 3$"),
        ({"sync_interval": 3}, 3, "staler than the bound of 3 "),
    ],
)
def test_a_limit_that_no_token_passes_is_refused(more: dict[str, Any], limit: int, way_out: str) -> None:
    with pytest.raises(ConfigError, match=f"^algorithm.drop_staler_than={limit}: drops nothing, .*{way_out}"):
        make(algorithm=AlgorithmConfig(drop_staler_than=limit), **more)
    make(algorithm=AlgorithmConfig(drop_staler_than=limit), mode="evaluate", **more)
    if limit:
        make(algorithm=AlgorithmConfig(drop_staler_than=limit), async_generation_ratio=float(limit + 1))


def test_kernels_are_timed_where_the_choice_is_kept() -> None:
    kept = {
        (None, "auto"): True,
        (None, "off"): False,
        (True, "off"): True,
        (False, "auto"): False,
    }
    for (autotune, cache), timed in kept.items():
        assert make(learner=LearnerConfig(autotune=autotune), compile_cache=cache).autotunes is timed
    make(learner=LearnerConfig(optimizer=OptimizerConfig(nu_dtype="bf16", beta2=0.99)))
