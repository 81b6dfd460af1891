"""What the tests of expert parallelism ask eight fake CPU devices (see `eight_devices`)."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.config.schema import MeshConfig
from rljax.learner.learner import Learner
from rljax.learner.sharding import make_mesh
from rljax.learner.train_step import loss_and_gradient
from rljax.models.common.architecture import Experts
from rljax.models.common.experts import experts
from rljax.models.common.experts.experts import mixture
from rljax.models.common.hardware import CPU, Hardware
from rljax.trajectory import Group, Trajectory
from tests.learner.eight_devices import answer
from tests.learner.made_up import ARCHITECTURE, make_config, make_groups, make_params, relative_error

ROUTED = dataclasses.replace(ARCHITECTURE, family="qwen3_moe", experts=Experts(8, 3, 40))  # a width that no row has
LAYOUTS: list[dict[str, int]] = [
    {},
    {"expert": 2},
    {"expert": 8},
    {"data": 2, "expert": 2},
    {"fsdp": 2, "expert": 4},
    {"tensor": 2, "expert": 2},
    {"sequence": 2, "expert": 2},
    {"fsdp": 2, "tensor": 2},
    {"fsdp": 2, "expert": 2, "tensor": 2},
]
ALGORITHM = {"router_aux_loss_coef": 0.1, "router_z_loss_coef": 0.1}


def make_learner(
    layout: dict[str, int], params: Any, sequence_parallel: bool = False, replay: str = "off", remat: str = "none"
) -> Learner:
    keys = {"rows_per_microbatch": 8, "sequence_parallel": sequence_parallel}
    algorithm = {**ALGORITHM, "router_replay": replay}
    config = make_config(mesh=layout, learner=keys, algorithm=algorithm, model={"remat": remat})
    return Learner(config, ROUTED, params)


def compare_layouts() -> list[dict]:
    """How far loss, gradient and metrics of every mesh are from those of one device."""
    groups, params = make_groups(3), make_params(architecture=ROUTED)
    one, results = make_learner({}, params), []
    alone_of = jax.jit(functools.partial(loss_and_gradient, one.objective))
    for layout, parallel in [*((layout, False) for layout in LAYOUTS), ({"expert": 2, "tensor": 2}, True)]:
        learner = make_learner(layout, params, parallel)
        packed = learner.pack(groups)[0]
        gradient_of = jax.jit(functools.partial(loss_and_gradient, learner.objective))
        compiled = gradient_of.lower(learner.state.params, learner.place(packed.batch), packed.microbatches).compile()
        found = compiled(learner.state.params, learner.place(packed.batch), packed.microbatches)
        loss, gradient, metrics = jax.device_get(found)
        # Of the same rows: over `sequence` they are packed in another way, and the loss of balance is a microbatch's.
        alone = jax.device_get(alone_of(one.state.params, one.place(packed.batch), packed.microbatches))
        gate = learner.state.params["layers"]["expert_gate"]
        results.append(
            {
                "layout": layout,
                "loss": abs(float(loss - alone[0]) / float(alone[0])),
                "gradient": relative_error(gradient, alone[1]),
                "metrics": max(abs(float(metrics[n] - alone[2][n])) for n in metrics if n.startswith("router/")),
                "shard": list(gate.sharding.shard_shape(gate.shape)),
                "gathered": sorted(set(re.findall(r"= f32\[([\d,]+)\]\S* all-gather\(", compiled.as_text()))),
            }
        )
    return results


def with_made_up_routes(group: Group, rng: np.random.Generator) -> Group:
    """Experts that no router has chosen; a third of the tokens have none."""

    def routed(trajectory: Trajectory) -> Trajectory:
        tokens = len(trajectory.token_ids)
        routes = np.argsort(rng.random((tokens, ROUTED.num_layers, 8)), axis=-1)[..., :3].astype(np.int16)
        routes[rng.random(tokens) < 1 / 3] = -1
        return dataclasses.replace(trajectory, routes=routes)

    return dataclasses.replace(group, trajectories=tuple(map(routed, group.trajectories)))


def compare_replays() -> list[dict]:
    """How far loss, gradient and metrics of a mesh are from those of one device where recorded experts are used, and
    how far the one device's loss is from what it is without them.
    """
    rng, params = np.random.default_rng(0), make_params(architecture=ROUTED)
    groups, results = [with_made_up_routes(group, rng) for group in make_groups(3)], []

    def update(learner: Learner) -> Any:
        packed = learner.pack(groups)[0]
        gradient_of = jax.jit(functools.partial(loss_and_gradient, learner.objective))
        return jax.device_get(gradient_of(learner.state.params, learner.place(packed.batch), packed.microbatches))

    live, alone = (update(make_learner({}, params, replay=mode)) for mode in ("record", "replay"))
    for layout, remat in (
        ({}, "full"),
        ({"expert": 2}, "none"),
        ({"fsdp": 2}, "full"),
        ({"fsdp": 2, "expert": 2}, "none"),
        ({"fsdp": 2, "expert": 2}, "full"),
        ({"fsdp": 2, "expert": 2}, "dots"),
    ):
        loss, gradient, metrics = update(make_learner(layout, params, replay="replay", remat=remat))
        results.append(
            {
                "layout": layout,
                "remat": remat,
                "loss": abs(float(loss - alone[0]) / float(alone[0])),
                "gradient": relative_error(gradient, alone[1]),
                "metrics": max(abs(float(metrics[n] - alone[2][n])) for n in metrics if n.startswith("router/")),
                "differing": float(metrics["router/routes_differing"]),
                "without": abs(float(live[0] - alone[0]) / float(alone[0])),
                "gradient without": relative_error(live[1], alone[1]),
            }
        )
    return results


def sent_by_hand(
    rows: jax.Array,
    output: jax.Array,
    input_offsets: jax.Array,
    send_sizes: jax.Array,
    output_offsets: jax.Array,
    recv_sizes: jax.Array,
    *,
    axis_name: str,
) -> jax.Array:
    """`jax.lax.ragged_all_to_all`, which XLA has none of for CPUs, by its documentation: device i writes
    ``rows[input_offsets[j] :][: send_sizes[j]]`` to ``output_offsets[j]`` of device j.
    """
    here, index = jax.lax.axis_index(axis_name), jnp.arange(output.shape[0])
    everything = [jax.lax.all_gather(x, axis_name) for x in (rows, input_offsets, send_sizes, output_offsets)]
    for device, (theirs, begins, sizes, lands) in enumerate(zip(*everything, strict=True)):
        place = index - lands[here]
        written = (place >= 0) & (place < sizes[here]) & (recv_sizes[device] == sizes[here])
        output = jnp.where(written[:, None], theirs[jnp.clip(begins[here] + place, 0, rows.shape[0] - 1)], output)
    return output


def compare_exchanges() -> list[dict]:
    """How far values and gradients of experts on several devices are from those of one, by exchange and routes."""
    jax.lax.ragged_all_to_all = sent_by_hand
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 16, 32)).astype(np.float32)
    gates = rng.random((8, 16, 3)).astype(np.float32)
    weights = tuple(rng.standard_normal(s).astype(np.float32) / 4 for s in ((8, 32, 16), (8, 32, 16), (8, 16, 32)))
    scores = rng.random((8, 16, 8))
    all_to_three, one_without = scores.copy(), scores.copy()
    all_to_three[..., [0, 6, 7]] += 10
    one_without[..., 3] -= 10
    scored = {"even": scores, "all to three": all_to_three, "one without": one_without}
    routes = {kind: np.argsort(-each, axis=-1)[..., :3].astype(np.int32) for kind, each in scored.items()}
    results = []

    def pulled_on(hardware: Hardware) -> Any:
        def total(x: jax.Array, gates: jax.Array, weights: Any, chosen: jax.Array) -> tuple[jax.Array, jax.Array]:
            found = mixture(x, chosen, gates, weights, hardware)
            return jnp.sum(jnp.sin(found)), found

        return jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True))

    alone_of = pulled_on(CPU)
    alone = {kind: jax.device_get(alone_of(x, gates, weights, chosen)) for kind, chosen in routes.items()}
    for layout in ({"expert": 8}, {"expert": 4, "tensor": 2}, {"fsdp": 2, "expert": 4}, {"data": 2, "expert": 2}):
        mesh = make_mesh(MeshConfig(**layout), jax.devices()[: math.prod(layout.values())])
        for sends in (False, True):
            experts.sends_choices = lambda *_, sends=sends: sends
            gradient_of = pulled_on(Hardware.of(mesh))
            for kind, chosen in routes.items():
                error = relative_error(jax.device_get(gradient_of(x, gates, weights, chosen)), alone[kind])
                results.append({"layout": layout, "routes": kind, "sends": sends, "error": error})
    return results


if __name__ == "__main__":
    asked = {"layouts": compare_layouts, "replays": compare_replays, "exchanges": compare_exchanges}
    answer({name: lambda _, found=found: found() for name, found in asked.items()})
