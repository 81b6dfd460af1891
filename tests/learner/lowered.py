"""Updates for accelerators that are not here, lowered over meshes of fake devices, for `mesh_worker`."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import numpy as np

from bench.aot import KINDS
from rljax.learner.critic import ValueObjective
from rljax.learner.objective import PolicyObjective, Progress
from rljax.learner.packing import Scores, pack
from rljax.learner.rows import RowShape
from rljax.learner.sharding import make_mesh
from rljax.learner.state import make_optimizer
from rljax.learner.trainable import TrainableModel
from rljax.models.common.architecture import Architecture
from rljax.models.common.hardware import Hardware
from rljax.models.common.value_head import critic_params
from rljax.models.transformer import abstract_params
from rljax.pipeline.plan.compiled import absent
from tests.learner.made_up import ARCHITECTURE, make_config, make_groups, trajectories_of

GPU: dict[str, Any] = {"platform": "gpu", "capability": 9.0}
TARGETS: list[dict[str, Any]] = [
    {"platform": "tpu"},
    {"platform": "tpu", "dtype": "fp32"},
    GPU,
    {"platform": "gpu", "capability": 7.5},
    {"platform": "gpu", "capability": 9.0, "dtype": "fp32"},
]
TARGET_OF = {"tpu": "tpu", "gpu": "cuda"}
LOWERED: list[dict[str, int]] = [{}, {"data": 8}, {"fsdp": 8}, {"tensor": 4}, {"fsdp": 2, "sequence": 2, "tensor": 2}]
LOWERED_ROW = 328  # which no width is: an array of its square is one of scores


def lowered_updates() -> list[dict]:
    """What the real update is for accelerators that are not here, by layout: its kernel, whether it holds T×T, its
    scatters, with those of the critic's, and how many of its products, a kernel's too, round nothing to less than
    float32.
    """
    architecture = dataclasses.replace(ARCHITECTURE, num_heads=4, num_kv_heads=2, head_dim=64, vocab_size=128)
    results = []
    for target in TARGETS:
        for layout in LOWERED if target.get("dtype") is None else [{"fsdp": 2, "sequence": 2, "tensor": 2}]:
            if target == GPU and layout and jax.__version_info__ >= (0, 12):
                continue  # Pallas' Triton lowers for the devices of the mesh alone there, and these are CPUs
            traced = trace_update(architecture, layout, **target)
            text, products = lowered(traced, target["platform"]), str(traced.jaxpr).split("dot_general[")[1:]
            kernel = "splash" if "tpu_custom_call" in text else "triton" if "xla.gpu.triton" in text else "none"
            squares = re.search(rf"{LOWERED_ROW}x{LOWERED_ROW}x", text) is not None
            scatters = text.count("stablehlo.scatter")
            if target == GPU:
                critic = trace_update(architecture, layout, **target, critic=True)
                scatters += lowered(critic, target["platform"]).count("stablehlo.scatter")
            found = {"kernel": kernel, "squares": squares, "scatters": scatters}
            exact = sum("precision=(Precision.HIGHEST, Precision.HIGHEST)" in one[:300] for one in products)
            results.append({"target": target, "layout": layout, **found, "products": len(products), "exact": exact})
    return results


def trace_update(
    architecture: Architecture,
    layout: dict[str, int],
    platform: str,
    dtype: str = "bf16",
    capability: float = 0.0,
    critic: bool = False,
) -> Any:
    """The update of a policy, or of a critic, traced."""
    config = make_config(mesh=layout, learner={"rows_per_microbatch": 8}, model={"dtype": dtype})
    mesh = make_mesh(config.learner.mesh, jax.devices()[: config.learner.mesh.size])
    params = abstract_params(architecture)
    params = critic_params(params, architecture.hidden_size) if critic else params
    objective = (ValueObjective if critic else PolicyObjective)(
        config, architecture, Hardware(platform, mesh, capability)
    )
    trained = TrainableModel(objective, config.learner.optimizer, params, mesh)
    opt_state = jax.eval_shape(make_optimizer(config.learner.optimizer, 10).init, params)
    trajectories = trajectories_of(make_groups(0))
    tokens = [np.zeros(len(t.token_ids), np.float32) for t in trajectories]
    packed = pack(trajectories, tokens, np.ones(len(tokens)), [RowShape(LOWERED_ROW, 8, 2)])
    described = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), packed.batch)
    if critic:
        values = jax.ShapeDtypeStruct(described.places.shape, np.float32)
        described = dataclasses.replace(described, returns=described.advantages, scores=Scores(values=values))
    arguments = (params, opt_state, described, np.int32(1), Progress())
    with absent(*KINDS[TARGET_OF[platform]]):
        return trained.update.trace(*arguments)


def lowered(traced: Any, platform: str) -> str:
    """What was traced, in StableHLO."""
    with absent(*KINDS[TARGET_OF[platform]]):
        return traced.lower(lowering_platforms=(TARGET_OF[platform],)).as_text()
