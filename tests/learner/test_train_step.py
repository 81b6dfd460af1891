import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms.credit_assignment import batch_advantages
from rljax.algorithms.registry import aggregations, policy_losses
from rljax.config.fields import ConfigError
from rljax.config.schema import Config, ModelConfig
from rljax.learner.learner import Learner
from rljax.learner.objective import PolicyObjective as Objective
from rljax.learner.objective import Progress
from rljax.learner.packing import pack
from rljax.learner.rows import row_shapes
from rljax.learner.train_step import loss_and_gradient
from rljax.models.common.hardware import CPU
from rljax.models.common.params import Params
from rljax.models.transformer import hidden_states, output_head
from rljax.trajectory import Group
from tests.learner.made_up import (
    ARCHITECTURE,
    MAX_RESPONSE,
    make_config,
    make_groups,
    make_params,
    relative_error,
    trajectories_of,
)

pytestmark = pytest.mark.slow


@functools.cache
def initial() -> Params:
    return make_params()


def evaluate(config: Config, groups: list[Group], shape: int = 0, **rows: int) -> tuple[float, Params, dict]:
    """Loss, gradient and metrics of a batch, packed into the shape of that place in the list."""
    trajectories = trajectories_of(groups)
    advantages = batch_advantages(groups, config.algorithm)
    counts = np.array([t.loss_mask.sum() for t in trajectories])
    weights = aggregations.bound(config.algorithm.aggregation)(counts, MAX_RESPONSE)
    shapes = row_shapes(**{"row_tokens": 24, "rows": 2, "trajectories": 16, **rows})
    packed = pack(trajectories, advantages, weights, shapes[shape : shape + 1])
    loss, gradient, metrics = compiled(config.algorithm.pg_variant, config.model)(
        initial(), packed.batch, packed.microbatches
    )
    assert loss.dtype == jnp.float32
    return float(loss), gradient, {name: float(value) for name, value in metrics.items()}


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (lambda inputs: (jnp.mean(inputs.advantages), {}), r"returned a loss of shape \(\); write one for each token"),
        (lambda inputs: inputs.advantages, r"returned \w+; write \(loss of each token, metrics by name\)"),
        (lambda inputs: (inputs.advantages, {}, 0.0), r"returned a tuple of 3; write \(loss of each token, metrics"),
        (lambda inputs: (inputs.nope, {}), r"AttributeError: .*'nope' \(.*test_train_step\.py:\d+\)"),
    ],
    ids=["mean", "array", "three", "raises"],
)
def test_a_loss_that_is_none_is_refused_by_name(loss: Any, told: str) -> None:
    """A mean would be broadcast, and train nothing in silence."""
    policy_losses.register("made_up", bounds_step=True)(loss)
    config = make_config(algorithm={"pg_variant": "made_up"})
    packed = pack([], np.zeros(0), np.zeros(0), row_shapes(row_tokens=24, rows=2, trajectories=16)[:1])
    batch = jax.tree.map(lambda x: x[0], packed.batch)
    with pytest.raises(ConfigError, match=rf"^algorithm\.pg_variant='made_up': {told}"):
        jax.eval_shape(Objective(config, ARCHITECTURE, CPU).microbatch_loss, initial(), batch, Progress())


@functools.cache
def compiled(variant: str, model: ModelConfig) -> Any:
    config = make_config(algorithm={"pg_variant": variant}, model=vars(model))
    objective = Objective(config, ARCHITECTURE, CPU)
    return jax.jit(functools.partial(loss_and_gradient, objective))


@functools.cache
def separate(variant: str) -> Any:
    """Summed token losses of one trajectory in a row of its own, whole logits, nothing shared but the model."""

    def one(
        params: Params, ids: jax.Array, mask: jax.Array, behaviour: jax.Array, heat: float, advantage: float
    ) -> jax.Array:
        time = jnp.arange(ids.shape[1])[None]
        hidden = hidden_states(params, ARCHITECTURE, ids, time, jnp.ones_like(ids))
        logits = (hidden[0] @ output_head(params, ARCHITECTURE))[:-1] / heat
        logprobs = jnp.take_along_axis(jax.nn.log_softmax(logits), ids[0, 1:, None], 1)[:, 0]
        ratio = jnp.exp(jnp.where(mask, logprobs - behaviour, 0))
        if variant == "vanilla":
            losses = -advantage * logprobs
        elif variant == "tis":
            losses = -jnp.clip(jax.lax.stop_gradient(ratio), 0.0, 1.0) * advantage * logprobs
        else:
            losses = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
        return jnp.sum(losses * mask)

    return jax.jit(jax.value_and_grad(one))


def reference(config: Config, groups: list[Group]) -> tuple[float, Params]:
    """Loss and gradient of a batch, trajectory by trajectory, added up in float64."""
    trajectories = trajectories_of(groups)
    tokens = sum(int(t.loss_mask.sum()) for t in trajectories)
    loss, gradient = 0.0, jax.tree.map(lambda p: np.zeros(p.shape), initial())
    for t, advantage in zip(trajectories, batch_advantages(groups, config.algorithm), strict=True):
        own = int(t.loss_mask.sum())
        weight = {
            "token-mean": 1 / tokens,
            "seq-mean-token-mean": 1 / len(trajectories) / own,
            "seq-mean-token-sum": 1 / len(trajectories),
            "seq-mean-token-sum-norm": 1 / len(trajectories) / MAX_RESPONSE,
        }[config.algorithm.aggregation]
        rest = 24 - len(t.token_ids)  # nothing looks ahead, so what follows does not matter
        ids, mask, behaviour = (np.pad(x, (0, rest)) for x in (t.token_ids, t.loss_mask, t.logprobs))
        part, part_gradient = separate(config.algorithm.pg_variant)(
            initial(), ids[None], mask[1:], behaviour[1:], t.temperature, float(advantage[t.loss_mask][0])
        )
        loss += weight * float(part)
        gradient = jax.tree.map(lambda g, p, w=weight: g + w * np.asarray(p, np.float64), gradient, part_gradient)
    return loss, gradient


@pytest.mark.parametrize(
    "algorithm",
    [
        {"pg_variant": "vanilla", "aggregation": "seq-mean-token-sum"},
        {"pg_variant": "ppo", "aggregation": "token-mean"},
        {"pg_variant": "tis", "aggregation": "seq-mean-token-mean", "adv_estimator": "rloo"},
        {"pg_variant": "ppo", "aggregation": "seq-mean-token-sum-norm"},
    ],
    ids=lambda algorithm: f"{algorithm['pg_variant']}-{algorithm['aggregation']}",
)
def test_packed_loss_and_gradient_are_those_of_separate_trajectories(algorithm: dict[str, str]) -> None:
    config, groups = make_config(algorithm=algorithm), make_groups(1, groups=2)
    loss, gradient, _ = evaluate(config, groups)
    expected_loss, expected_gradient = reference(config, groups)
    assert loss == pytest.approx(expected_loss, rel=1e-5, abs=1e-6)
    assert relative_error(gradient, expected_gradient) < 1e-5


def test_the_loss_does_not_depend_on_packing_nor_on_microbatches() -> None:
    config, groups = make_config(), make_groups(2)
    loss, gradient, metrics = evaluate(config, groups)
    layouts = [
        {"rows": 1, "row_tokens": 300},  # everything in one row
        {"rows": 16},  # everything in one microbatch
        {"rows": 3, "row_tokens": 96, "shape": 2},  # short rows, a microbatch that is not full
    ]
    for layout in layouts:
        other_loss, other_gradient, other_metrics = evaluate(config, groups, **layout)
        assert other_loss == pytest.approx(loss, rel=1e-5), layout
        assert relative_error(other_gradient, gradient) < 1e-5, layout
        for name, value in metrics.items():
            assert other_metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6, nan_ok=True), (layout, name)


def test_the_loss_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traced, whole = [], Objective.microbatch_loss

    def counted(self: Objective, *arguments: Any) -> Any:
        traced.append(arguments)
        return whole(self, *arguments)

    monkeypatch.setattr(Objective, "microbatch_loss", counted)
    learner = Learner(make_config(), ARCHITECTURE, make_params())
    packed = learner.pack(make_groups(2))[0]
    computes = functools.partial(loss_and_gradient, learner.objective)
    jax.eval_shape(computes, learner.state.params, learner.place(packed.batch), packed.microbatches)
    assert len(traced) == 1


def test_the_order_of_the_batch_does_not_matter() -> None:
    config, groups = make_config(), make_groups(2)
    loss, gradient, _ = evaluate(config, groups)
    other_loss, other_gradient, _ = evaluate(config, groups[::-1])
    assert other_loss == pytest.approx(loss, rel=1e-5)
    assert relative_error(other_gradient, gradient) < 1e-5


@pytest.mark.parametrize("variant", ["ppo", "tis"])
def test_ratios_are_made_of_the_recorded_log_probabilities(variant: str) -> None:
    """Promise P6: were the current policy used in their place, planting wrong ones would change nothing."""
    config, groups = make_config(algorithm={"pg_variant": variant}), make_groups(4, groups=1)
    loss, gradient, metrics = evaluate(config, groups)
    planted = []
    for t in groups[0].trajectories:
        planted.append(dataclasses.replace(t, logprobs=np.where(t.loss_mask, t.logprobs - 0.05, 0).astype(np.float32)))
    other_loss, other_gradient, other_metrics = evaluate(
        config, [dataclasses.replace(groups[0], trajectories=tuple(planted))]
    )
    assert abs(other_loss - loss) > 1e-4
    assert relative_error(other_gradient, gradient) > 1e-3
    # every ratio is exp(0.05) times what it was
    assert other_metrics["policy/ratio_mean"] == pytest.approx(metrics["policy/ratio_mean"] * np.exp(0.05), rel=1e-4)


def test_masked_tokens_never_change_a_loss() -> None:
    config, groups = make_config(), make_groups(5, groups=1)
    expected = evaluate(config, groups)
    planted = []
    for t in groups[0].trajectories:
        logprobs = np.where(t.loss_mask, t.logprobs, np.nan).astype(np.float32)
        tail = np.zeros(3, np.int32)
        planted.append(
            dataclasses.replace(
                t,
                token_ids=np.concatenate([t.token_ids, tail + 7]),
                loss_mask=np.concatenate([t.loss_mask, tail > 0]),
                logprobs=np.concatenate([logprobs, np.full(3, np.inf, np.float32)]),
                versions=np.concatenate([t.versions, tail - 1]),
            )
        )
    got = evaluate(config, [dataclasses.replace(groups[0], trajectories=tuple(planted))])
    assert got[0] == pytest.approx(expected[0], rel=1e-5)
    assert relative_error(got[1], expected[1]) < 1e-5


def test_one_token_responses_and_the_metrics_by_hand() -> None:
    config = make_config()
    groups = make_groups(6, groups=1, size=2)
    short = []
    for t, reward in zip(groups[0].trajectories, (0.0, 1.0), strict=True):
        n = t.prompt_length + 1
        fields = {name: getattr(t, name)[:n] for name in ("token_ids", "loss_mask", "logprobs", "versions")}
        short.append(dataclasses.replace(t, **fields, turns=np.array([[n - 1, n]], np.int32), reward=reward))
    group = dataclasses.replace(groups[0], trajectories=tuple(short))
    loss, gradient, metrics = evaluate(config, [group])
    expected_loss, expected_gradient = reference(config, [group])
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert relative_error(gradient, expected_gradient) < 1e-5

    ratios = np.zeros(2)
    for index, t in enumerate(short):
        length = len(t.token_ids)
        ids = jnp.asarray(t.token_ids)[None]
        hidden = hidden_states(initial(), ARCHITECTURE, ids, jnp.arange(length)[None], jnp.ones((1, length), jnp.int32))
        logits = np.asarray(hidden[0] @ output_head(initial(), ARCHITECTURE), np.float64)[-2] / t.temperature
        logprob = logits[t.token_ids[-1]] - np.log(np.exp(logits).sum())
        ratios[index] = np.exp(logprob - t.logprobs[-1])
    assert metrics["policy/ratio_mean"] == pytest.approx(np.mean(ratios), rel=1e-4)
    assert metrics["policy/ratio_max"] == pytest.approx(ratios.max(), rel=1e-4)
    assert metrics["policy/approx_kl"] == pytest.approx(np.mean(ratios - 1 - np.log(ratios)), rel=1e-3)


def test_nothing_trained_gives_zero() -> None:
    config = make_config()
    empty = make_groups(7, groups=1)
    nothing = [dataclasses.replace(t, loss_mask=np.zeros(len(t.token_ids), bool)) for t in empty[0].trajectories]
    loss, gradient, metrics = evaluate(config, [dataclasses.replace(empty[0], trajectories=tuple(nothing))])
    assert loss == 0
    assert all(not np.any(g) for g in jax.tree.leaves(gradient))
    without_tokens = {name for name, value in metrics.items() if np.isnan(value)}
    measured = {"ratio_mean", "ratio_variance", "ess", "approx_kl"}
    measured |= {f"{name}_staleness/{n}" for name in (*measured, "clip_fraction") for n in (0, 1)}
    assert without_tokens == {"entropy", *(f"policy/{name}" for name in measured)}, "a 0 would be a measurement"
    assert all(value == 0 for name, value in metrics.items() if name not in without_tokens)


def test_bf16_computes_in_bf16_and_accumulates_in_fp32() -> None:
    groups = make_groups(8)
    loss, gradient, _ = evaluate(make_config(model={"dtype": "bf16"}), groups)
    expected_loss, expected_gradient, _ = evaluate(make_config(), groups)
    assert {g.dtype for g in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}
    cosine = sum(
        float(jnp.vdot(a, b)) for a, b in zip(*map(jax.tree.leaves, (gradient, expected_gradient)), strict=True)
    )
    norms = [np.sqrt(sum(float(jnp.vdot(a, a)) for a in jax.tree.leaves(g))) for g in (gradient, expected_gradient)]
    assert cosine / norms[0] / norms[1] > 0.95
    assert loss == pytest.approx(expected_loss, rel=0.1, abs=0.05)
    assert relative_error(gradient, expected_gradient) > 1e-4, "bf16 was not used"
