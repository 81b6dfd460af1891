"""What `test_hosts_objectives` asks: steps of every loss and of what a step may read beside it, over four devices.

    python -m tests.learner.hosts_worker FILE                  one process with all of them
    python -m tests.learner.hosts_worker FILE RANK PORT        one of two processes that have two each

Each trains all objectives, one after the other. The first process leaves in the file the weights after each step.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.registry import policy_losses
from rljax.config.schema import DistillConfig, KlConfig, TeacherConfig
from rljax.learner.learner import Learner
from rljax.learner.teachers import StoredTeacher
from rljax.models.common.placing import readable
from rljax.models.hf_names import to_hf
from tests.learner.made_up import ARCHITECTURE, make_config, make_groups, make_params, trajectories_of

DEVICES = 4
LEARNING_RATE = 1e-3
LOSSES = policy_losses.names()


def each_in_turn(inputs: LossInputs) -> TokenLoss:
    """Every loss, one an update, in one program: what compiles takes nearly all of the time here."""
    found = [policy_losses.bound(name)(inputs)[0] for name in LOSSES]
    return jnp.stack(found)[inputs.updates % len(found)], {}


OBJECTIVES: dict[str, dict[str, Any]] = {
    "losses": {"pg_variant": "each_in_turn", "kl": KlConfig(where="loss", coef=0.1), "entropy_coef": 0.1},
    "KL in the reward": {"kl": KlConfig(where="reward", coef=0.1, target=0.01), "adv_estimator": "reinforce"},
    "critic": {"adv_estimator": "gae", "minibatch_size": 8, "whiten_advantages": True},
    "teacher": {"distill": DistillConfig(teachers={"other": TeacherConfig(path="none")})},
    "running moments": {"norm_mean": "running", "norm_std": "running", "ppo_epochs": 2},
}
"""What is computed over all devices and read on the host, or kept from step to step."""


def trained(name: str) -> dict[str, np.ndarray]:
    """Returns the weights, of a critic too, by objective, what made the step, and path."""
    config = make_config(
        mesh={"fsdp": 2, "data": 2},
        learner={"rows_per_microbatch": 8},
        optimizer={"learning_rate": LEARNING_RATE},
        algorithm=OBJECTIVES[name],
    )
    stored = StoredTeacher(ARCHITECTURE, to_hf(make_params(1), ARCHITECTURE))
    teachers = dict.fromkeys(config.algorithm.distill.teachers, stored)
    learner = Learner(config, ARCHITECTURE, make_params(), devices=jax.devices(), teachers=teachers)
    found: dict[str, np.ndarray] = {}
    groups = make_groups(0)  # at each step: another batch may be of another shape, and compiled anew
    shown = trajectories_of(make_groups(100, groups=1)) if name == "losses" else ()
    for step in LOSSES if name == "losses" else range(3):
        learner.train(groups, demonstrations=shown)
        whole = readable((learner.state.params, learner.state.aux_state.get("critic", {})))
        leaves, _ = jax.tree.flatten_with_path(whole)
        found |= {f"{name}: {step}: {jax.tree_util.keystr(path)}": np.asarray(leaf) for path, leaf in leaves}
    return found


def main(file: Path, rank: int, port: str) -> None:
    """Trains all objectives; the first process writes the weights."""
    needed = {"needs": ("proximal", "reference", "sequences"), "whole_groups": True}
    policy_losses.register("each_in_turn", **needed)(each_in_turn)  # here alone: the test imports this file
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as `rljax.pipeline.assemble.hosts` does, and why
    if port:
        jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
    assert (len(jax.devices()), len(jax.local_devices())) == (DEVICES, DEVICES // (2 if port else 1))
    found = [trained(name) for name in OBJECTIVES]
    if rank == 0:
        np.savez(file, **{name: array for each in found for name, array in each.items()})
    if port:
        jax.distributed.shutdown()


if __name__ == "__main__":
    given, of_two = sys.argv[1:2], sys.argv[2:]
    count = DEVICES // (2 if of_two else 1)
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    main(Path(given[0]), *(int(of_two[0]), of_two[1]) if of_two else (0, ""))
