"""Run by the tests with eight fake CPU devices: ``python -m tests.learner.mesh_worker WHAT DIRECTORY``."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

import jax
import numpy as np

from rljax.learner.checkpoints import Checkpoints
from rljax.learner.learner import Learner
from rljax.learner.train_step import loss_and_gradient
from tests.learner.made_up import ARCHITECTURE, make_config, make_groups, make_params, relative_error

LAYOUTS: list[dict[str, int]] = [
    {},
    {"data": 2},
    {"data": 4},
    {"data": 8},
    {"fsdp": 2},
    {"fsdp": 4},
    {"fsdp": 8},
    {"tensor": 2},
    {"tensor": 4},
    {"tensor": 8},  # more than there are key-value heads
    {"data": 2, "fsdp": 2, "tensor": 2},
    {"fsdp": 2, "sequence": 2, "tensor": 2},
]


def make_learner(layout: dict[str, int]) -> Learner:
    """A learner over as many devices as the layout multiplies to."""
    # chunks smaller than the batch, so that the chunked log-probabilities are laid over the mesh too
    config = make_config(mesh=layout, learner={"rows_per_microbatch": 8}, model={"logprob_chunk": 64})
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


def save_on_eight(directory: Path) -> list[dict]:
    """Trains a step on eight devices, saves, and leaves the state as numpy for the test to compare with."""
    learner = make_learner({"data": 2, "fsdp": 2, "tensor": 2})
    metrics = learner.train(make_groups(0))
    checkpoints = Checkpoints(directory / "checkpoints", keep=1)
    checkpoints.save(learner.steps, learner.state, {})
    checkpoints.wait()
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(learner.state)]
    np.savez(directory / "state.npz", *leaves)
    return [metrics]


if __name__ == "__main__":
    what, where = sys.argv[1], Path(sys.argv[2])
    outcome = compare_layouts() if what == "layouts" else save_on_eight(where)
    (where / "outcome.json").write_text(json.dumps(outcome))
