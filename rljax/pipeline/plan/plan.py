"""The plan of a run: what it will take on a target, said before it starts, without weights and without the target."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import jax

from rljax.config.schema import Config, MeshConfig
from rljax.config.validate import ConfigError
from rljax.models.common.architecture import Architecture
from rljax.models.files import load_architecture
from rljax.models.resolve import ModelNotFound, resolve_model
from rljax.models.tiny import tiny_architecture
from rljax.pipeline.plan.compiled import Compiled, abstract_programs, attention_body, compiled
from rljax.pipeline.plan.estimate import BYTES, Estimate
from rljax.pipeline.plan.targets import GIB, Target, devices_of, find_target
from sidecar.errors import first_line


def plan(config: Config) -> Iterator[str | bool]:
    """Yields the lines of a plan, and last whether the run fits."""
    target, architecture = find_target(config.plan.target), plan_architecture(config)
    estimate = Estimate(config, architecture, config.learner.mesh)
    yield from _run(estimate, target)
    yield from _memory(estimate, target)
    yield from _speed(estimate, target)
    peaks = []
    for said in _programs(estimate, target):
        if isinstance(said, Compiled):
            peaks.append(said.peak)
            yield f"  {said.name}: {said.peak / GIB:.2f} GiB at the peak, {said.seconds:.0f} s to compile"
        elif isinstance(said, bool):
            peaks.append(math.inf)
        else:
            yield said
    yield from _verdict(estimate, target, max(peaks, default=None))


def plan_architecture(config: Config) -> Architecture:
    """Reads the architecture of the policy, and no weights; of a model of the hub its ``config.json`` is fetched.

    Raises:
        ModelNotFound: it is not here and cannot be fetched.
    """
    model, path = config.model, Path(config.model.path).expanduser()
    if model.path == "tiny":
        return tiny_architecture(model)
    if model.path == "smollm2-135m":
        return load_architecture(resolve_model(model, config.seed, path))
    if not path.is_dir():
        from huggingface_hub import hf_hub_download

        try:
            path = Path(hf_hub_download(model.path, "config.json")).parent
        except Exception as error:  # of whichever HTTP library the client uses
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ModelNotFound(
                f"model.path={model.path}: its config.json is not here and cannot be fetched ({reason}); give a "
                "directory that holds it"
            ) from None
    return load_architecture(path)


def required(estimate: Estimate, target: Target, peak: float | None = None) -> float:
    """Returns the bytes that the fullest device needs; of CPUs, all that the run needs on the host.

    Args:
        estimate: of the learner and its engines.
        target: where an embedded engine shares the learner's device if that leaves none.
        peak: of the learner's programs, where the compiler has said it.
    """
    config, mesh = estimate.config, estimate.mesh
    kinds = estimate.memory()
    # No program takes all of these at once, and all of them stay.
    learner = sum(kinds.values()) if peak is None else peak + kinds.get("reference", 0) + kinds.get("critic", 0)
    engine, engines = sum(estimate.engine().values()), config.sidecar.num_engines
    if target.shared:
        return learner * mesh.size + engine * engines
    free = max(target.devices - mesh.size, 0)
    return max(learner, engine * -(-engines // free)) if free else learner + engine * -(-engines // mesh.size)


def _run(estimate: Estimate, target: Target) -> Iterator[str]:
    config, row = estimate.config, estimate.row
    memory = "of the host" if target.shared else "each"
    devices = f"{target.devices} × {target.hardware.platform}"
    yield f"target   {target.name}: {devices}, {target.memory / GIB:.1f} GiB {memory}"
    shape = ", ".join(f"{name} {size}" for name, size in dataclasses.asdict(estimate.mesh).items() if size > 1)
    yield f"learner  {estimate.parameters / 1e6:,.1f} M parameters, {config.model.dtype}, mesh {shape or '1 device'}"
    ahead = f"{config.staleness_credit} groups of {config.group_size} ahead at most"
    yield f"steps    staleness at most {config.staleness_bound}, {ahead}"
    rows = -(-config.rollout_batch_size * config.longest // row.length)
    yield f"         {rows} rows of {row.length} a step, {row.rows} a microbatch, where responses are as long as may be"
    sidecar = config.sidecar
    requests = f"{sidecar.max_concurrency} requests of up to {config.context} tokens"
    yield f"engines  {sidecar.num_engines} × {sidecar.engine}, {requests}"
    for name, size in estimate.engine().items():
        yield f"         {size / GIB:8.2f} GiB {name}"
    for line in estimate.dropped():
        yield f"replicated: {line}"


def _memory(estimate: Estimate, target: Target) -> Iterator[str]:
    found = estimate.memory()
    yield "memory of a learner's device, by arithmetic"
    for name, size in found.items():
        yield f"  {size / GIB:8.2f} GiB {name}"
    yield f"  {sum(found.values()) / GIB:8.2f} GiB in all"
    sync = BYTES[estimate.config.resolved_sync_dtype]
    loading, pushed = estimate.parameters * 6 / GIB, estimate.parameters * sync / GIB
    yield f"host     {loading:.1f} GiB to load (stored in bf16, and float32), {pushed:.1f} GiB to publish a version"


def _speed(estimate: Estimate, target: Target) -> Iterator[str]:
    step, moved = estimate.steps(), estimate.traffic()
    if moved:
        yield "traffic of a device, of a microbatch, and of a layer in it"
    for name, size in moved.items():
        yield f"  {size / GIB:8.2f} GiB, {size / GIB / estimate.architecture.num_layers:7.3f} GiB {name}"
    if target.flops is None or target.links is None:
        yield "speed    nobody says what this device computes at its peak"
        return
    computing = step["operations"] / target.flops / estimate.mesh.size
    sending = step["microbatches"] * sum(moved.values()) / target.links
    rate = step["tokens"] / max(computing, sending)
    yield (
        f"speed    {step['tokens']:,.0f} tokens a step, {step['microbatches']:.0f} microbatches: {computing:.1f} s at "
        f"the peak of computing, {sending:.1f} s at that of the links; {rate:,.0f} tokens/s at most"
    )


def _programs(estimate: Estimate, target: Target) -> Iterator[str | Compiled | bool]:
    config, length, size = estimate.config, estimate.row.length, estimate.mesh.size
    body = attention_body(config, estimate.architecture, target.hardware, length)
    yield f"attention of rows of {length}: {body.name}{body.reason and f', since {body.reason}'}"
    devices = devices_of(config.plan.target)
    if isinstance(devices, str):
        yield f"unknown  what the compiler makes of it: peaks of memory, seconds to compile ({devices})"
    elif len(devices) < size or (len(devices) > size and config.plan.target != "here"):
        # libtpu ends the process over a program for a part of its chips.
        yield f"unknown  what the compiler makes of it: it is asked for all {len(devices)} devices, the mesh has {size}"
    else:
        yield f"programs compiled for {target.name}"
        programs = abstract_programs(config, estimate.architecture, devices)
        try:
            yield from compiled([program for program in programs if program.likely], target.hardware.platform)
        except jax.errors.JaxRuntimeError as error:  # a TPU's compiler refuses what does not fit
            yield f"  the compiler refuses it: {first_line(error)}"
            yield False
        yield f"  and {sum(not program.likely for program in programs)} for batches of other shapes"


def _verdict(estimate: Estimate, target: Target, peak: float | None) -> Iterator[str | bool]:
    needed, limit = required(estimate, target, peak), target.memory
    fits = needed <= limit and estimate.mesh.size <= target.devices
    if fits:
        yield f"fits: {needed / GIB:.2f} of {limit / GIB:.2f} GiB"
    elif estimate.mesh.size > target.devices:
        yield f"does not fit: the mesh needs {estimate.mesh.size} devices, there are {target.devices}"
    elif math.isinf(needed):
        yield "does not fit: the compiler finds no room for it"
    else:
        yield f"does not fit: {needed / GIB:.2f} GiB, {(needed - limit) / GIB:.2f} more than there are"
    if not fits:
        engine = sum(estimate.engine().values())
        yield nearest_mesh(estimate, target) or (
            f"an embedded engine alone needs {engine / GIB:.2f} GiB: lower sidecar.max_concurrency"
            if engine > limit
            else "no mesh of these devices does: lower learner.rows_per_microbatch, or take more devices"
        )
    yield fits


def nearest_mesh(estimate: Estimate, target: Target) -> str | None:
    """Returns the keys of the mesh that fits with the fewest devices, of those the one with the fewest over `tensor`;
    None where there is none.
    """
    sizes = range(1, target.devices + 1)
    for tensor, fsdp in sorted(itertools.product(sizes, sizes), key=lambda one: (one[0] * one[1], one[0])):
        if tensor * fsdp > target.devices or estimate.architecture.num_kv_heads % tensor:
            continue
        config, rows = estimate.config, estimate.config.learner.rows_per_microbatch
        learner = dataclasses.replace(
            config.learner, mesh=MeshConfig(fsdp=fsdp, tensor=tensor), rows_per_microbatch=max(rows, fsdp)
        )
        try:
            other = Estimate(dataclasses.replace(config, learner=learner), estimate.architecture, learner.mesh)
        except ConfigError:  # rows that such a mesh does not divide
            continue
        needed = required(other, target)
        if needed <= target.memory:
            keys = {"mesh.fsdp": fsdp, "mesh.tensor": tensor, "rows_per_microbatch": learner.rows_per_microbatch}
            said = " ".join(f"--config.learner.{name}={value}" for name, value in keys.items())
            return f"nearest that does, {needed / GIB:.2f} GiB by arithmetic: {said}"
    return None
