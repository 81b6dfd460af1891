"""What the tests of meshes ask eight fake CPU devices (see `eight_devices`)."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from rljax.config.schema import CorrectionConfig, DistillConfig, KlConfig, MeshConfig, TeacherConfig
from rljax.learner.checkpoints import Checkpoints
from rljax.learner.learner import Learner
from rljax.learner.objective import PolicyObjective
from rljax.learner.packing import pack
from rljax.learner.rows import RowShape
from rljax.learner.sharding import batch_sharding, make_mesh, parameter_shardings
from rljax.learner.teachers import StoredTeacher
from rljax.learner.train_step import loss_and_gradient
from rljax.learner.trainable import TrainableModel
from rljax.models.common.architecture import Architecture
from rljax.models.common.attention.attention import WHOLE, Window, attended_by, attention
from rljax.models.common.attention.dense import dense_attention
from rljax.models.common.attention.spans import causal_spans
from rljax.models.common.embedding import embed
from rljax.models.common.hardware import CPU, Hardware
from rljax.models.common.logprobs import token_logprobs
from rljax.models.hf_names import to_hf
from rljax.models.reward_model import load_score, open_reward_model
from rljax.models.transformer import abstract_params
from tests.learner.eight_devices import answer
from tests.learner.lowered import lowered_updates
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

CUT_OVER_TENSOR: list[dict[str, int]] = [{"sequence": 2, "tensor": 4}, ALL_AXES]  # sequence parallelism

# Fewer key-value heads than devices, and words that no axis divides.
ODD = dataclasses.replace(ARCHITECTURE, num_heads=6, num_kv_heads=2, vocab_size=33)
ODD_LAYOUTS: list[tuple[dict[str, int], bool]] = [
    ({}, False),
    ({"tensor": 6}, False),
    ({"sequence": 2, "tensor": 3}, True),
]
# Layers with a window and without, with norms of their own.
GEMMA = dataclasses.replace(
    ARCHITECTURE,
    family="gemma3_text",
    num_layers=3,
    windows=(7, 0, 7),
    local_rope_theta=100.0,
    qk_norm=True,
    activation="gelu_pytorch_tanh",
    query_pre_attn_scalar=3,
)
GEMMA_LAYOUTS: list[tuple[dict[str, int], bool]] = [({}, False), ({"fsdp": 2, "sequence": 2, "tensor": 2}, True)]


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
        "distill": DistillConfig(teachers={"wide": TeacherConfig(path="none")}),
    },
    {
        "pg_variant": "gspo",
        "adv_estimator": "gae",
        "aggregation": "seq-mean-token-mean",
        "kl": KlConfig(where="reward", coef=0.1),
        "whiten_advantages": True,
    },
]
TEACHER = dataclasses.replace(ARCHITECTURE, family="llama", qk_norm=False, hidden_size=64, num_layers=3)


def make_learner(
    layout: dict[str, int],
    sequence_parallel: bool = False,
    architecture: Architecture = ARCHITECTURE,
    **changes: Any,
) -> Learner:
    """A learner over as many devices as the layout multiplies to."""
    learner = {"rows_per_microbatch": 8, "sequence_parallel": sequence_parallel}
    # chunks smaller than the batch, so that the chunked log-probabilities are laid over the mesh too
    config = make_config(mesh=layout, learner=learner, model={"logprob_chunk": 64}, **changes)
    teachers = {
        name: StoredTeacher(TEACHER, to_hf(make_params(1, TEACHER), TEACHER))
        for name in config.algorithm.distill.teachers
    }
    return Learner(config, architecture, make_params(architecture=architecture), teachers=teachers)


def compare_layouts() -> list[dict]:
    """Loss and gradient of one batch by layout, against one device. Pairs of axes are `losses_worker`'s."""
    groups = make_groups(3)
    usual = [
        *((layout, False) for layout in LAYOUTS if len(layout) != 2),
        *((layout, True) for layout in CUT_OVER_TENSOR),
    ]
    runs = [*((ARCHITECTURE, *one) for one in usual), *((ODD, *one) for one in ODD_LAYOUTS)]
    runs += [(GEMMA, *one) for one in GEMMA_LAYOUTS]
    results, expected = [], {}
    for architecture, layout, sequence_parallel in runs:
        learner = make_learner(layout, sequence_parallel, architecture)
        packed = learner.pack(groups)[0]
        gradient_of = jax.jit(functools.partial(loss_and_gradient, learner.objective))
        loss, gradient, _ = gradient_of(learner.state.params, learner.place(packed.batch), packed.microbatches)
        alone = expected.setdefault(architecture, (float(loss), jax.device_get(gradient)))
        devices = {d for leaf in jax.tree.leaves(learner.state.params) for d in leaf.sharding.device_set}
        cut = sum(not leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(learner.state.params))
        results.append(
            {
                "layout": layout,
                "sequence_parallel": sequence_parallel,
                "devices": len(devices),
                "cut": cut,
                "loss": abs(float(loss) - alone[0]) / abs(alone[0]),
                "gradient": relative_error(jax.device_get(gradient), alone[1]),
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


def kept_streams() -> list[dict]:
    """What the backward pass of all layers keeps of the residual stream on a device, with and without sequence
    parallelism: shapes of float32 arrays with every layer and the model's width.
    """
    architecture = dataclasses.replace(ARCHITECTURE, num_layers=7)  # as many as of nothing else
    results = []
    for parallel in (False, True):
        config = make_config(
            mesh={"fsdp": 2, "tensor": 4},
            learner={"rows_per_microbatch": 8, "sequence_parallel": parallel},
            model={"remat": "full"},
        )
        text = compiled_gradient(config, architecture).as_text()
        shapes = set(re.findall(r"f32\[7,(\d+),(\d+),32\]", text))
        results.append({"parallel": parallel, "kept": sorted([int(rows), int(time)] for rows, time in shapes)})
    return results


def reductions() -> list[dict]:
    """How many arrays devices add up in bf16, and in float32, that are no activations: by `learner.reduce_dtype`.

    XLA adds in float32 on a CPU; a sum that was to be of bf16 is called promoted there.
    """
    results = []
    for reduce_dtype in ("auto", "fp32"):
        learner = {"rows_per_microbatch": 8, "reduce_dtype": reduce_dtype}
        config = make_config(mesh={"data": 2, "fsdp": 4}, learner=learner, model={"dtype": "bf16"})
        text = compiled_gradient(config).as_text()
        narrow, wide = [], []
        for line in re.findall(r"= (.* (?:all-reduce|reduce-scatter)\(.*)", text):
            results_of = re.split(r" (?:all-reduce|reduce-scatter)\(", line)[0]
            shapes = [shape.split(",") for shape in re.findall(r"f32\[([\d,]+)\]", results_of)]
            weights = [shape for shape in shapes if str(ROW) not in shape]
            (narrow if "_promoted" in line else wide).extend(weights)
        results.append({"reduce_dtype": reduce_dtype, "narrow": len(narrow), "wide": len(wide)})
    return results


ROW = 48  # which no width is


def compiled_gradient(config: Any, architecture: Architecture = ARCHITECTURE, rows: int = 8) -> Any:
    """The gradient of one batch, compiled from shapes."""
    mesh = make_mesh(config.learner.mesh, jax.devices()[: config.learner.mesh.size])
    objective = PolicyObjective(config, architecture, Hardware.of(mesh, config.learner.sequence_parallel))
    params = TrainableModel(objective, config.learner.optimizer, abstract_params(architecture), mesh).abstract[0]
    batch = pack([], [], np.zeros(0), [RowShape(ROW, rows, 1)]).batch
    laid = batch_sharding(batch.mask.shape, mesh)
    described = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=laid), batch)
    gradient_of = jax.jit(lambda *x: loss_and_gradient(objective, *x)[:2])
    return gradient_of.lower(params, described, np.int32(1)).compile()


def train_objectives() -> list[dict]:
    """What two steps log, by objective: on one device, and over all axes."""
    groups = [make_groups(seed) for seed in (4, 5)]

    def logged(layout: dict[str, int], keys: dict[str, Any]) -> list[dict[str, float]]:
        learner = make_learner(layout, algorithm=keys, optimizer={"learning_rate": 1e-3})
        metrics = [learner.train(batch) for batch in groups]
        return [*metrics, {"score": float(learner.score(np.arange(20, dtype=np.int32)).sum())}]  # of one row

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


KERNELS: list[dict[str, int]] = [
    {"data": 2, "tensor": 4},  # more than there are key-value heads
    {"fsdp": 2, "sequence": 4},
    {"sequence": 2, "tensor": 2},
]


def attention_bodies() -> list[dict]:
    """How far every body of attention under every layout is from that of one device, values and gradients."""
    time, width, rng = 320, 32, np.random.default_rng(0)
    query, key, value = (jnp.asarray(rng.standard_normal((2, time, h, width)), jnp.float32) for h in (4, 2, 2))
    segments = np.stack([np.repeat([1, 2, 3, 0], [100, 1, 170, 49]), np.repeat([1, 2], [30, 290])])
    spans, weight = causal_spans(jnp.asarray(segments, jnp.int32)), (segments > 0)[:, :, None, None]

    def of(body: Any) -> Any:
        def total(*tensors: jax.Array) -> tuple[jax.Array, jax.Array]:
            attended = body(*tensors) * weight
            return jnp.sum(jnp.sin(attended)), attended

        return jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True))(query, key, value)

    results = []
    for layout, size in itertools.product(KERNELS, (0, 90)):
        window = Window((size, 30), jnp.int32(0)) if size else WHOLE  # of layers with two, which a layer is told
        expected = of(lambda *x, size=size: dense_attention(*x, spans.within(size), CPU))
        hardware = Hardware.of(make_mesh(MeshConfig(**layout), jax.devices()[: math.prod(layout.values())]))
        seen = (spans, hardware, window)
        bodies = {
            "chosen": lambda *x, seen=seen: attention(*x, *seen),
            "splash": lambda *x, seen=seen: attended_by("splash", *x, *seen, interpret=True),
            "triton": lambda *x, seen=seen: attended_by("triton", *x, *seen, interpret=True),
        }
        found = {name: relative_error(jax.device_get(of(body)), expected) for name, body in bodies.items()}
        results.append({"layout": layout, "window": size, **found})
    return results


def vocabulary() -> list[dict]:
    """Whether a vocabulary that is cut over `tensor` is whole on any device, in lookup, head or their gradients; and
    whether as many logits exist at once as a device has room for.
    """
    hardware = Hardware.of(make_mesh(MeshConfig(fsdp=2, tensor=4), jax.devices()))
    words = 1016  # which nothing else is, nor a quarter of it
    architecture = dataclasses.replace(ARCHITECTURE, vocab_size=words, tie_embeddings=True)
    tree = {"embedding": jax.ShapeDtypeStruct((words, 32), jnp.float32)}
    placed = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, parameter_shardings(tree, hardware.mesh)
    )
    ids = jax.ShapeDtypeStruct((8, 64), jnp.int32, sharding=NamedSharding(hardware.mesh, P("fsdp")))

    def loss(params: Any, ids: jax.Array) -> jax.Array:
        hidden = hardware.constrain(embed(params["embedding"], ids, hardware), "hidden")
        return jnp.sum(token_logprobs(params, architecture, hidden, ids, 1.0, chunk=64, hardware=hardware)[0])

    text = jax.jit(jax.grad(loss)).lower(placed, ids).compile().as_text()
    shapes = set(re.findall(r"[\[,](\d+)[\],]", text))
    at_once = f"f32[{words // 4},4,64]" in text  # 256 tokens a device, of a quarter of the words: as many as of 64
    return [{"whole": str(words) in shapes, "part": str(words // 4) in shapes, "at_once": at_once}]


def score_on_four(directory: Path) -> list[float]:
    """Scores of a reward model that is cut over four of the devices, as a run cuts it."""
    stored, mesh = open_reward_model(directory), make_mesh(MeshConfig(fsdp=4), jax.devices()[4:])
    shardings = parameter_shardings(abstract_params(stored.architecture), mesh)
    score = load_score(stored, shardings, jnp.float32, Hardware.of(mesh))
    return score(np.load(directory / "rows.npy"), np.load(directory / "lengths.npy")).tolist()


if __name__ == "__main__":
    alone = {
        "layouts": compare_layouts,
        "embedding": embedding_gradients,
        "objectives": train_objectives,
        "bodies": attention_bodies,
        "lowered": lowered_updates,
        "vocabulary": vocabulary,
        "streams": kept_streams,
        "reductions": reductions,
    }
    of_directories = {"save": save_on_eight, "score": score_on_four}
    answer({name: lambda _, find=find: find() for name, find in alone.items()} | of_directories)
