"""Compiles a run's programs, from shapes alone."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from rljax.algorithms.registry import policy_losses, token_advantages
from rljax.config.schema import Config
from rljax.learner.critic import ValueObjective
from rljax.learner.objective import DTYPES, PolicyObjective
from rljax.learner.prepare import Preparation
from rljax.learner.programs import Program, step_programs
from rljax.learner.sharding import make_mesh
from rljax.learner.state import TrainState
from rljax.learner.trainable import TrainableModel
from rljax.models.common.architecture import Architecture
from rljax.models.common.attention.attention import Body, body_for
from rljax.models.common.hardware import Hardware
from rljax.models.common.value_head import critic_params
from rljax.models.transformer import abstract_params
from rljax.pipeline.plan.collectives import Collective, collectives

KERNELS = {"tpu_custom_call": "splash", "__gpu$xla.gpu.triton": "triton"}
"""Bodies of attention by what a program that has them calls."""


@dataclass(frozen=True)
class Compiled:
    """The compiler's figures of one program.

    Attributes:
        name: of the program.
        peak: bytes of a device at its peak.
        seconds: that it took to lower and compile.
        arguments: bytes of a device that its arguments take.
        kernels: bodies of attention in it that are kernels, by name.
        collectives: in it.
    """

    name: str
    peak: float
    seconds: float
    arguments: float
    kernels: frozenset[str]
    collectives: tuple[Collective, ...]


def abstract_programs(
    config: Config, architecture: Architecture, devices: Sequence[jax.Device], hardware: Hardware | None = None
) -> list[Program]:
    """Returns what `Learner.programs` lists for a step, without any weights.

    Args:
        config: of the run.
        architecture: of the policy.
        devices: that they are compiled for; the first are taken.
        hardware: what they are traced for, its mesh left out; None: the devices.
    """
    mesh = make_mesh(config.learner.mesh, devices[: config.learner.mesh.size])
    parallel = config.learner.sequence_parallel
    traced = replace(hardware, mesh=mesh, sequence_parallel=parallel) if hardware else Hardware.of(mesh, parallel)
    run = (config, architecture, traced)
    algorithm, params = config.algorithm, abstract_params(architecture)

    policy_objective = PolicyObjective(*run)
    policy = TrainableModel(policy_objective, config.learner.optimizer, params, mesh)
    placed, opt_state = policy.abstract
    own: dict[str, Any] = {}
    if algorithm.kl.where != "none" or "reference" in policy_losses.needs(algorithm.pg_variant, algorithm.loss):
        own["reference"] = jax.tree.map(lambda x: x.update(dtype=DTYPES[config.model.dtype]), placed)
    values, critic = None, None
    if "values" in token_advantages.needs(algorithm.adv_estimator, algorithm.advantage):
        values = ValueObjective(*run)
        critic = TrainableModel(values, algorithm.critic.optimizer, jax.eval_shape(critic_params, params), mesh)
        own["critic"], own["critic_opt_state"] = critic.abstract
    preparation = Preparation(config, policy_objective, values, mesh)
    return list(step_programs(config, preparation, policy, critic, TrainState(placed, opt_state, 0, own)))


def compiled(
    programs: Sequence[Program], platform: str, options: Mapping[str, Any] | None = None
) -> Iterator[Compiled]:
    """Compiles programs for a platform one after another, and yields what the compiler says of each.

    Args:
        programs: what to compile.
        platform: of their devices.
        options: for the compiler; see `jax.stages.Lowered.compile`.
    """
    for program in programs:
        began = time.perf_counter()
        executable = program.lower().compile(compiler_options=dict(options) if options else None)
        seconds = time.perf_counter() - began
        found: Any = executable.memory_analysis()
        kept = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
        # A CPU's peak leaves out what is temporary.
        peak = kept + found.temp_size_in_bytes if platform == "cpu" else found.peak_memory_in_bytes
        text = executable.as_text() or ""
        sent = tuple(collectives(text))
        yield Compiled(program.name, peak, seconds, found.argument_size_in_bytes, kernels(text), sent)


def kernels(text: str) -> frozenset[str]:
    """Returns the bodies of attention that a program, optimised or only lowered, calls as kernels."""
    called = set(re.findall(r'(?:custom_call_target="|custom_call @)([\w$.]+)', text))
    return frozenset(KERNELS[target] for target in called & KERNELS.keys())


def attention_body(config: Config, architecture: Architecture, hardware: Hardware, length: int) -> Body:
    """Returns the body of attention that a program with rows of that length gets, and why not the platform's kernel."""
    shape = (1, length, architecture.num_heads, architecture.head_dim)
    query: Any = jax.ShapeDtypeStruct(shape, DTYPES[config.model.dtype])
    return body_for(query, hardware)
