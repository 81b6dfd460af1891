"""A learner that trains an adapter: what is trained, held, saved and scored; the numbers are in tests/models."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.config.schema import CriticConfig, KlConfig, LoraConfig, RowsConfig, TasksConfig
from rljax.learner.checkpoints import CheckpointError, Checkpoints
from rljax.learner.learner import Learner
from rljax.learner.objective import Progress
from rljax.learner.state import whole_models
from rljax.learner.train_step import loss_and_gradient
from rljax.models.common.params import Params
from rljax.models.hf_names import to_hf
from tests.learner.made_up import ARCHITECTURE, make_config, make_groups, make_params, relative_error
from tests.learner.states import abstract, assert_same

pytestmark = pytest.mark.slow

RANK = 3
# (rows + columns) · rank of query, key, value, output, gate, up and down, in two layers
ADAPTER = 2 * RANK * ((32 + 32) + (32 + 16) + (32 + 16) + (32 + 32) + 3 * (32 + 64))


def make_learner(lora: dict[str, Any] | None = None, **changes: Any) -> Learner:
    keys = {"rank": RANK, "alpha": 6.0, **(lora or {})}
    model = {"lora": LoraConfig(**keys), **changes.pop("model", {})}
    return Learner(make_config(model=model, **changes), ARCHITECTURE, make_params())


def numbers(tree: Any) -> int:
    return sum(x.size for x in jax.tree.leaves(tree))


def moved(params: Params, seed: int = 0) -> Params:
    """An adapter that changes the model: at its start B is 0."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.2, x.shape), jnp.float32), params)


def reference_of(learner: Learner) -> tuple[Params, Any]:
    minibatches, _ = learner._minibatches(make_groups(1), (), ())
    return learner.params, minibatches[0]


def test_an_adapter_learns_ten_times_as_fast_where_nobody_says_how_fast() -> None:
    """LoRA Without Regret (Schulman et al. 2025), section 5; of full weights the default is 1e-6."""
    rates = []
    for full in (False, True):
        for rate in (None, 3e-3):
            lora = {"rank": None, "alpha": LoraConfig().alpha} if full else {}
            learner = make_learner(lora, optimizer={"learning_rate": rate})
            rates.append(learner.train(make_groups(0))["learning_rate"])
    assert rates == pytest.approx([1e-5, 3e-3, 1e-6, 3e-3])


def test_the_adapter_alone_is_trained_and_has_moments() -> None:
    learner = make_learner()
    base = jax.tree.map(np.array, learner.base)
    before = learner.score(np.arange(20, dtype=np.int32))
    first = learner.train(make_groups(0))
    assert numbers(learner.state.params) == ADAPTER
    assert numbers(learner.state.opt_state) in range(2 * ADAPTER, 2 * ADAPTER + 4)  # two moments, and counts
    for _ in range(4):
        last = learner.train(make_groups(0))
    assert last["loss"] < first["loss"] - 0.01
    assert_same(jax.tree.map(np.asarray, learner.base), base)
    assert np.abs(learner.score(np.arange(20, dtype=np.int32)) - before).max() > 0.01


@pytest.mark.parametrize("remat", ["none", "full"])
def test_its_gradient_is_that_of_the_merged_weights_by_the_chain_rule(remat: str) -> None:
    """With W' = W + s·A·B and G the gradient of W', that of A is s·G·Bᵀ and that of B is s·Aᵀ·G."""
    learner, groups = make_learner(model={"remat": remat}), make_groups(2)
    trained = moved(learner.state.params)
    packed = learner.pack(groups)[0]
    whole = jax.tree.map(np.asarray, make_params())
    for key, pair in trained["layers"].items():
        whole["layers"][key] = whole["layers"][key] + 2.0 * np.asarray(pair["lora_a"]) @ np.asarray(pair["lora_b"])
    full = Learner(make_config(), ARCHITECTURE, whole)
    loss, merged, _ = jax.jit(partial(loss_and_gradient, full.objective))(whole, packed.batch, packed.microbatches)
    expected = {
        key: {
            "lora_a": 2.0 * np.asarray(merged["layers"][key]) @ np.swapaxes(pair["lora_b"], 1, 2),
            "lora_b": 2.0 * np.swapaxes(pair["lora_a"], 1, 2) @ np.asarray(merged["layers"][key]),
        }
        for key, pair in trained["layers"].items()
    }
    compute = jax.jit(partial(loss_and_gradient, learner.objective))
    found, gradient, _ = compute(trained, packed.batch, packed.microbatches, Progress(), learner.base)
    assert float(found) == pytest.approx(float(loss), rel=1e-5)
    assert relative_error(gradient["layers"], expected) < 1e-4


def test_the_reference_is_the_base_and_no_copy() -> None:
    kl = {"kl": KlConfig(where="loss", coef=0.1)}
    plain, learner = make_learner(), make_learner(algorithm=kl)
    assert "reference" not in learner.state.aux_state
    held = {id(x) for x in jax.tree.leaves(learner.base)}
    assert {
        id(x) for x in jax.tree.leaves(whole_models(learner.config, {}, learner.base, learner.objective)["reference"])
    } == held
    assert numbers(learner.state.params) == numbers(plain.state.params)

    learner.train(make_groups(0))
    _, minibatch = reference_of(learner)
    full = Learner(make_config(algorithm=kl), ARCHITECTURE, make_params())  # whose reference is a copy of the start
    assert numbers(full.state.aux_state["reference"]) == numbers(make_params())
    expected, _ = full._minibatches(make_groups(1), (), ())
    np.testing.assert_allclose(minibatch.scores.reference_logprobs, expected[0].scores.reference_logprobs, atol=1e-5)
    batch = learner.place(minibatch.packed.batch)
    live = np.asarray(learner.logprobs(batch, minibatch.microbatches))
    assert np.abs(live - np.asarray(minibatch.scores.reference_logprobs)).max() > 0.01, "the policy has moved"


def test_a_reference_that_is_renewed_is_a_copy_of_the_adapter() -> None:
    learner = make_learner(algorithm={"kl": KlConfig(where="loss", coef=0.1, refresh_steps=2)})
    assert numbers(learner.state.aux_state["reference"]) == ADAPTER
    learner.train(make_groups(0))
    _, before = reference_of(learner)
    learner.train(make_groups(0))
    _, after = reference_of(learner)
    batch = learner.place(after.packed.batch)
    now = np.asarray(learner.logprobs(batch, after.microbatches))
    np.testing.assert_allclose(after.scores.reference_logprobs, now, atol=1e-5)
    assert np.abs(np.asarray(before.scores.reference_logprobs) - now).max() > 0.01


def test_a_restart_goes_on_to_the_bit_from_a_checkpoint_that_holds_the_adapter(tmp_path: Path) -> None:
    """Dropout too: what an update drops follows from its number."""
    keys: dict[str, Any] = {
        "lora": {"dropout": 0.1},
        "algorithm": {"ppo_epochs": 2, "minibatch_size": 8, "kl": KlConfig(where="loss", coef=0.1)},
    }
    learner, checkpoints = make_learner(**keys), Checkpoints(tmp_path, keep=1)
    learner.train(make_groups(0))
    checkpoints.save(1, learner.state, {"lineage": 1})
    first = [learner.train(make_groups(1)), learner.train(make_groups(2))]
    checkpoints.wait()

    again = Learner(learner.config, ARCHITECTURE)
    again.restore(checkpoints, 1)
    again.load_base(to_hf(make_params(), ARCHITECTURE))
    assert [again.train(make_groups(1)), again.train(make_groups(2))] == first
    assert_same(again.state, learner.state)
    held = checkpoints.restore_params(1, abstract(learner.state.params))
    assert numbers(held) == ADAPTER

    other = make_learner({"rank": RANK + 1}, algorithm=keys["algorithm"])
    with pytest.raises(CheckpointError, match=r"it is of another model: .*lora_a"):
        other.restore(checkpoints, 1)


def test_dropout_is_of_updates_alone_and_other_in_each_microbatch() -> None:
    learner, groups = make_learner({"dropout": 0.5}), make_groups(2)
    plain = make_learner()
    trained = moved(learner.state.params)
    packed = learner.pack(groups)[0]
    assert packed.microbatches > 1
    scored = [one.objective.whole(trained, one.base) for one in (learner, plain)]
    batch = learner.place(packed.batch)
    with_key, without = (np.asarray(learner._preparation.logprobs(p, batch, packed.microbatches)) for p in scored)
    np.testing.assert_array_equal(with_key, without, "scores drop nothing")

    compute = jax.jit(partial(loss_and_gradient, learner.objective))
    update = partial(compute, trained, packed.batch, packed.microbatches)
    losses = [float(update(Progress(updates=np.int32(n)), learner.base)[0]) for n in (0, 0, 1)]
    undropped = float(
        jax.jit(partial(loss_and_gradient, plain.objective))(
            trained, packed.batch, packed.microbatches, Progress(), plain.base
        )[0]
    )
    assert losses[0] == losses[1]
    assert len({losses[0], losses[2], undropped}) == 3
    one, two = (
        learner.objective.whole(trained, learner.base, Progress(), index)["layers"]["query"].key for index in (0, 1)
    )
    keys = np.concatenate([np.asarray(jax.random.key_data(k)) for k in (one, two)])
    assert len(np.unique(keys, axis=0)) == 4, "of two microbatches and two layers"


def test_what_is_left_of_an_input_makes_up_for_what_is_dropped() -> None:
    """The mean over many masks is the input itself."""
    learner = make_learner({"dropout": 0.25})
    weight = learner.objective.whole(learner.state.params, learner.base, Progress(), 0)["layers"]["query"][0]
    shown = np.asarray(weight.shown(jnp.ones((400, 32))))
    np.testing.assert_allclose(np.unique(shown), [0.0, 4 / 3], rtol=1e-6)
    assert shown.mean() == pytest.approx(1.0, abs=0.02)


def test_dropout_beside_ratios_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    demonstrations = {"pg_variant": "sft", "adv_estimator": "none", "expert_data_ratio": 1.0}
    make_learner()
    make_learner({"dropout": 0.05}, algorithm=demonstrations, tasks=TasksConfig(expert=RowsConfig(source="some.jsonl")))
    assert not caplog.records
    make_learner({"dropout": 0.05})
    (record,) = caplog.records
    assert record.getMessage().startswith("model.lora.dropout=0.05: updates leave out what engines and scores do not")


def test_a_critic_is_an_adapter_of_the_same_base_with_a_head() -> None:
    learner = make_learner(algorithm={"adv_estimator": "gae", "critic": CriticConfig()})
    critic = learner.state.aux_state["critic"]
    assert numbers(critic) == ADAPTER + 32
    metrics = [learner.train(make_groups(0)) for _ in range(6)]
    assert metrics[-1]["critic/loss"] < metrics[0]["critic/loss"]
    assert np.abs(np.asarray(learner.state.aux_state["critic"]["layers"]["up"]["lora_b"])).max() > 0


def test_what_is_exported_is_the_adapter_with_all_layers_of_a_factor_in_one() -> None:
    learner = make_learner()
    learner.train(make_groups(0))
    found, info = learner.export("fp32"), learner.adapter_info
    assert info is not None
    assert (info.base, info.base_dtype, info.scale) == (learner.base_fingerprint, "fp32", 2.0)
    pair = jax.tree.map(np.asarray, learner.state.params)["layers"]["query"]
    module = "model.layers.*.self_attn.q_proj"
    np.testing.assert_array_equal(found[f"{module}.lora_A.weight"], pair["lora_a"].transpose(0, 2, 1))
    np.testing.assert_array_equal(found[f"{module}.lora_B.weight"], pair["lora_b"].transpose(0, 2, 1))
    assert len(found) == 2 * len(learner.state.params["layers"])


def test_what_is_sent_over_nccl_is_merged() -> None:
    learner = make_learner(sync_method="nccl")
    assert learner.adapter_info is None
    learner.train(make_groups(0))
    expected = jax.tree.map(np.asarray, make_params())
    for key, pair in jax.tree.map(np.asarray, learner.state.params)["layers"].items():
        expected["layers"][key] = expected["layers"][key] + 2.0 * pair["lora_a"] @ pair["lora_b"]
    found = learner.export("fp32")
    named = to_hf(expected, ARCHITECTURE)
    assert list(found) == list(named)
    for name, tensor in named.items():
        np.testing.assert_allclose(found[name], tensor, atol=1e-6, err_msg=name)


def test_the_base_is_held_in_the_dtype_of_the_computation() -> None:
    learner = make_learner(model={"dtype": "bf16"})
    assert {x.dtype for x in jax.tree.leaves(learner.base)} == {jnp.dtype("bfloat16")}
    assert {x.dtype for x in jax.tree.leaves(learner.state.params)} == {jnp.dtype("float32")}
    assert np.isfinite(learner.train(make_groups(0))["loss"])
