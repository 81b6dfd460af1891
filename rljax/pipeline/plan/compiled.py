"""Compiles a run's programs, from shapes alone."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax

from rljax.algorithms.registry import token_advantages
from rljax.config.schema import Config
from rljax.learner.critic import ValueObjective
from rljax.learner.objective import DTYPES, PolicyObjective
from rljax.learner.prepare import Preparation
from rljax.learner.programs import Program, step_programs
from rljax.learner.sharding import make_mesh
from rljax.learner.sharing import shares_prompts
from rljax.learner.state import TrainState, copies_reference
from rljax.learner.teachers import AskedTeacher, StoredTeacher, place_teachers
from rljax.learner.trainable import TrainableModel, abstract_base
from rljax.models.adapter import abstract_trained
from rljax.models.common.architecture import Architecture
from rljax.models.common.attention.attention import Body, body_for
from rljax.models.common.hardware import Hardware
from rljax.models.common.value_head import critic_params
from rljax.pipeline.plan.collectives import Collective, collectives

KERNELS = {"tpu_custom_call": "splash", "__gpu$xla.gpu.triton": "triton"}
"""Bodies of attention by what a program that has them calls."""

WITHOUT_GPU = {"xla_gpu_enable_triton_gemm": False} if jax.__version_info__ >= (0, 11) else {}
"""Options for XLA where no GPU is here: since jax 0.11 it does not compile products that it would choose among kernels
for by timing them; those of cuBLAS are chosen when they run.
"""


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
        likely: see `Program`.
    """

    name: str
    peak: float
    seconds: float
    arguments: float
    kernels: frozenset[str]
    collectives: tuple[Collective, ...]
    likely: bool = True


def abstract_programs(
    config: Config,
    architecture: Architecture,
    devices: Sequence[jax.Device],
    hardware: Hardware | None = None,
    teachers: Mapping[str, Architecture] | None = None,
) -> list[Program]:
    """Returns what `Learner.programs` lists for a step, without any weights.

    Args:
        config: of the run.
        architecture: of the policy.
        devices: that they are compiled for; the first are taken.
        hardware: what they are traced for, its mesh left out; None: the devices.
        teachers: architectures of the run's teachers, by name.
    """
    mesh = make_mesh(config.learner.mesh, devices[: config.learner.mesh.size])
    parallel = config.learner.sequence_parallel
    traced = replace(hardware, mesh=mesh, sequence_parallel=parallel) if hardware else Hardware.of(mesh, parallel)
    run = (config, architecture, traced)
    algorithm, params = config.algorithm, abstract_trained(architecture, config.model.lora)

    policy_objective = PolicyObjective(*run)
    policy = TrainableModel(policy_objective, config.policy_optimizer, params, mesh)
    placed, opt_state = policy.abstract
    own: dict[str, Any] = {}
    if copies_reference(config):
        own["reference"] = jax.tree.map(lambda x: x.update(dtype=DTYPES[config.model.dtype]), placed)
    values, critic = None, None
    if "values" in token_advantages.needs(algorithm.adv_estimator, algorithm.advantage):
        values = ValueObjective(*run)
        trained = jax.eval_shape(lambda p: critic_params(p, architecture.hidden_size), params)
        critic = TrainableModel(values, algorithm.critic.optimizer, trained, mesh)
        own["critic"], own["critic_opt_state"] = critic.abstract
    given: dict[str, Any] = {name: StoredTeacher(one) for name, one in (teachers or {}).items()}
    given |= {name: AskedTeacher(one) for name, one in algorithm.distill.served.items()}
    preparation = Preparation(config, policy_objective, values, mesh, place_teachers(config, mesh, traced, given))
    state, base = TrainState(placed, opt_state, 0, own), abstract_base(config, architecture, mesh)
    return list(step_programs(config, preparation, policy, critic, state, base))


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
        device = device_of(program)
        without_gpu = device.platform == "gpu" and device not in jax.devices()
        with absent(device.device_kind, device.platform) if without_gpu else nullcontext():
            lowered = program.lower()
        more = WITHOUT_GPU if without_gpu else {}
        executable = lowered.compile(compiler_options={**more, **(options or {})} or None)
        seconds = time.perf_counter() - began
        found: Any = executable.memory_analysis()
        kept = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
        # A CPU's peak leaves out what is temporary.
        peak = kept + found.temp_size_in_bytes if platform == "cpu" else found.peak_memory_in_bytes
        text = executable.as_text() or ""
        sent = tuple(collectives(text))
        size = found.argument_size_in_bytes
        yield Compiled(program.name, peak, seconds, size, kernels(text), sent, program.likely)


def device_of(program: Program) -> Any:
    """Returns a device that the program is for."""
    shardings = (getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(program.arguments))
    return next(iter(next(filter(None, shardings)).device_set))


def absent(kind: str, platform: str) -> AbstractContextManager[Any]:
    """Returns the context in which to lower for a device that is not here: since jax 0.11 Pallas' Triton asks JAX what
    device there is.
    """
    device = jax.sharding.AbstractDevice(kind, None, platform)
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device))


def kernels(text: str) -> frozenset[str]:
    """Returns the bodies of attention that a program, optimised or only lowered, calls as kernels."""
    called = set(re.findall(r'(?:custom_call_target="|custom_call @)([\w$.]+)', text))
    return frozenset(KERNELS[target] for target in called & KERNELS.keys())


def attention_body(config: Config, architecture: Architecture, hardware: Hardware, length: int) -> Body:
    """Returns the body of attention that a program with rows of that length gets, and why not the platform's kernel."""
    shape = (1, length, architecture.num_heads, architecture.head_dim)
    query: Any = jax.ShapeDtypeStruct(shape, DTYPES[config.model.dtype])
    return body_for(query, hardware, shares_prompts(config, architecture, hardware.platform))
