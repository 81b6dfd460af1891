"""What is refused of objectives: names, contradictions, stale data that nothing corrects."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

from rljax.config import validate_objective
from rljax.config.registries import policy_losses
from rljax.config.schema import (
    AlgorithmConfig,
    CorrectionConfig,
    CriticConfig,
    DistillConfig,
    KlConfig,
    RowsConfig,
    TasksConfig,
    TeacherConfig,
)
from rljax.config.validate import ConfigError
from tests.config.making import DEMONSTRATIONS, TASKSET, make

ALGORITHMS = [
    (
        AlgorithmConfig(pg_variant="pop"),
        "algorithm.pg_variant='pop': there is no such one; closest: ppo, ",
    ),
    (AlgorithmConfig(adv_estimator="gprpo"), "algorithm.adv_estimator='gprpo': there is no such one; closest: grpo"),
    (AlgorithmConfig(aggregation="mean"), "algorithm.aggregation='mean': there is no such one; closest: "),
    (AlgorithmConfig(filters=("variance",)), "algorithm.filters='variance': there is no such one; closest: group_var"),
    (
        AlgorithmConfig(whiten_rewards=True),
        "algorithm.whiten_rewards=True: adv_estimator=grpo sees no rewards of tokens; write norm_std=batch, or an "
        "adv_estimator of gae, reinforce, reinforce++",
    ),
    (AlgorithmConfig(adv_estimator="remax", norm_std="group"), "algorithm.adv_estimator='remax': norm_mean, norm_std"),
    (
        AlgorithmConfig(adv_estimator="remax", overlong="penalty", overlong_buffer=8),
        "algorithm.adv_estimator='remax': norm_mean, norm_std, reward_clip and overlong=penalty change the rewar",
    ),
]


@pytest.mark.parametrize(("algorithm", "line"), ALGORITHMS, ids=lambda x: x if isinstance(x, str) else "")
def test_an_algorithm_that_is_not_there_is_refused(algorithm: AlgorithmConfig, line: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(line)):
        make(algorithm=algorithm)


@pytest.mark.parametrize("algorithm", [{}, {"correction": CorrectionConfig(level="token")}], ids=str)
def test_of_a_loss_that_is_not_there_nothing_else_is_said(algorithm: dict[str, Any]) -> None:
    """Such as that it trains stale data with no correction: a file of ROLL's was answered with both."""
    with pytest.raises(ConfigError, match="there is no such one") as refused:
        make(algorithm=AlgorithmConfig(pg_variant="pop", **algorithm))
    assert refused.value.others == ()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pp0", "closest: ppo"),
        ("PPO", "closest: ppo"),
        ("grpo", "closest: gspo"),
        ("", "there are: "),
        ("nosuch:thing", "cannot be imported (ModuleNotFoundError: No module named 'nosuch'); write module:function"),
        (
            "json:nothing",
            "cannot be imported (AttributeError: module 'json' has no attribute 'nothing'); write module:function",
        ),
        ("math:pi", "not a function but a float"),
    ],
)
def test_a_loss_that_is_not_there_is_told_so_and_not_that_it_is_unstable(name: str, reason: str) -> None:
    truncated = CorrectionConfig(level="token")
    for correction in (CorrectionConfig(), truncated):
        mixed: dict[str, Any] = {"pg_variant": "mix", "loss": {"variant": name}}
        for key, keys in (("pg_variant", {"pg_variant": name}), ("loss.variant", mixed)):
            with pytest.raises(ConfigError) as caught:
                make(algorithm=AlgorithmConfig(**keys, correction=correction))
            message = str(caught.value)
            assert message.startswith(f"algorithm.{key}={name!r}: ")
            assert reason in message
            assert "stale" not in message


def test_the_loss_that_is_mixed_in_is_refused_by_its_own_key() -> None:
    mixed = AlgorithmConfig(pg_variant="mix", loss={"variant": "vanilla"})
    with pytest.raises(ConfigError, match=r"^algorithm.loss.variant='vanilla': trains data up to 1 step stale"):
        make(algorithm=mixed)
    mixed = AlgorithmConfig(pg_variant="mix", correction=CorrectionConfig(level="token"))
    with pytest.raises(ConfigError, match=r"^algorithm.correction.mode='truncate': loss.variant='ppo' is not known"):
        make(algorithm=mixed)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("GAE", "closest: gae"),
        ("ga", "closest: gae"),
        ("reinforc", "closest: reinforce, "),
        ("reinforce_plus_plus", "closest: reinforce"),
        ("gigp", "closest: gigpo, "),
        ("", "there are: .*gae, .*gigpo, .*grpo, .*reinforce"),
    ],
)
def test_an_estimator_that_is_not_there_is_answered_with_those_of_every_kind(name: str, hint: str) -> None:
    from rljax.algorithms.registry import check_names

    algorithm = AlgorithmConfig(adv_estimator=name)
    with pytest.raises(ConfigError, match=f"^algorithm.adv_estimator={name!r}: no such advantage; {hint}"):
        check_names(algorithm)
    with pytest.raises(ConfigError, match=f"^algorithm.adv_estimator={name!r}: there is no such one; {hint}"):
        make(algorithm=algorithm)


def test_every_built_in_algorithm_is_found_in_its_file() -> None:
    from rljax.algorithms import registry

    slots = [slot for slot in vars(registry).values() if isinstance(slot, registry.Registry)]
    built_in = [
        (
            slot.key.removeprefix("algorithm."),
            [name for name in slot.names() if slot.get(name).__module__.startswith("rljax.")],
        )
        for slot in slots
    ]
    assert len(built_in) >= 6
    assert all(names for _, names in built_in)
    for field, names in built_in:
        for name in names:
            choice: dict[str, Any] = {field: (name,) if field == "filters" else name}
            more: dict[str, Any] = {"filter": {"mean_band": {"low": 0.1}}} if name == "mean_band" else {}
            if field == "pg_variant":
                more["adv_estimator"] = taken_by(name)
            if name == "none":  # learns from nothing else
                more["distill"] = DistillConfig(teachers={"mine": TeacherConfig(path="somewhere")})
            make(algorithm=AlgorithmConfig(**choice, **more, allow_uncorrected=True))
    make(algorithm=AlgorithmConfig(pg_variant="my.module:loss", allow_uncorrected=True))


def taken_by(loss: str) -> str:
    """An estimator that the loss takes."""
    return next(iter(policy_losses.traits(loss).estimators), "grpo")


UNSTABLE = [AlgorithmConfig(pg_variant=name) for name in ("vanilla", "opmd", "asymre", "rec", "math:fsum")]
FAINT = [
    AlgorithmConfig(pg_variant="cispo", loss={"clip_low": 0.1}),
    AlgorithmConfig(pg_variant="cispo", loss={"clip_low": 0.4, "clip_high": 3.0}),
    AlgorithmConfig(pg_variant="mix", loss={"variant": "cispo", "variant_args": {"clip_low": 0.1}}),
    AlgorithmConfig(pg_variant="tis", loss={"low": 0.9, "high": 1.1}),
]
STABLE = [
    *(AlgorithmConfig(pg_variant=name, adv_estimator=taken_by(name)) for name in validate_objective.bounding()),
    AlgorithmConfig(pg_variant="cispo"),
    AlgorithmConfig(pg_variant="cispo", loss={"clip_low": 0.5}),
    AlgorithmConfig(pg_variant="cispo", loss={"clip_low": 0.1, "use_unified_mask": True}),
    AlgorithmConfig(pg_variant="tis", loss={"low": 0.5}),
    AlgorithmConfig(pg_variant="rec", loss={"weight": "importance"}),
    AlgorithmConfig(pg_variant="rec", loss={"clip": "one-side"}),
    AlgorithmConfig(pg_variant="rec", loss={"clip": "gspo-one-side"}),
    AlgorithmConfig(pg_variant="rec", loss={"regularizer": "k2"}),
    AlgorithmConfig(pg_variant="mix"),
    AlgorithmConfig(pg_variant="sft"),
]


@pytest.mark.parametrize(
    "algorithm",
    [
        *UNSTABLE,
        *FAINT,
        AlgorithmConfig(pg_variant="mix", loss={"variant": "vanilla"}),
        AlgorithmConfig(pg_variant="rec", loss={"weight": "advantage"}),
        AlgorithmConfig(pg_variant="rec", loss={"regularizer": "forward-kl"}),
    ],
    ids=lambda a: a.pg_variant,
)
def test_stale_data_need_a_trust_region_a_correction_or_leave(algorithm: AlgorithmConfig) -> None:
    with pytest.raises(ConfigError) as caught:
        make(algorithm=algorithm)
    message = str(caught.value)
    for way_out in ("neither trust region nor correction", "ppo", "correction.level=token", "allow_uncorrected=true"):
        assert way_out in message
    assert "\n" not in message
    make(algorithm=algorithm, async_generation_ratio=0.0)
    make(algorithm=algorithm, mode="explore")
    make(algorithm=dataclasses.replace(algorithm, allow_uncorrected=True))
    make(algorithm=dataclasses.replace(algorithm, correction=CorrectionConfig(level="token", mode="mask")))


@pytest.mark.parametrize("algorithm", STABLE, ids=lambda a: a.pg_variant)
def test_losses_that_bound_their_step_need_nothing_else(algorithm: AlgorithmConfig) -> None:
    make(algorithm=algorithm)


def test_weights_that_stay_near_1_are_no_trust_region() -> None:
    with pytest.raises(ConfigError) as caught:
        make(algorithm=FAINT[0])
    assert str(caught.value).startswith(
        "algorithm.pg_variant='cispo': trains data up to 1 step stale with neither trust region nor correction (its "
        "least weight, 0.9, is above 0.5); write loss.clip_low=1 as in the paper, or loss.use_unified_mask=true, or "
    )
    assert str(caught.value).endswith(
        "or algorithm.correction.level=token with algorithm.correction.mode=mask, or algorithm.allow_uncorrected=true"
    )
    with pytest.raises(
        ConfigError, match=r"\(its least weight, 0.9, is above 0.5\); write loss.low=0, or one of .*cispo, .*ppo"
    ):
        make(algorithm=FAINT[-1])


def test_a_divergence_that_drives_the_policy_from_stale_data_is_refused() -> None:
    algorithm = AlgorithmConfig(kl=KlConfig(where="loss", estimator="k1"))
    for corrected in (
        algorithm,
        dataclasses.replace(algorithm, correction=CorrectionConfig(level="token", mode="mask")),
    ):
        with pytest.raises(ConfigError, match=r"kl.estimator='k1': in the loss .* 1 step stale .*; write estimator=k2"):
            make(algorithm=corrected)
    make(algorithm=algorithm, async_generation_ratio=0.0)
    make(algorithm=dataclasses.replace(algorithm, allow_uncorrected=True))
    for kl in (KlConfig(where="loss"), KlConfig(where="reward"), KlConfig(where="reward", estimator="k1")):
        make(algorithm=AlgorithmConfig(kl=kl))


UNREAD: list[tuple[dict[str, Any], str]] = [
    ({"kl": KlConfig(coef=0.1)}, "kl.coef=0.1: nothing reads it; write kl.where=loss or reward"),
    ({"kl": KlConfig(estimator="k1")}, "kl.estimator='k1': nothing reads it; write kl.where=loss or reward"),
    ({"kl": KlConfig(refresh_steps=5)}, "kl.refresh_steps=5: nothing reads it; write kl.where=loss or reward"),
    ({"kl": KlConfig(where="loss", horizon=5)}, "kl.horizon=5: nothing reads it; write kl.target"),
    (
        {"correction": CorrectionConfig(mode="mask", high=2.0)},
        "correction.mode='mask': nothing reads it; write correction.level=token",
    ),
    ({"correction": CorrectionConfig(high=2.0)}, "correction.high=2.0: nothing reads it; write correction.level=token"),
    (
        {"correction": CorrectionConfig(low=0.5)},
        "correction.low=0.5: nothing reads it; write correction.mode=mask, and",
    ),
    (
        {"pg_variant": "vanilla", "correction": CorrectionConfig(level="token", low=0.5)},
        "correction.low=0.5: nothing reads it; write correction.mode=mask",
    ),
    ({"overlong_buffer": 4}, "overlong_buffer=4: nothing reads it; write overlong=penalty"),
    ({"overlong": "mask", "overlong_penalty": 2.0}, "overlong_penalty=2.0: nothing reads it; write overlong=penalty"),
    ({"critic": CriticConfig(value_clip=0.2)}, "critic.value_clip=0.2: nothing reads it; write adv_estimator=gae"),
]


@pytest.mark.parametrize(("keys", "line"), UNREAD, ids=lambda x: x if isinstance(x, str) else "")
def test_what_looks_like_a_guard_and_is_read_by_nothing_is_refused(keys: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(algorithm=AlgorithmConfig(**keys))
    assert str(caught.value).startswith(f"algorithm.{line}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "keys",
    [
        {"pg_variant": "opmd_kimi", "adv_estimator": "opmd_logavgexp", "kl": KlConfig(refresh_steps=5)},
        {"pg_variant": "my.module:loss", "allow_uncorrected": True, "kl": KlConfig(refresh_steps=5)},
        {"kl": KlConfig(where="loss", target=0.1, horizon=5, refresh_steps=5)},
        {"pg_variant": "vanilla", "correction": CorrectionConfig(level="token", high=0.5)},
        {"correction": CorrectionConfig(level="turn", mode="mask", low=0.5)},
        {"overlong": "penalty", "overlong_buffer": 4, "overlong_penalty": 2.0},
    ],
)
def test_what_is_read_is_not_refused(keys: dict[str, Any]) -> None:
    make(algorithm=AlgorithmConfig(**keys))


@pytest.mark.parametrize(
    ("loss", "taken", "refused"),
    [
        ("opmd_kimi", ("opmd_logavgexp",), ("grpo", "opmd_mean", "reinforce++", "gigpo")),
        ("opmd_pairwise", ("opmd_mean", "dr_grpo"), ("grpo", "rloo", "opmd_logavgexp", "step_reinforce", "remax")),
    ],
)
@pytest.mark.parametrize("mixed", [False, True])
def test_a_formula_of_whole_trajectories_takes_its_own_baseline_and_all_their_tokens(
    loss: str, taken: tuple[str, ...], refused: tuple[str, ...], mixed: bool
) -> None:
    keys: dict[str, Any] = {"pg_variant": "mix", "loss": {"variant": loss}} if mixed else {"pg_variant": loss}
    keys |= {"expert_data_ratio": 0.5} if mixed else {}
    tasks = TasksConfig(train={"digits": TASKSET}, expert=DEMONSTRATIONS if mixed else RowsConfig())
    for estimator in (*taken, "my.module:advantage"):
        make(tasks=tasks, algorithm=AlgorithmConfig(adv_estimator=estimator, **keys))
    for estimator in refused:
        line = f"algorithm.adv_estimator={estimator!r}: {loss} .* write adv_estimator={' or '.join(taken)}$"
        with pytest.raises(ConfigError, match=line.replace("+", r"\+")):
            make(tasks=tasks, algorithm=AlgorithmConfig(adv_estimator=estimator, **keys))
    with pytest.raises(ConfigError, match=f"algorithm.drop_staler_than=2: {loss} sums log-ratios over whole traj"):
        make(tasks=tasks, algorithm=AlgorithmConfig(adv_estimator=taken[0], drop_staler_than=2, **keys))


WEIGHING = [AlgorithmConfig(pg_variant=name) for name in ("ppo", "gspo", "tis", "cispo", "topr", "sapo", "mix")]


@pytest.mark.parametrize(
    "algorithm",
    [
        *WEIGHING,
        *(AlgorithmConfig(pg_variant="rec", loss={"weight": name}) for name in ("importance", "gspo-importance")),
    ],
    ids=lambda a: a.pg_variant,
)
def test_no_behaviour_ratio_counts_twice(algorithm: AlgorithmConfig) -> None:
    truncated = CorrectionConfig(level="geometric", mode="truncate")
    with pytest.raises(ConfigError, match=r"algorithm.correction.mode='truncate': .* count twice; write mode=mask"):
        make(algorithm=dataclasses.replace(algorithm, correction=truncated))
    make(algorithm=dataclasses.replace(algorithm, correction=dataclasses.replace(truncated, mode="mask")))
    make(algorithm=AlgorithmConfig(pg_variant="vanilla", correction=truncated))


def test_what_the_built_in_losses_say_of_themselves() -> None:
    """By hand, from the formulas: what they bound, what they weigh by, what they are compared with. Of these losses; a
    newer one says it in its row of the docs.
    """
    losses = {
        "asymre", "cispo", "dapo", "decoupled_ppo", "gspo", "kimi15", "mix", "opmd", "opmd_kimi", "opmd_pairwise",
        "ppo", "rec", "sapo", "sft", "sppo", "tis", "topr", "vanilla",
    }  # fmt: skip
    told = {name: policy_losses.traits(name) for name in losses}
    assert losses - set(validate_objective.bounding()) == {"asymre", "mix", "opmd", "rec", "sft", "vanilla"}
    assert losses & set(validate_objective.unweighted()) == {
        "asymre", "kimi15", "opmd", "opmd_kimi", "opmd_pairwise", "rec", "sppo", "vanilla",
    }  # fmt: skip
    assert {name for name, traits in told.items() if traits.imitates} == {"mix", "sft"}
    assert {name for name, traits in told.items() if traits.whole_groups} == {"opmd_pairwise"}
    of_trajectories = {"opmd_kimi": ("opmd_logavgexp",), "opmd_pairwise": ("opmd_mean", "dr_grpo")}
    assert {name: traits.estimators for name, traits in told.items() if traits.estimators} == of_trajectories
    for need in ("reference", "sequences"):
        assert {name for name, traits in told.items() if need in traits.needs} == set(of_trajectories)


def test_estimators_among_members_are_those_that_give_a_group_of_one_nothing() -> None:
    from rljax.algorithms.registry import advantages

    def alone(name: str) -> float:
        given = {"greedy": np.array([0.25])} if name == "remax" else {}
        return float(advantages.bound(name)(np.array([[3.0]]), **given)[0, 0])

    for entry in advantages.built_in():
        if not advantages.traits(entry.name).reads_rewards:
            continue  # it compares nobody, and gives a group of any size 0
        assert (alone(entry.name) == 0) == advantages.traits(entry.name).among_members, entry.name


def test_the_baseline_of_a_formula_has_its_temperature() -> None:
    keys: dict[str, Any] = {"pg_variant": "opmd_kimi", "adv_estimator": "opmd_logavgexp", "loss": {"tau": 0.5}}
    make(algorithm=AlgorithmConfig(**keys, advantage={"tau": 0.5}))
    with pytest.raises(ConfigError, match=r"^algorithm.advantage.tau=1.0: the baseline of opmd_kimi is of the same ta"):
        make(algorithm=AlgorithmConfig(**keys))
