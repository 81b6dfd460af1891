"""rljax's side of the learner's step: `rljax.learner.learner.Learner`, from groups on the host to new weights."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from bench.accelerator.kernels import body_of
from bench.accelerator.peaks import time_steps
from bench.accelerator.shapes import (
    LEARNING_RATE,
    MAX_NORM,
    Shape,
    Way,
    cuts,
    first_way,
    made_up_tokens,
    uniform_logprob,
    ways,
)
from rljax.config.schema import AlgorithmConfig, Config, LearnerConfig, ModelConfig, OptimizerConfig
from rljax.learner.learner import Learner
from rljax.learner.objective import DTYPES, Progress
from rljax.models.common.hardware import Hardware
from rljax.models.transformer import init_params
from rljax.trajectory import Group, TaskId, Trajectory

Row = dict[str, Any]


def learner_config(shape: Shape, way: Way) -> Config:
    """Returns the config that trains a step's rows in one update."""
    sequences = len(shape.sequences)
    return Config(
        mode="evaluate",
        rollout_batch_size=shape.rows * sequences,
        group_size=sequences,
        algorithm=AlgorithmConfig(adv_estimator="grpo", pg_variant="ppo", aggregation="token-mean"),
        model=ModelConfig(
            dtype=shape.dtype,
            remat="full" if way.remat else "none",
            max_prompt_tokens=1,
            max_response_tokens=shape.row,
        ),
        learner=LearnerConfig(
            max_tokens_per_row=shape.row + 1,
            rows_per_microbatch=way.rows,
            optimizer=OptimizerConfig(learning_rate=LEARNING_RATE, grad_clip=MAX_NORM),
        ),
    )


def make_groups(shape: Shape) -> list[Group]:
    """Returns the batch of `bench.accelerator.shapes`, a group a row."""

    def trajectory(token_ids: np.ndarray, member: int) -> Trajectory:
        mask = np.arange(len(token_ids)) > 0
        return Trajectory(
            token_ids=token_ids,
            loss_mask=mask,
            logprobs=np.where(mask, uniform_logprob(shape), 0).astype(np.float32),
            versions=np.where(mask, 0, -1).astype(np.int32),
            turns=np.array([[1, len(token_ids)]], np.int32),
            reward=float(member == 0),
            member=member,
        )

    return [
        Group(TaskId("made-up", 0, row), tuple(trajectory(ids[a:b], n) for n, (a, b) in enumerate(cuts(shape))))
        for row, ids in enumerate(made_up_tokens(shape))
    ]


def open_learner(shape: Shape, way: Way) -> Learner:
    """Returns a learner with random weights, on the first device."""
    params = jax.jit(init_params, static_argnums=0)(shape.architecture, 0)
    return Learner(learner_config(shape, way), shape.architecture, params, devices=jax.devices()[:1])


def measure(shape: Shape, attempt: int | None, spawned: float) -> Iterator[Row]:
    """Yields the row of a shape. ``spawned`` is when this process was started, in Unix seconds."""
    limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
    attempt = first_way(shape, limit) if attempt is None else attempt
    way = ways(shape)[attempt]
    a = shape.architecture
    query = jax.ShapeDtypeStruct((way.rows, shape.row, a.num_heads, a.head_dim), DTYPES[shape.dtype])
    body = body_of(query, Hardware.of(jax.devices()[0]))
    row: Row = {"side": "rljax", "way": str(way), "body": body}
    try:
        yield row | timed(shape, way, spawned)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        yield row | {"out_of_memory": str(error).splitlines()[0][:200], "next": attempt + 1}


def timed(shape: Shape, way: Way, spawned: float) -> Row:
    """Returns what the steps of one learner took."""
    learner, groups = open_learner(shape, way), make_groups(shape)
    opened = time.time()

    def step() -> float:
        loss = learner.train(groups)["loss"]
        jax.block_until_ready(learner.state.params)
        return loss

    row = time_steps(step, shape.architecture, shape.all_sequences, shape.steps, opened, spawned)
    return row | peak_memory(learner, groups)


def peak_memory(learner: Learner, groups: list[Group]) -> Row:
    """Returns the most bytes that the device held; where it does not count, what the update's program takes."""
    stats = learner.mesh.devices.flat[0].memory_stats()
    if stats is not None:
        return {"peak_bytes": stats["peak_bytes_in_use"], "peak_from": "the device"}
    packed, state = learner.pack(groups)[0], learner.state
    arguments = (state.params, state.opt_state, learner.place(packed.batch), np.int32(packed.microbatches), Progress())
    analysis = learner._policy.update.lower(*arguments).compile().memory_analysis()  # type: ignore[attr-defined]
    if analysis is None:
        return {}
    used = analysis.argument_size_in_bytes + analysis.temp_size_in_bytes + analysis.output_size_in_bytes
    return {"peak_bytes": used - analysis.alias_size_in_bytes, "peak_from": "the compiler"}
