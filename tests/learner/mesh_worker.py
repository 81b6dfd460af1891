"""Run by the tests with eight fake CPU devices: ``python -m tests.learner.mesh_worker WHAT DIRECTORY``."""

from __future__ import annotations

import functools
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.config.schema import CorrectionConfig, KlConfig, MeshConfig
from rljax.learner.checkpoints import Checkpoints
from rljax.learner.learner import Learner
from rljax.learner.sharding import batch_sharding, make_mesh, parameter_shardings
from rljax.learner.train_step import loss_and_gradient
from rljax.models.common.embedding import embed
from rljax.models.common.hardware import Hardware
from tests.learner.made_up import ARCHITECTURE, make_config, make_groups, make_params, relative_error

ALL_AXES = {"data": 2, "fsdp": 2, "tensor": 2}
LAYOUTS: list[dict[str, int]] = [
    {},
    {"data": 2},
    {"data": 8},
    {"fsdp": 2},
    {"fsdp": 8},
    {"tensor": 2},
    {"tensor": 4},
    {"tensor": 8},  # more than there are key-value heads
    {"sequence": 4},
    {"data": 2, "sequence": 4},
    {"data": 2, "tensor": 4},
    {"fsdp": 2, "sequence": 4},
    {"sequence": 2, "tensor": 4},
    ALL_AXES,
    {"fsdp": 2, "sequence": 2, "tensor": 2},
]


# Together: sums over a trajectory, a group and a minibatch, every forward pass that a loss may ask for, a critic.
OBJECTIVES: list[dict[str, Any]] = [
    {
        "pg_variant": "opmd_pairwise",
        "adv_estimator": "opmd_mean",
        "aggregation": "seq-mean-token-sum",
        "minibatch_size": 8,
        "correction": CorrectionConfig(level="sequence", mode="mask", low=0.1, high=10.0),
    },
    {
        "pg_variant": "decoupled_ppo",
        "aggregation": "seq-mean-token-sum-norm",
        "kl": KlConfig(where="loss", coef=0.1),
        "entropy_coef": 0.1,
    },
    {
        "pg_variant": "gspo",
        "adv_estimator": "gae",
        "aggregation": "seq-mean-token-mean",
        "kl": KlConfig(where="reward", coef=0.1),
        "whiten_advantages": True,
    },
]


def make_learner(layout: dict[str, int], **changes: Any) -> Learner:
    """A learner over as many devices as the layout multiplies to."""
    # chunks smaller than the batch, so that the chunked log-probabilities are laid over the mesh too
    config = make_config(mesh=layout, learner={"rows_per_microbatch": 8}, model={"logprob_chunk": 64}, **changes)
    return Learner(config, ARCHITECTURE, make_params())


def compare_layouts() -> list[dict]:
    """Loss and gradient of one batch under every layout, against one device."""
    groups = make_groups(3)
    results, expected = [], None
    for layout in LAYOUTS:
        learner = make_learner(layout)
        packed = learner.pack(groups)[0]
        gradient_of = jax.jit(functools.partial(loss_and_gradient, learner.objective))
        loss, gradient, _ = gradient_of(learner.state.params, learner.place(packed.batch), packed.microbatches)
        expected = expected or (float(loss), jax.device_get(gradient))
        devices = {d for leaf in jax.tree.leaves(learner.state.params) for d in leaf.sharding.device_set}
        cut = sum(not leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(learner.state.params))
        results.append(
            {
                "layout": layout,
                "devices": len(devices),
                "cut": cut,
                "loss": abs(float(loss) - expected[0]) / abs(expected[0]),
                "gradient": relative_error(jax.device_get(gradient), expected[1]),
            }
        )
    return results


def embedding_gradients() -> list[dict]:
    """The bf16 gradient of a lookup of which every number is 1: how far it is from counting the tokens, by layout, and
    whether a device adds up the whole table.
    """
    tokens = np.minimum(np.random.default_rng(0).geometric(0.5, (8, 512)) - 1, 63).astype(np.int32)
    expected = np.bincount(tokens.ravel(), minlength=64).astype(jnp.bfloat16).astype(np.float64)
    results = []
    for layout in LAYOUTS:
        mesh = make_mesh(MeshConfig(**layout), jax.devices()[: math.prod(layout.values())])
        table = {"embedding": jnp.ones((64, 32), jnp.bfloat16)}
        table = jax.device_put(table, parameter_shardings(table, mesh))
        placed = jax.device_put(tokens[None], batch_sharding(tokens[None].shape, mesh))
        hardware = Hardware.of(mesh)

        def total(table: dict[str, jax.Array], ids: jax.Array, hardware: Hardware = hardware) -> jax.Array:
            return jnp.sum(
                hardware.constrain(embed(table["embedding"], ids[0], hardware), "hidden").astype(jnp.float32)
            )

        gradient_of = jax.jit(jax.grad(total)).lower(table, placed).compile()
        gradient = np.asarray(gradient_of(table, placed)["embedding"], np.float64)
        whole = re.search(r"= f32\[64,32\]\S* scatter", gradient_of.as_text()) is not None
        error = np.abs(gradient - expected[:, None]).max()
        results.append({"layout": layout, "error": error, "most": expected.max(), "whole": whole})
    return results


def train_objectives() -> list[dict]:
    """What two steps log, by objective: on one device, and over all axes."""
    groups = [make_groups(seed) for seed in (4, 5)]

    def logged(layout: dict[str, int], keys: dict[str, Any]) -> list[dict[str, float]]:
        learner = make_learner(layout, algorithm=keys, optimizer={"learning_rate": 1e-3})
        return [learner.train(batch) for batch in groups]

    return [{"keys": str(keys), "one": logged({}, keys), "eight": logged(ALL_AXES, keys)} for keys in OBJECTIVES]


def save_on_eight(directory: Path) -> list[dict]:
    """Trains a step on eight devices, saves, and leaves the state as numpy for the test to compare with."""
    learner = make_learner(ALL_AXES)
    metrics = learner.train(make_groups(0))
    checkpoints = Checkpoints(directory / "checkpoints", keep=1)
    checkpoints.save(learner.steps, learner.state, {})
    checkpoints.wait()
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(learner.state)]
    np.savez(directory / "state.npz", *leaves)
    return [metrics]


if __name__ == "__main__":
    what, where = sys.argv[1], Path(sys.argv[2])
    work = {
        "layouts": compare_layouts,
        "embedding": embedding_gradients,
        "objectives": train_objectives,
        "save": functools.partial(save_on_eight, where),
    }
    outcome = work[what]()
    (where / "outcome.json").write_text(json.dumps(outcome))
