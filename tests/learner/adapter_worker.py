"""Answers questions about adapters on eight fake devices: see `tests.learner.eight_devices`."""

import functools
from typing import Any

import jax
import numpy as np

from rljax.config.schema import LoraConfig
from rljax.learner.learner import Learner
from rljax.learner.objective import Progress
from rljax.learner.train_step import loss_and_gradient
from tests.learner.eight_devices import answer
from tests.learner.made_up import ARCHITECTURE, make_config, make_groups, make_params, relative_error

ALL_AXES = {"data": 2, "fsdp": 2, "tensor": 2}
RUNS: list[tuple[dict[str, int], float, bool]] = [
    ({}, 0.0, False),
    ({"sequence": 2, "tensor": 4}, 0.0, True),
    # rows of the same shapes, whose places are dropped alike
    ({}, 0.2, False),
    ({"fsdp": 8}, 0.2, False),
    (ALL_AXES, 0.2, False),
]


def compare_layouts() -> list[dict]:
    """Loss and gradient of an adapter by layout, against one device, and how its factors are cut."""
    groups, expected, results = make_groups(3), dict[float, Any](), []
    for layout, dropout, sequence_parallel in RUNS:
        learner_keys = {"rows_per_microbatch": 8, "sequence_parallel": sequence_parallel}
        model = {"logprob_chunk": 64, "lora": LoraConfig(rank=3, dropout=dropout)}
        learner = Learner(make_config(mesh=layout, learner=learner_keys, model=model), ARCHITECTURE, make_params())
        shardings = jax.tree.map(lambda x: x.sharding, learner.state.params)
        normal = np.random.default_rng(0).normal  # where an adapter begins B is 0
        noise = jax.tree.map(lambda x, draw=normal: draw(0, 0.2, x.shape).astype(np.float32), learner.state.params)
        packed = learner.pack(groups)[0]
        gradient_of = jax.jit(functools.partial(loss_and_gradient, learner.objective))
        batch, params = learner.place(packed.batch), jax.device_put(noise, shardings)
        loss, gradient, _ = gradient_of(params, batch, packed.microbatches, Progress(), learner.base)
        alone = expected.setdefault(dropout, (float(loss), jax.device_get(gradient)))
        results.append(
            {
                "layout": layout,
                "loss": abs(float(loss) / alone[0] - 1),
                "gradient": relative_error(jax.device_get(gradient), alone[1]),
                "specs": {key: {f: list(s.spec) for f, s in pair.items()} for key, pair in shardings["layers"].items()},
            }
        )
    return results


if __name__ == "__main__":
    answer({"layouts": lambda _: compare_layouts()})
