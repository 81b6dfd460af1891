"""What `test_hosts_objectives` asks: steps of every loss and of what a step may read beside it, over four devices.

    python -m tests.learner.hosts_worker FILE                  one process with all of them
    python -m tests.learner.hosts_worker FILE RANK PORT        one of two processes that have two each

Each trains all objectives, one after the other. The first process leaves in the file the weights after each step.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import distributed  # JAX has no public names for its coordination service

from rljax.algorithms.inputs import LossInputs, TokenLoss
from rljax.algorithms.registry import policy_losses
from rljax.config.model import LoraConfig
from rljax.config.schema import Config, DistillConfig, KlConfig, TeacherConfig
from rljax.learner.hosts import Hosts
from rljax.learner.leading import asked_by_leader
from rljax.learner.learner import Learner
from rljax.learner.teachers import Ask, AskedTeacher, StoredTeacher
from rljax.models.common.architecture import Experts
from rljax.models.common.placing import readable
from rljax.models.hf_names import to_hf
from rljax.trajectory import Trajectory
from tests.learner.made_up import ARCHITECTURE, make_config, make_groups, make_params, trajectories_of

ROUTED = dataclasses.replace(ARCHITECTURE, family="qwen3_moe", experts=Experts(4, 2, 16))
METRIC = "metric "
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
    "served teacher": {"distill": DistillConfig(teachers={"other": TeacherConfig(url="http://none", model="none")})},
    "running moments": {"norm_mean": "running", "norm_std": "running", "ppo_epochs": 2},
    "adapter": {"kl": KlConfig(where="loss", coef=0.1)},
    "experts": {"router_aux_loss_coef": 0.01},
}
"""What is computed over all devices and read on the host, or kept from step to step."""


def said_by_teacher(trajectories: Sequence[Trajectory], weights: Sequence[np.ndarray], _: int) -> list[np.ndarray]:
    """Returns what a served teacher might: of each token something else."""
    pairs = zip(trajectories, weights, strict=True)
    return [np.where(weight > 0, -1 - t.token_ids % 5 / 4, 0).astype(np.float32) for t, weight in pairs]


def given_teachers(config: Config) -> dict[str, StoredTeacher | AskedTeacher]:
    """Returns the teachers of a config: of a served one, what host 0 alone is told."""
    found: dict[str, StoredTeacher | AskedTeacher] = {}
    for name in config.algorithm.distill.stored:
        found[name] = StoredTeacher(ARCHITECTURE, to_hf(make_params(1), ARCHITECTURE))
    for name, settings in config.algorithm.distill.served.items():
        ask: Ask | None = said_by_teacher if jax.process_index() == 0 else None
        if jax.process_count() > 1:
            hosts = Hosts(distributed.global_state.client, jax.process_index(), jax.process_count(), 300.0)
            ask = asked_by_leader(hosts, ask)
        found[name] = AskedTeacher(settings, ask)
    return found


def trained(name: str) -> dict[str, np.ndarray]:
    """Returns the weights, of a critic too, by objective, what made the step, and path."""
    config = make_config(
        mesh={"fsdp": 2, "data": 2},
        learner={"rows_per_microbatch": 8},
        optimizer={"learning_rate": LEARNING_RATE},
        algorithm=OBJECTIVES[name],
        model={"lora": LoraConfig(rank=4)} if name == "adapter" else {},
    )
    architecture = ROUTED if name == "experts" else ARCHITECTURE
    given = config, architecture, make_params(architecture=architecture)
    learner = Learner(*given, devices=jax.devices(), teachers=given_teachers(config))
    found: dict[str, np.ndarray] = {}
    groups = make_groups(0)  # at each step: another batch may be of another shape, and compiled anew
    shown = trajectories_of(make_groups(100, groups=1)) if name == "losses" else ()
    for step in LOSSES if name == "losses" else range(3):
        metrics = learner.train(groups, demonstrations=shown)
        found |= {f"{name}: {step}: {METRIC}{key}": np.asarray(value) for key, value in metrics.items()}
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
