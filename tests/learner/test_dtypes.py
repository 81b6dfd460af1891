"""Dtypes beside that of the computation: of gradients while devices add them up, and of the optimizer's moments."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.learner.checkpoints import Checkpoints
from rljax.learner.learner import Learner
from rljax.learner.train_step import loss_and_gradient
from rljax.models.common.architecture import Architecture
from rljax.models.common.hardware import Hardware
from tests.learner.made_up import ARCHITECTURE, make_config, make_groups, make_params, relative_error

pytestmark = pytest.mark.slow

BIASED = Architecture("llama", 32, 32, 64, 2, 4, 2, 8, tie_embeddings=True, attention_bias=True)


@pytest.mark.parametrize("architecture", [ARCHITECTURE, BIASED], ids=["head", "tied and biased"])
def test_a_gradient_that_is_reduced_in_float32_is_rounded_nowhere(architecture: Architecture) -> None:
    def gradient_of(**keys: Any) -> tuple[float, Any]:
        config = make_config(learner={"rows_per_microbatch": 16, **keys}, model={"dtype": "bf16"})
        learner = Learner(config, architecture, make_params(architecture=architecture))
        packed = learner.pack(make_groups(3))[0]
        assert packed.microbatches == 1
        compute = jax.jit(functools.partial(loss_and_gradient, learner.objective))
        loss, gradient, _ = compute(learner.state.params, packed.batch, packed.microbatches)
        return float(loss), jax.device_get(gradient)

    (loss, narrow), (same, wide) = gradient_of(), gradient_of(reduce_dtype="fp32")
    assert same == loss
    assert relative_error(wide, narrow) < 0.1, "bf16 sums of norms' gradients are off by some percent"
    for path, rounded in jax.tree_util.tree_leaves_with_path(narrow["layers"]):
        np.testing.assert_array_equal(rounded, rounded.astype(jnp.bfloat16), err_msg=str(path))
    for path, exact in jax.tree_util.tree_leaves_with_path(wide):
        assert exact.dtype == np.float32
        assert np.mean(exact != exact.astype(jnp.bfloat16)) > 0.5, path


def test_moments_go_on_in_the_dtype_that_the_config_says(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def learner(**keys: Any) -> Learner:
        return Learner(make_config(optimizer=keys), ARCHITECTURE, make_params())

    def moments(learner: Learner) -> Any:
        return learner.state.opt_state[1][0].mu, learner.state.opt_state[1][0].nu

    narrow, checkpoints = learner(mu_dtype="bf16"), Checkpoints(tmp_path, keep=1)
    narrow.train(make_groups(0))
    saved = jax.device_get(moments(narrow))
    checkpoints.save(1, narrow.state, {"lineage": 1})
    checkpoints.wait()
    with caplog.at_level(logging.WARNING):
        narrow.restore(checkpoints, 1)
    assert not caplog.records
    for here, there in zip(jax.tree.leaves(moments(narrow)), jax.tree.leaves(saved), strict=True):
        np.testing.assert_array_equal(np.asarray(here), there)
        assert here.dtype == there.dtype
    wide = learner()
    with caplog.at_level(logging.WARNING):
        wide.restore(checkpoints, 1)
    (said,) = caplog.messages
    count = len(jax.tree.leaves(wide.state.params))
    assert f"and {count - 1} more were saved in bfloat16 and go on in float32: model.dtype, or mu_dtype" in said
    for here, there in zip(jax.tree.leaves(moments(wide)), jax.tree.leaves(saved), strict=True):
        assert here.dtype == jnp.float32
        np.testing.assert_array_equal(np.asarray(here), there.astype(np.float32))
    wide.train(make_groups(1))


@pytest.mark.parametrize("variant", ["decoupled_ppo", "opmd_pairwise"])
def test_what_computes_with_the_model_is_compiled_as_the_hardware_says(
    monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    """What trains, the sums over trajectories, and the probe that learner and engines are compared by."""
    monkeypatch.setattr(Hardware, "repeatable", lambda self, autotuned=True: {f"xla_no_such_{autotuned}": True})
    of_variant: dict[str, Any] = {
        "decoupled_ppo": {},
        "opmd_pairwise": {"adv_estimator": "opmd_mean", "aggregation": "seq-mean-token-sum", "loss": {"tau": 0.5}},
    }
    algorithm = {"pg_variant": variant} | of_variant[variant]
    config = make_config(algorithm=algorithm, learner={"autotune": False})
    programs = Learner(config, ARCHITECTURE, make_params()).programs(20)
    asked = [program for program in programs if program.likely and not program.name.startswith("export")]
    sums = {"reference", "sums of log-ratios"} if variant == "opmd_pairwise" else set()
    assert {p.name.rpartition(" 8×")[0] or p.name for p in asked} == {"log-probabilities", "update", "probe"} | sums
    for program in asked:
        with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option: 'xla_no_such_False'"):
            program.lower().compile()
