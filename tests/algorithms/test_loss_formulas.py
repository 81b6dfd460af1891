"""Every policy loss against its formula in float64: value and gradient, on random batches and at the corners."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from rljax.algorithms.inputs import LossInputs
from rljax.algorithms.registry import policy_losses
from rljax.config.schema import AlgorithmConfig
from tests.algorithms.loss_batches import ROWS, TIME, Cells, batches, random_cells
from tests.algorithms.loss_formulas import FORMULAS, value_and_gradient

VARIANTS: dict[str, dict[str, object]] = {
    "ppo-asymmetric-dual": {"pg_variant": "ppo", "loss": {"clip_low": 0.1, "clip_high": 0.4, "dual_clip": 1.5}},
    "ppo-turn": {"pg_variant": "ppo", "loss": {"ratio_level": "turn"}},
    "ppo-sequence": {"pg_variant": "ppo", "loss": {"ratio_level": "sequence", "clip_low": 0.05}},
    "dapo-turn-dual": {"pg_variant": "dapo", "loss": {"ratio_level": "turn", "dual_clip": 1.2}},
    "gspo-dual": {"pg_variant": "gspo", "loss": {"clip_low": 0.1, "clip_high": 0.3, "dual_clip": 1.2}},
    "tis-bounds": {"pg_variant": "tis", "loss": {"low": 0.8, "high": 1.5}},
    "cispo-asymmetric": {"pg_variant": "cispo", "loss": {"clip_low": 0.5, "clip_high": 0.2}},
    "cispo-mask": {"pg_variant": "cispo", "loss": {"use_unified_mask": True, "clip_low": 0.1, "clip_high": 0.3}},
    "topr-weights": {"pg_variant": "topr", "loss": {"positive_weight": 0.5, "negative_weight": 2.0}},
    "decoupled_ppo-cap": {
        "pg_variant": "decoupled_ppo",
        "loss": {"behaviour_weight_cap": 1.1, "clip_low": 0.1, "clip_high": 0.3, "dual_clip": 1.5},
    },
    "decoupled_ppo-interpolate": {
        "pg_variant": "decoupled_ppo",
        "loss": {"proximal_policy": "interpolate", "proximal_interpolation": 0.3},
    },
    "opmd-tau": {"pg_variant": "opmd", "loss": {"tau": 0.3}},
    "opmd_pairwise-tau": {"pg_variant": "opmd_pairwise", "loss": {"tau": 0.3}},
    "opmd_kimi-tau": {"pg_variant": "opmd_kimi", "loss": {"tau": 0.3}},
    "sapo-steep": {"pg_variant": "sapo", "loss": {"tau_positive": 0.5, "tau_negative": 3.0}},
    "rec-one-side": {"pg_variant": "rec", "loss": {"clip": "one-side", "weight": "importance", "clip_low": 0.1}},
    "rec-gspo": {"pg_variant": "rec", "loss": {"clip": "gspo-one-side", "weight": "gspo-importance"}},
    "rec-gspo-clip": {"pg_variant": "rec", "loss": {"clip": "gspo-one-side", "clip_low": 0.1}},
    "rec-gspo-weight": {"pg_variant": "rec", "loss": {"weight": "gspo-importance"}},
    "rec-two-side": {
        "pg_variant": "rec",
        "loss": {"clip": "two-side", "regularizer": "k2", "regularizer_coef": 0.2, "clip_high": 0.4},
    },
    "rec-ring": {"pg_variant": "rec", "loss": {"clip": "ring", "ring_low": 0.4, "ring_high": 0.8}},
    "rec-advantage": {"pg_variant": "rec", "loss": {"weight": "advantage", "temperature": 0.7}},
    "rec-forward-kl": {"pg_variant": "rec", "loss": {"regularizer": "forward-kl", "regularizer_coef": 0.3}},
    "sft-phi": {"pg_variant": "sft", "loss": {"phi": True}},
    "mix-gspo-phi": {"pg_variant": "mix", "loss": {"variant": "gspo", "phi": True, "weight": 0.3}},
    "mix-chord": {"pg_variant": "mix", "loss": {"schedule": "chord", "weight_peak": 0.8, "weight_valley": 0.2}},
}
CONFIGS = {
    **{name: AlgorithmConfig(pg_variant=name) for name in FORMULAS},
    **{name: AlgorithmConfig(**keys) for name, keys in VARIANTS.items()},
}
every_loss = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


_gradients: dict[str, Any] = {}
"""Compiled, by config: as single operations most of their time would go into calling them."""


def _gradient_of(config: AlgorithmConfig) -> Any:
    loss = policy_losses.bound(config.pg_variant, config.loss)

    def total(
        logprobs: jax.Array, inputs: LossInputs, weights: jax.Array
    ) -> tuple[jax.Array, tuple[jax.Array, dict[str, jax.Array]]]:
        values, metrics = loss(dataclasses.replace(inputs, logprobs=logprobs))
        trained = jnp.where(inputs.mask, values, 0.0)
        return jnp.sum(jnp.where(inputs.mask, values * weights, 0.0)), (trained, metrics)

    return _gradients.setdefault(repr(config), jax.jit(jax.grad(total, has_aux=True)))  # a config has no hash


def computed(cells: Cells, config: AlgorithmConfig, **changes: object) -> tuple[np.ndarray, np.ndarray, dict]:
    """Loss of the trained tokens, gradient of their weighted sum by logπ, metrics."""
    with jax.enable_x64(True):
        inputs = cells.inputs(expert=config.pg_variant in ("sft", "mix"), **changes)
        gradient, (values, metrics) = _gradient_of(config)(inputs.logprobs, inputs, jnp.asarray(cells.weights))
        return np.asarray(values), np.asarray(gradient), metrics


def constant(cells: Cells, **values: object) -> Cells:
    """The same number, or the same row, everywhere, all of it trained."""
    shape = cells.mask.shape
    arrays = {name: np.broadcast_to(np.asarray(value), shape).copy() for name, value in values.items()}
    return dataclasses.replace(cells, mask=np.ones(shape, bool), **arrays)


def test_every_loss_has_a_formula_here() -> None:
    built_in = {n for n in policy_losses.names() if policy_losses.get(n).__module__.startswith("rljax.")}
    assert built_in == set(FORMULAS)


@every_loss
@settings(max_examples=8, derandomize=True, deadline=None)
@given(cells=batches())
def test_value_and_gradient(config: AlgorithmConfig, cells: Cells) -> None:
    value, gradient = value_and_gradient(cells, config)
    got, got_gradient, metrics = computed(cells, config)
    np.testing.assert_allclose(got, value, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(got_gradient, gradient, rtol=1e-6, atol=1e-8)
    for name, values in metrics.items():
        assert np.isfinite(np.asarray(values)[cells.mask]).all(), name


@every_loss
def test_what_is_not_trained_changes_nothing(config: AlgorithmConfig) -> None:
    cells, other = random_cells(1), random_cells(2)
    swapped = {
        field.name: np.where(cells.mask, getattr(cells, field.name), getattr(other, field.name))
        for field in dataclasses.fields(Cells)
        if field.name not in ("mask", "updates")
    }
    results = [computed(each, config)[:2] for each in (cells, dataclasses.replace(cells, **swapped))]
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])
    assert not results[0][1][~cells.mask].any()


@every_loss
def test_nothing_trained_gives_nothing(config: AlgorithmConfig) -> None:
    value, gradient, _ = computed(random_cells(3, density=0.0), config)
    assert not value.any()
    assert not gradient.any()


@every_loss
@pytest.mark.parametrize("name", ["logprobs", "behaviour_logprobs", "proximal_logprobs", "all", "far", "near"])
def test_extremes_are_finite(config: AlgorithmConfig, name: str) -> None:
    """−inf, and gaps that overflow float32 many times over; half of the tokens, so that spans hold both kinds."""
    signs = np.array([[1.0], [-1.0], [0.0]])
    every_other = np.arange(TIME) % 2 == 0
    cells = constant(random_cells(4), logprobs=-1.0, behaviour_logprobs=-1.5, proximal_logprobs=-1.2)
    cells = constant(cells, advantages=signs, sequence_gap=0.5, group_gap=0.1, rewards=signs)
    extreme = {"far": {"logprobs": -5e4}, "near": {"behaviour_logprobs": -5e4}, "all": {"logprobs": -np.inf}}
    changes = extreme.get(name, {name: -np.inf})
    if name == "all":
        changes |= {"behaviour_logprobs": -np.inf, "proximal_logprobs": -np.inf}
    cells = constant(cells, **{key: np.where(every_other, v, getattr(cells, key)) for key, v in changes.items()})
    value, gradient, metrics = computed(cells, config)
    single = [jnp.asarray(a, jnp.float32) for a in (cells.logprobs, cells.behaviour_logprobs, cells.proximal_logprobs)]
    loss = policy_losses.bound(config.pg_variant, config.loss)

    def total(logprobs: jax.Array) -> jax.Array:
        inputs = cells.inputs(logprobs, behaviour_logprobs=single[1], proximal_logprobs=single[2])
        return jnp.sum(loss(inputs)[0])

    narrow, narrow_gradient = jax.value_and_grad(total)(single[0])
    for array in (value, gradient, narrow, narrow_gradient, *metrics.values()):
        assert np.isfinite(np.asarray(array)).all()


@every_loss
def test_no_advantage_no_policy_gradient(config: AlgorithmConfig) -> None:
    cells = constant(random_cells(5, density=1.0), advantages=0.0)
    value, gradient, _ = computed(dataclasses.replace(cells, expert=np.zeros((ROWS, TIME), bool)), config)
    regularised = config.pg_variant == "rec" and config.loss.regularizer != "none"
    if config.pg_variant in ("kimi15", "opmd_pairwise", "opmd_kimi", "asymre") or regularised:
        assert gradient.any()
    else:
        assert not value.any()
        assert not gradient.any()


ON_POLICY = [name for name in CONFIGS if name.partition("-")[0] not in ("opmd_pairwise", "opmd_kimi", "sft", "mix")]


@pytest.mark.parametrize("name", ON_POLICY)
def test_on_policy_the_gradient_is_that_of_vanilla(name: str) -> None:
    """One advantage and one weight for each sequence, as in training; every policy the same."""
    config, cells = CONFIGS[name], constant(random_cells(6), logprobs=-1.0, segment_ids=np.arange(TIME) // 4)
    advantages = np.array([1.0, -2.0, 0.5])[np.arange(TIME) // 4]
    cells = constant(cells, behaviour_logprobs=-1.0, proximal_logprobs=-1.0, advantages=advantages, weights=0.3)
    keys = config.loss
    factors = {
        "opmd": lambda: 1 / (1 + keys.tau),
        "topr": lambda: np.where(cells.rewards > 0, keys.positive_weight, keys.negative_weight),
        "asymre": lambda: 1 - keys.shift / advantages,
        "rec": lambda: np.exp(advantages / keys.temperature) if keys.weight == "advantage" else 1.0,
    }
    expected = -0.3 * advantages * factors.get(config.pg_variant, lambda: 1.0)()
    if config.pg_variant == "rec" and keys.regularizer == "forward-kl":
        expected = expected - 0.3 * keys.regularizer_coef
    np.testing.assert_allclose(computed(cells, config)[1], np.broadcast_to(expected, (ROWS, TIME)), rtol=1e-12)


def test_rec_can_have_the_gradient_of_gspo() -> None:
    """One advantage and one weight for each sequence; half of the sequences are clipped."""
    cells = constant(random_cells(15, density=1.0), segment_ids=np.arange(TIME) // 4, weights=0.3)
    cells = dataclasses.replace(cells, advantages=np.where(np.arange(TIME) < 4, 1.0, -2.0) * np.ones((ROWS, 1)))
    keys = {"clip": "gspo-one-side", "weight": "gspo-importance", "clip_low": 0.01, "clip_high": 0.01}
    _, gradient, metrics = computed(cells, AlgorithmConfig(pg_variant="rec", loss=keys))
    _, expected, clipped = computed(
        cells, AlgorithmConfig(pg_variant="gspo", loss={"clip_low": 0.01, "clip_high": 0.01})
    )
    np.testing.assert_allclose(gradient, expected, rtol=1e-12)
    np.testing.assert_array_equal(metrics["clip_fraction"], clipped["clip_fraction"])
    assert 0.2 < np.asarray(metrics["clip_fraction"]).mean() < 0.8


@pytest.mark.parametrize("level", ["turn", "sequence"])
def test_a_sequence_of_one_token_is_that_token(level: str) -> None:
    cells = random_cells(7, longest=1)
    results = [computed(cells, AlgorithmConfig(loss={"ratio_level": each}))[:2] for each in ("token", level)]
    np.testing.assert_allclose(results[0], results[1], rtol=1e-12)


@pytest.mark.parametrize("side", [0.3, -0.3])
@pytest.mark.parametrize(
    "keys",
    [
        {"pg_variant": "ppo", "loss": {"clip_low": "low", "clip_high": "high"}},
        {"pg_variant": "dapo", "loss": {"clip_low": "low", "clip_high": "high"}},
        {"pg_variant": "gspo", "loss": {"clip_low": "low", "clip_high": "high"}},
        {"pg_variant": "cispo", "loss": {"clip_low": "low", "clip_high": "high", "use_unified_mask": True}},
        {"pg_variant": "rec", "loss": {"clip": "one-side", "clip_low": "low", "clip_high": "high"}},
        {"pg_variant": "rec", "loss": {"clip": "gspo-one-side", "clip_low": "low", "clip_high": "high"}},
        {"pg_variant": "rec", "loss": {"clip": "two-side", "clip_low": "low", "clip_high": "high"}},
    ],
    ids=lambda keys: "-".join([keys["pg_variant"], *([keys["loss"]["clip"]] if "clip" in keys["loss"] else [])]),
)
def test_a_ratio_on_a_bound_is_inside(keys: dict[str, Any], side: float) -> None:
    with jax.enable_x64(True):
        ratio = float(jnp.exp(jnp.float64(side)))
    # between ½ and 2 both differences are exact, and so is the bound that the loss makes of them
    bounds = {"low": 1 - ratio if side < 0 else 0.0, "high": ratio - 1 if side > 0 else 0.0}
    own = {name: bounds.get(str(value), value) for name, value in keys["loss"].items()}
    config = AlgorithmConfig(pg_variant=keys["pg_variant"], loss=own)
    cells = constant(random_cells(8), logprobs=side, behaviour_logprobs=0.0, advantages=np.sign(side), weights=1.0)
    weight = 1.0 if config.pg_variant == "rec" else ratio
    _, gradient, metrics = computed(cells, config)
    np.testing.assert_allclose(gradient, -weight * np.sign(side), rtol=1e-12)
    assert not np.asarray(metrics["clip_fraction"]).any()


def test_a_dual_clip_met_exactly_keeps_the_gradient() -> None:
    with jax.enable_x64(True):
        ratio = float(jnp.exp(jnp.float64(0.5)))
    cells = constant(random_cells(9), logprobs=0.5, behaviour_logprobs=0.0, advantages=-1.0, weights=1.0)
    _, gradient, metrics = computed(cells, AlgorithmConfig(loss={"dual_clip": ratio}))
    np.testing.assert_allclose(gradient, ratio, rtol=1e-12)
    assert not np.asarray(metrics["dual_clip_fraction"]).any()


def test_a_broken_model_is_not_hidden() -> None:
    cells = constant(random_cells(10), logprobs=np.nan, behaviour_logprobs=-1.0, advantages=1.0)
    for name in ("vanilla", "ppo", "tis", "kimi15", "sapo"):
        assert np.isnan(computed(cells, AlgorithmConfig(pg_variant=name))[0]).all(), name


def test_metrics_by_hand() -> None:
    """Ratios ½, 1, 2 under advantages of both signs."""
    shape = (ROWS, TIME)
    ratios = np.resize([0.5, 1.0, 2.0, 0.5, 1.0, 2.0], shape)
    signs = np.resize([1.0, 1.0, 1.0, -1.0, -1.0, -1.0], shape)
    cells = constant(random_cells(11), logprobs=np.log(ratios), behaviour_logprobs=0.0, proximal_logprobs=np.log(2.0))
    cells = constant(cells, advantages=signs, rewards=signs, sequence_gap=3.0, group_gap=1.0)
    expected: list[tuple[dict[str, object], str, list[float]]] = [
        ({"pg_variant": "ppo"}, "clip_fraction", [0, 0, 1, 1, 0, 0]),
        ({"pg_variant": "ppo", "loss": {"dual_clip": 1.5}}, "dual_clip_fraction", [0, 0, 0, 0, 0, 1]),
        ({"pg_variant": "tis"}, "clip_fraction", [0, 0, 1, 0, 0, 1]),
        ({"pg_variant": "cispo"}, "clip_fraction", [0, 0, 1, 0, 0, 1]),
        ({"pg_variant": "cispo", "loss": {"clip_low": 0.1}}, "clip_fraction", [1, 0, 1, 1, 0, 1]),
        ({"pg_variant": "cispo", "loss": {"use_unified_mask": True}}, "mask_fraction", [0, 0, 1, 0, 0, 0]),
        (
            {"pg_variant": "cispo", "loss": {"use_unified_mask": True, "clip_low": 0.1}},
            "mask_fraction",
            [0, 0, 1, 1, 0, 0],
        ),
        ({"pg_variant": "topr"}, "clip_fraction", [0, 0, 0, 0, 0, 1]),
        ({"pg_variant": "kimi15"}, "penalty", [0.05 * np.log(2) ** 2, 0, 0.05 * np.log(2) ** 2] * 2),
        ({"pg_variant": "decoupled_ppo"}, "behaviour_weight", [2.0] * 6),
        ({"pg_variant": "decoupled_ppo", "loss": {"behaviour_weight_cap": 1.5}}, "behaviour_weight", [1.5] * 6),
        ({"pg_variant": "decoupled_ppo", "loss": {"behaviour_weight_cap": 1.5}}, "behaviour_weight_capped", [1.0] * 6),
        ({"pg_variant": "opmd_pairwise"}, "residual", [1, 1, 1, 9, 9, 9]),
        ({"pg_variant": "opmd_kimi"}, "residual", [4, 4, 4, 16, 16, 16]),
        ({"pg_variant": "sppo"}, "clip_fraction", [1, 0, 1, 1, 0, 1]),
        ({"pg_variant": "rec", "loss": {"clip": "one-side"}}, "clip_fraction", [0, 0, 1, 1, 0, 0]),
        ({"pg_variant": "rec", "loss": {"clip": "ring", "ring_low": 0.4}}, "clip_fraction", [0, 0, 1, 1, 0, 1]),
    ]
    for keys, name, values in expected:
        got = np.asarray(computed(cells, AlgorithmConfig(**keys))[2][name])
        np.testing.assert_allclose(got, np.resize(values, shape), rtol=1e-6, err_msg=str(keys))
    gate = np.asarray(computed(cells, AlgorithmConfig(pg_variant="sapo", loss={"tau_negative": 2.0}))[2]["gate"])
    np.testing.assert_allclose(gate[0, [1, 4]], 1.0)
    # τ(ρ−1) = 1 for the third, 2 for the sixth; 4p(1−p) = 1/cosh²(z/2)
    np.testing.assert_allclose(gate[0, [2, 5]], 1 / np.cosh([0.5, 1.0]) ** 2, rtol=1e-6)


def test_a_need_that_was_not_met_is_named() -> None:
    cells = random_cells(12)
    for name, missing in (
        ("decoupled_ppo", "proximal_logprobs"),
        ("opmd_pairwise", "sequence_gap"),
        ("opmd_pairwise", "group_gap"),
        ("opmd_kimi", "sequence_gap"),
    ):
        with pytest.raises(ValueError, match=f"reads {missing}, which nothing computed"):
            computed(cells, AlgorithmConfig(pg_variant=name), **{missing: None})


def test_needs_follow_the_config() -> None:
    def needs(**keys: object) -> set[str]:
        config = AlgorithmConfig(**keys)
        return set(policy_losses.needs(config.pg_variant, config.loss))

    assert needs(pg_variant="ppo") == set()
    assert needs(pg_variant="decoupled_ppo") == {"proximal"}
    assert needs(pg_variant="decoupled_ppo", loss={"proximal_policy": "interpolate"}) == set()
    assert needs(pg_variant="opmd_pairwise") == needs(pg_variant="opmd_kimi") == {"reference", "sequences"}
    assert needs(pg_variant="mix", loss={"variant": "decoupled_ppo"}) == {"proximal"}
    assert needs(pg_variant="mix") == set()
    assert needs(pg_variant="math:fsum") == set()


def test_sft_without_marks_imitates_everything() -> None:
    cells = constant(random_cells(13), logprobs=-2.0, weights=1.0)
    with jax.enable_x64(True):
        loss, _ = policy_losses.bound("sft")(cells.inputs())
    np.testing.assert_array_equal(loss, np.full((ROWS, TIME), 2.0))


def test_mix_without_demonstrations_is_its_variant_scaled() -> None:
    cells = random_cells(14)
    with jax.enable_x64(True):
        inputs: LossInputs = cells.inputs()
        mixed, metrics = policy_losses.bound("mix", {"weight": 0.25})(inputs)
        alone, _ = policy_losses.bound("ppo")(inputs)
    np.testing.assert_allclose(np.asarray(mixed)[cells.mask], 0.75 * np.asarray(alone)[cells.mask], rtol=1e-12)
    np.testing.assert_array_equal(metrics["sft_weight"], np.full((ROWS, TIME), 0.25))
    assert not np.asarray(metrics["expert_fraction"]).any()


def test_mix_logs_its_variant_where_the_policy_spoke() -> None:
    """The gate of sapo is 1 at ratio 1, which is what the variant sees of a demonstration."""
    cells = constant(random_cells(16), logprobs=-1.0, behaviour_logprobs=-1.0, advantages=1.0)
    metrics = computed(cells, AlgorithmConfig(pg_variant="mix", loss={"variant": "sapo"}))[2]
    np.testing.assert_allclose(metrics["gate"], ~cells.expert)
    np.testing.assert_array_equal(metrics["expert_fraction"], cells.expert)


@pytest.mark.parametrize(
    ("updates", "weight"), [(0, 0.0), (5, 0.4), (10, 0.8), (20, 0.5), (30, 0.2), (31, 0.2), (10**6, 0.2)]
)
def test_the_chord_schedule_by_hand(updates: int, weight: float) -> None:
    """Half of the warm-up gives half of the peak, half of the cosine the middle of peak and valley."""
    config = AlgorithmConfig(
        pg_variant="mix",
        loss={"schedule": "chord", "weight_peak": 0.8, "weight_valley": 0.2, "warmup_updates": 10, "decay_updates": 20},
    )
    metrics = computed(dataclasses.replace(random_cells(15), updates=updates), config)[2]
    np.testing.assert_allclose(metrics["sft_weight"], weight, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("warm", "updates", "weight"), [(10, 5, 0.4), (10, 10, 0.2), (10, 11, 0.2), (0, 0, 0.2)])
def test_without_a_decay_no_update_is_made_at_the_peak(warm: int, updates: int, weight: float) -> None:
    config = AlgorithmConfig(
        pg_variant="mix",
        loss={
            "schedule": "chord",
            "weight_peak": 0.8,
            "weight_valley": 0.2,
            "warmup_updates": warm,
            "decay_updates": 0,
        },
    )
    metrics = computed(dataclasses.replace(random_cells(15), updates=updates), config)[2]
    np.testing.assert_allclose(metrics["sft_weight"], weight, rtol=1e-6, atol=1e-7)
