"""What `test_mesh_losses` asks eight fake CPU devices (see `eight_devices`).

Every registered loss and the critic's, with their gradients by the parameters, over every pair of mesh axes. A loss is
a function of log-probabilities and entropies, so that two programs serve all of them: one has all losses with their
gradients by what the model returns, the other runs the model and pulls such a gradient back to the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rljax.algorithms.registry import PolicyLoss, policy_losses
from rljax.config.schema import KlConfig
from rljax.learner.critic import ValueObjective
from rljax.learner.objective import PolicyObjective, Progress
from rljax.learner.packing import Batch, Scores, pack
from rljax.learner.rows import RowShape
from rljax.learner.sharding import batch_sharding, make_mesh, parameter_shardings
from rljax.learner.train_step import microbatch
from rljax.models.common.hardware import Hardware
from rljax.models.common.value_head import critic_params
from tests.learner.eight_devices import answer
from tests.learner.made_up import (
    ARCHITECTURE,
    make_config,
    make_groups,
    make_params,
    trajectories_of,
)

NAMES = policy_losses.names()
LAYOUTS: list[dict[str, int]] = [  # `mesh_worker` has one loss over each axis alone and over three
    {},
    {"data": 2, "fsdp": 4},
    {"data": 2, "sequence": 4},
    {"data": 2, "tensor": 4},
    {"fsdp": 2, "sequence": 4},
    {"fsdp": 2, "tensor": 4},
    {"sequence": 2, "tensor": 4},
]


@dataclass(frozen=True)
class OfLogprobs(PolicyObjective):
    """A policy's objective whose parameters are log-probabilities and entropies."""

    name: str = ""

    @property
    def policy_loss(self) -> PolicyLoss:
        return policy_losses.bound(self.name)

    def routed(self, params: Any, batch: Batch) -> Any:
        del params, batch
        return None, None

    def _logprobs(self, params: Any, hidden: Any, batch: Batch) -> Any:
        del hidden, batch
        return params


def made_up_batch() -> Batch:
    """Rows with everything that any loss reads: a reference, a proximal policy, sums, demonstrations, values."""
    rng = np.random.default_rng(0)
    trajectories = trajectories_of(make_groups(3))
    advantages = [rng.normal(0.5, 1, len(t.token_ids)).astype(np.float32) for t in trajectories]
    batch = pack(trajectories, advantages, np.full(len(trajectories), 0.01), [RowShape(48, 8, 1)]).batch

    def near(value: float) -> Any:
        return rng.normal(value, 0.3, batch.places.shape).astype(np.float32)

    scores = Scores(near(-3.5), near(-3.5), near(0), near(0), near(0.5))
    returns = rng.normal(0.5, 0.3, batch.mask.shape).astype(np.float32)
    return replace(batch, scores=scores, returns=returns, expert=batch.mask & (batch.owners % 4 == 3))


def losses_and_gradients(layout: dict[str, int]) -> Any:
    """The loss and its gradient, by name."""
    algorithm = {"kl": KlConfig(where="loss", coef=0.1), "entropy_coef": 0.1}
    keys: dict[str, Any] = {"learner": {"rows_per_microbatch": 8}, "model": {"logprob_chunk": 64}}
    config = make_config(mesh=layout, algorithm=algorithm, **keys)
    mesh = make_mesh(config.learner.mesh, jax.devices()[: config.learner.mesh.size])
    run = (config, ARCHITECTURE, Hardware.of(mesh))
    policy, valued = PolicyObjective(*run), ValueObjective(*run)
    progress = Progress(np.int32(3), np.int32(3), np.float32(0.1))

    params, batch = make_params(), made_up_batch()
    head = np.random.default_rng(1).normal(0, 0.1, ARCHITECTURE.hidden_size).astype(np.float32)
    critic = {**critic_params(params, ARCHITECTURE.hidden_size), "value_head": head}
    params, critic = (jax.device_put(tree, parameter_shardings(tree, mesh)) for tree in (params, critic))
    batch = jax.device_put(batch, batch_sharding(batch.mask.shape, mesh))

    @jax.jit
    def losses(computed: Any, batch: Batch) -> Any:
        part, found = microbatch(batch, 0), {}
        for name in NAMES:
            objective = OfLogprobs(*run, name=name)
            loss_of = lambda x, on=objective: on.microbatch_loss(x, part, progress)[0]  # noqa: E731
            found[name] = jax.value_and_grad(loss_of)(computed)
        return found

    @jax.jit
    def model(params: Any, batch: Batch, by_computed: Any) -> Any:
        computed, pull_back = jax.vjp(lambda p: policy.logprobs(p, microbatch(batch, 0)), params)
        return computed, pull_back(by_computed)[0]

    @jax.jit
    def critics(critic: Any, batch: Batch) -> Any:
        return jax.value_and_grad(lambda p: valued.microbatch_loss(p, microbatch(batch, 0), progress)[0])(critic)

    nothing = np.zeros(batch.places.shape[1:], np.float32)
    computed, _ = model(params, batch, (nothing, nothing))
    found = jax.device_get(losses(computed, batch))  # laid out as `nothing` is: the model is compiled once
    pulled = {name: (loss, model(params, batch, by)[1]) for name, (loss, by) in found.items()}
    return jax.device_get(pulled | {"critic": critics(critic, batch)})


def relative_distance(got: Any, expected: Any) -> float:
    """Over the expected norm: single numbers of a tensor in which much cancels are rounded by more than the others."""
    return float(np.linalg.norm(np.float64(got) - expected) / np.linalg.norm(expected))


def compare_losses(_: Path) -> list[dict[str, Any]]:
    """Value and gradient of every loss by layout, against one device."""
    expected: dict[str, Any] = {}
    results = []
    for layout in LAYOUTS:
        found = losses_and_gradients(layout)
        expected = expected or found
        for name, (loss, gradient) in found.items():
            one_loss, one_gradient = expected[name]
            errors = jax.tree.map(relative_distance, (loss, gradient), (one_loss, one_gradient))
            worst = {"loss": errors[0], "gradient": max(jax.tree.leaves(errors[1]))}
            results.append({"layout": layout, "name": name, "value": float(one_loss), **worst})
    return results


if __name__ == "__main__":
    answer({"all": compare_losses})
