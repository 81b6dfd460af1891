import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.config.algorithm import KlConfig
from rljax.config.validate import ConfigError
from rljax.learner.checkpoints import Checkpoints
from rljax.learner.learner import Learner, NonFiniteError
from rljax.learner.rows import MAX_HALVINGS, MAX_ROW_LENGTHS
from rljax.learner.scoring import behaviour_divergence
from rljax.models.hf_names import tensor_shapes
from rljax.models.transformer import hidden_states, output_head
from rljax.observe import parts
from rljax.trajectory import Group
from tests.learner.made_up import ARCHITECTURE, make_config, make_groups, make_params, make_trajectory

pytestmark = pytest.mark.slow


def make_learner(**changes: Any) -> Learner:
    return Learner(make_config(**changes), ARCHITECTURE, make_params())


@pytest.fixture(scope="module")
def shared() -> Learner:
    """One compiled learner for the tests that put its state back; see `fresh`."""
    return make_learner(learner={"max_nonfinite_steps": 3})


@pytest.fixture
def fresh(shared: Learner) -> Iterator[Learner]:
    state = jax.tree.map(np.array, shared.state)
    shardings = jax.tree.map(lambda x: getattr(x, "sharding", None), shared.state)
    yield shared
    shared.state = jax.tree.map(lambda x, s: jax.device_put(x, s, may_alias=False) if s else int(x), state, shardings)
    shared._nonfinite_in_a_row = 0


def snapshot(learner: Learner) -> list[np.ndarray]:
    return [np.array(leaf) for leaf in jax.tree.leaves((learner.state.params, learner.state.opt_state))]


def same(one: list[np.ndarray], two: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def with_nan(groups: list[Group]) -> list[Group]:
    broken = dataclasses.replace(groups[0].trajectories[0], logprobs=groups[0].trajectories[0].logprobs * np.nan)
    return [dataclasses.replace(groups[0], trajectories=(broken, *groups[0].trajectories[1:])), *groups[1:]]


def test_training_raises_what_is_rewarded(fresh: Learner) -> None:
    groups = make_groups(0)
    start = fresh.train(groups)
    assert fresh.steps == 1
    assert start["policy/nonfinite_updates"] == 0
    for _ in range(5):
        metrics = fresh.train(groups)
    assert metrics["loss"] < start["loss"] - 0.01
    assert fresh.steps == 6
    assert {"loss", "grad_norm", "entropy", "learning_rate", "policy/ratio_mean", "policy/ratio_max"} <= set(metrics)
    assert {"policy/clip_fraction", "policy/approx_kl", "batch/trained_tokens", "batch/fill"} <= set(metrics)
    assert all(isinstance(value, float) for value in metrics.values())
    assert metrics["batch/trained_tokens"] == sum(t.loss_mask.sum() for g in groups for t in g.trajectories)


def test_the_parts_of_a_step_are_noted_in_their_order_and_none_overlaps(fresh: Learner) -> None:
    found: list[tuple[str, float, float]] = []
    with parts.recorded(lambda *one: found.append(one)):
        fresh.train(make_groups(0))
    names = list(dict.fromkeys(name for name, *_ in found))
    assert names == [parts.PACK, parts.SCORE, parts.ADVANTAGES, parts.PLACE, parts.UPDATE]
    assert all(begin <= end for _, begin, end in found)
    assert all(end <= begin for (*_, end), (_, begin, _) in itertools.pairwise(found))


def test_the_same_groups_from_the_same_checkpoint_give_the_same_bits(tmp_path: Path) -> None:
    """Promise P13, over several epochs and minibatches, and over a restart; update 7 of 16, over which the learning
    rate falls to 0, is the last of the second step.
    """
    changes: dict[str, Any] = {"algorithm": {"ppo_epochs": 2, "minibatch_size": 8}, "max_steps": 4}
    changes["optimizer"] = {"schedule": "linear"}
    mine = jax.tree.map(jnp.asarray, make_params())
    learner = Learner(make_config(**changes), ARCHITECTURE, mine)
    learner.train(make_groups(0))
    np.testing.assert_array_equal(mine["embedding"], make_params()["embedding"], "the caller's weights were donated")
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, learner.state, {})
    first = [learner.train(make_groups(1)), learner.train(make_groups(2))]
    expected = snapshot(learner)
    assert first[0]["learning_rate"] == pytest.approx(1e-2 * (1 - 7 / 16))

    checkpoints.wait()
    again = Learner(make_config(**changes), ARCHITECTURE, make_params(9))
    again.restore(checkpoints, 1)
    assert [again.train(make_groups(1)), again.train(make_groups(2))] == first
    assert again.steps == 3
    assert same(snapshot(again), expected)


def test_minibatches_are_cut_in_the_batchs_order_and_epochs_repeat_them(fresh: Learner) -> None:
    """Two epochs of two minibatches are four batches of half the size, one after the other."""
    groups = make_groups(0)
    cut = make_learner(algorithm={"ppo_epochs": 2, "minibatch_size": 8}, learner={"rows_per_microbatch": 4})
    metrics = cut.train(groups)
    assert cut.steps == 1
    parts = [fresh.train(half) for half in (groups[:2], groups[2:], groups[:2], groups[2:])]
    for got, expected in zip(jax.tree.leaves(cut.state.params), jax.tree.leaves(fresh.state.params), strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-4)  # each of the four updates moves a weight by up to 1e-2
    assert metrics["loss"] == pytest.approx(np.mean([part["loss"] for part in parts]), rel=1e-3)
    assert metrics["policy/ratio_max"] == pytest.approx(max(part["policy/ratio_max"] for part in parts), rel=1e-3)


def test_a_batch_in_which_nothing_is_trained_changes_nothing(fresh: Learner) -> None:
    fresh.train(make_groups(0))  # so that Adam has momentum, which would move the weights
    before = snapshot(fresh)
    rng = np.random.default_rng(0)
    nothing = [dataclasses.replace(g, trajectories=(make_trajectory(rng, 4, 0),) * 4) for g in make_groups(0)]
    metrics = fresh.train(nothing)
    assert same(snapshot(fresh), before)
    assert fresh.steps == 2
    assert metrics["loss"] == metrics["grad_norm"] == metrics["batch/trained_tokens"] == 0


def test_equal_rewards_are_trained_with_a_gradient_of_zero(fresh: Learner) -> None:
    before = snapshot(fresh)
    metrics = fresh.train(make_groups(0, reward=0.1))
    assert metrics["grad_norm"] == 0
    assert metrics["loss"] == 0
    assert metrics["batch/trained_tokens"] > 0
    assert metrics["entropy"] > 0
    assert fresh.steps == 1
    assert same(
        snapshot(fresh)[: len(jax.tree.leaves(fresh.state.params))], before[: len(jax.tree.leaves(fresh.state.params))]
    )


def test_a_non_finite_gradient_is_skipped_and_counted(fresh: Learner) -> None:
    fresh.train(make_groups(0))
    before = snapshot(fresh)
    metrics = fresh.train(with_nan(make_groups(1)))
    assert metrics["policy/nonfinite_updates"] == 1
    assert np.isnan(metrics["loss"])
    assert same(snapshot(fresh), before), "weights, moments and the update count stay as they were"
    assert fresh.steps == 2
    assert np.isfinite(fresh.train(make_groups(2))["loss"])


def test_non_finite_updates_in_a_row_stop_the_run_in_one_line(fresh: Learner) -> None:
    broken = with_nan(make_groups(1))
    fresh.train(broken)
    fresh.train(broken)
    fresh.train(make_groups(1))  # a good one in between starts the count again
    fresh.train(broken)
    fresh.train(broken)
    with pytest.raises(NonFiniteError) as caught:
        fresh.train(broken)
    message = str(caught.value)
    assert "\n" not in message
    assert "3 updates in a row" in message
    assert "in step 5" in message
    assert "learner.optimizer.learning_rate" in message


@pytest.mark.parametrize(
    ("keys", "programs", "steps"),
    [({}, 1, 25), ({"kl": KlConfig(where="reward", estimator="k1")}, 3, 8)],
    ids=["step", "step, reference and divergence"],
)
def test_a_run_compiles_a_bounded_number_of_programs(keys: dict[str, Any], programs: int, steps: int) -> None:
    compiled: list[str] = []

    def listen(event: str, duration: float, **fields: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    behaviour_divergence.clear_cache()  # of another learner in this process
    jnp.asarray(0, jnp.int32)  # once a process, for the number of a step
    learner = make_learner(algorithm=keys)
    rng = np.random.default_rng(0)
    shapes = set()
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for step in range(steps):
            longest = int(rng.integers(1, 17))
            groups = make_groups(step)
            groups = [
                dataclasses.replace(
                    g,
                    trajectories=tuple(
                        make_trajectory(
                            rng, int(rng.integers(1, 9)), int(rng.integers(0, longest + 1)), float(rng.random())
                        )
                        for _ in range(4)
                    ),
                )
                for g in groups
            ]
            shapes.add(tuple((p.batch.mask.shape, p.batch.places.shape) for p in learner.pack(groups)))
            learner.train(groups)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert len(shapes) > 1
    assert len(compiled) == programs * len(shapes)
    assert len(shapes) <= MAX_ROW_LENGTHS * (MAX_HALVINGS + 1)


def test_score_is_raw_log_probability_at_temperature_one(fresh: Learner) -> None:
    ids = np.random.default_rng(0).integers(0, 32, 21).astype(np.int32)
    params = fresh.state.params
    hidden = hidden_states(params, ARCHITECTURE, ids[None], np.arange(21)[None], np.ones((1, 21), np.int32))
    logits = np.asarray(hidden[0] @ output_head(params, ARCHITECTURE), np.float64)
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    got = fresh.score(ids)
    assert got.shape == (20,)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected[np.arange(20), ids[1:]], atol=1e-5)
    np.testing.assert_allclose(fresh.score(ids[:5]), got[:4], atol=1e-5)
    assert fresh.score(ids[:1]).shape == (0,)


def test_an_export_is_not_touched_by_the_training_that_follows(fresh: Learner) -> None:
    exported = {dtype: dict(fresh.export(dtype)) for dtype in ("fp32", "bf16")}
    embedding = np.array(fresh.state.params["embedding"])
    query = np.array(fresh.state.params["layers"]["query"][1])
    for seed in range(3):
        fresh.train(make_groups(seed))
    for dtype, tensors in exported.items():
        assert {name: x.shape for name, x in tensors.items()} == tensor_shapes(ARCHITECTURE)
        assert {x.dtype for x in tensors.values()} == {jnp.dtype({"fp32": "float32", "bf16": "bfloat16"}[dtype])}
    np.testing.assert_array_equal(exported["fp32"]["model.embed_tokens.weight"], embedding)
    np.testing.assert_array_equal(exported["fp32"]["model.layers.1.self_attn.q_proj.weight"], query.T)
    np.testing.assert_array_equal(exported["bf16"]["model.embed_tokens.weight"], embedding.astype(jnp.bfloat16))
    assert not np.array_equal(fresh.state.params["embedding"], embedding)


def test_wrong_names_and_devices_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"algorithm.aggregation='mean': there is no such one; closest: token-mean"):
        make_learner(algorithm={"aggregation": "mean"})
    with pytest.raises(ConfigError, match=r"algorithm.pg_variant='p': there is no such one; "):
        make_learner(algorithm={"pg_variant": "p"})
    with pytest.raises(ConfigError, match="multiplies to 512 devices"):
        make_learner(mesh={"tensor": 512})
