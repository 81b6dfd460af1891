"""The plan of a run: what it will take on a target, said before it starts, without weights and without the target."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import jax

from rljax.config.chips import chip_named
from rljax.config.distill import TEACHERS
from rljax.config.engines import ENGINES
from rljax.config.refusals import Refusals, changed, joined, refused_by
from rljax.config.schema import Config, LearnerConfig, MeshConfig, ModelConfig
from rljax.config.secrets import without_passwords
from rljax.config.sizes import minibatches_per_step, rows_per_trajectory
from rljax.config.validate import ConfigError
from rljax.config.validate_placement import device_indices
from rljax.models.common.architecture import Architecture
from rljax.pipeline.assemble.devices import share_gpu_memory
from rljax.pipeline.assemble.names import name_refusals
from rljax.pipeline.assemble.processors import where_hosts_are
from rljax.pipeline.assemble.run import check_architecture, check_computed
from rljax.pipeline.plan.compiled import Compiled, abstract_programs, attention_body, compiled
from rljax.pipeline.plan.estimate import Estimate
from rljax.pipeline.plan.experts import idle_parameters, route_bytes
from rljax.pipeline.plan.models import read_models, stored_sizes
from rljax.pipeline.plan.placement import (
    Placement,
    engine_room,
    handed_over,
    hosts_of,
    learner_names,
    place_engines,
    pools,
    shares_base,
)
from rljax.pipeline.plan.scorers import place_scorers
from rljax.pipeline.plan.speed import describe_speed
from rljax.pipeline.plan.targets import GIB, MACHINE, Target, devices_of, find_target
from rljax.pipeline.plan.timing import describe_time, run_before, time_is_known
from sidecar.errors import first_line

COUNTS = (1, 2, 4, *range(MACHINE, 129, MACHINE))
"""GPUs of the targets that are looked at where this machine has too few: machines as they are made."""


def plan(config: Config) -> Iterator[str | bool]:
    """Yields the lines of a plan of a run with ``mode=both``, and last whether it fits.

    Raises:
        ConfigError: a run would refuse the config, wherever it was started.
        ModelNotFound: a model is not here and cannot be fetched.
    """
    refused = [*name_refusals(config)]
    config = dataclasses.replace(config, mode="both")
    if config.plan.target == "here":
        share_gpu_memory(config)
    target, run = find_target(config), None
    try:
        run = run_before(config)
    except ConfigError as error:
        refused.append(error)
    try:
        architecture, scorers = read_models(config)
        stored = [stored_sizes(config.model, config.seed, architecture)]
        for name, teacher in config.algorithm.distill.stored.items():
            stored += [stored_sizes(ModelConfig(path=teacher.path), config.seed, scorers[f"{TEACHERS}.{name}"])]
    except ConfigError as error:
        refused += [*room_refusals(config), error, *error.others]
    if refused:
        raise joined(refused)
    estimate = Estimate(config, architecture, config.learner.mesh, target.hardware.platform, scorers)
    placement = _placed(estimate, target)
    yield from _run(estimate, target, placement)
    yield from _memory(estimate, target, stored)
    yield from describe_speed(estimate, target)
    time = describe_time(config, run, placement if isinstance(placement, Placement) else None)
    if not time_is_known(config, run):  # else it is simulated, for up to minutes, behind the verdict
        yield from time
    peaks = []
    for said in _programs(estimate, target) if isinstance(placement, Placement) else ():
        if isinstance(said, Compiled):
            peaks.append(said.peak)
            rare = "" if said.likely else ", for batches of other shapes"
            yield f"  {said.name}: {said.peak / GIB:.2f} GiB at the peak, {said.seconds:.0f} s to compile{rare}"
        elif isinstance(said, bool):
            peaks.append(math.inf)
        else:
            yield said
    *verdict, fits = _verdict(estimate, target, placement, max(peaks, default=None))
    yield from verdict
    yield from time
    yield fits


def _placed(estimate: Estimate, target: Target) -> Placement | ConfigError:
    """Returns where the run's engines are, and what scores, or why a run would refuse to start."""
    try:
        _check_mesh(estimate.config, target)
        check_architecture(estimate.config, estimate.architecture)
        for name, architecture in estimate.teachers.items():
            _check_teacher(estimate.config, name, architecture)
        placement = place_engines(estimate.config, target)
        return dataclasses.replace(placement, scorers=place_scorers(estimate, target, placement))
    except ConfigError as error:
        return error


def _check_teacher(config: Config, name: str, architecture: Architecture) -> None:
    try:
        check_computed(config, architecture)
    except ConfigError as error:
        raise ConfigError(f"{TEACHERS}.{name}: {error}") from None


def _check_mesh(config: Config, target: Target) -> None:
    needed = config.learner.mesh.size
    if needed > target.devices:
        raise ConfigError(f"learner.mesh multiplies to {needed} devices, {target.name} has {target.devices}")
    hosts, fewest = config.learner.hosts.number, target.hosts(needed)
    _, named = device_indices(config.learner.devices)
    if target.name == "here" or target.host_only:
        return
    if hosts == 1:  # of several that are needed a line of the plan says so
        if fewest == 1 and named and target.hardware.platform == "gpu" and max(named) >= target.machine:
            raise ConfigError(
                f"learner.devices={config.learner.devices!r}: a machine of {target.name} has {target.machine}, counted "
                "from 0; write such"
            )
        return
    there = target.devices // target.machine if target.hardware.platform == "gpu" else fewest
    if not fewest <= hosts <= there:
        several = f"{fewest} to {there}" if there > fewest else f"{fewest}"
        raise ConfigError(
            f"learner.hosts.number={hosts}: the {needed} devices of learner.mesh are on {several} machines of "
            f"{target.name}, a host each; write {fewest}"
        )


def _check_room(config: Config, target: Target) -> Placement:
    _check_mesh(config, target)
    return place_engines(config, target)


def room_refusals(config: Config) -> Refusals:
    """Yields what is known of the room on the target without a model, also of a config of which only some keys can be
    read, and where there would be enough.
    """
    config = changed(config, mode="both")
    target = find_target(config)
    for error in refused_by(_check_room, config, target):
        yield ConfigError("; ".join(filter(None, (str(error), _elsewhere(config, target)))))


def _elsewhere(config: Config, target: Target) -> str:
    """Returns which target to name where this machine has too few devices for learner and engines: the smallest of its
    kind, or of H100s. Empty where it has enough, and where none would do.
    """
    if target.name != "here" or not list(refused_by(_check_room, config, target)):
        return ""
    chip = target.chip or chip_named("h100")
    for shape in chip.slices or [(count,) if count <= MACHINE else (count // MACHINE, MACHINE) for count in COUNTS]:
        larger = f"{chip.name}:{'x'.join(map(str, shape))}"
        there = find_target(changed(config, plan=changed(config.plan, target=larger)))
        if not list(refused_by(_check_room, config, there)):
            few = f"{target.devices} {'device' if target.devices == 1 else 'devices'}"
            return f"plan.target=here is this machine, with {few}: write --config.plan.target={larger}"
    return ""


def _run(estimate: Estimate, target: Target, placement: Placement | ConfigError) -> Iterator[str]:
    config, row = estimate.config, estimate.row
    memory = "of the host" if target.host_only else "each"
    learners = f", of which JAX takes {target.share:g}: {target.memory * target.share / GIB:.1f} GiB"
    kind = f"{target.devices} × {target.kind} ({target.hardware.platform})"
    yield f"target   {target.name}: {kind}, {target.memory / GIB:.1f} GiB {memory}{learners * (target.share < 1)}"
    shape = ", ".join(f"{name} {size}" for name, size in dataclasses.asdict(estimate.mesh).items() if size > 1)
    active = estimate.parameters - idle_parameters(estimate.architecture)
    through = f", of which a token goes through {active / 1e6:,.1f} M" * bool(estimate.architecture.experts)
    what = f"{estimate.adapter / 1e6:,.2f} M parameters of adapters on " if estimate.adapts else ""
    parameters = f"{what}{estimate.parameters / 1e6:,.1f} M {'frozen ones' if what else 'parameters'}{through}"
    yield f"learner  {parameters}, {config.model.dtype}, mesh {shape or '1 device'}"
    ahead = f"{config.staleness_credit} groups of {config.group_size} ahead at most"
    stale = f"staleness at most {config.staleness_bound}, {ahead}"
    alone = f"{config.demonstrations_per_batch} demonstrations, and nothing is sampled for training"
    yield f"steps    {alone if config.imitates_alone else stale}"
    rows, turns = estimate.packed.rows * minibatches_per_step(config), rows_per_trajectory(config)
    yield f"         {rows} rows of {row.length} a step, {row.rows} a microbatch, where responses are as long as may be"
    if turns > 1:
        yield f"         and episodes take all {turns} turns, each a row of its own"
    if config.algorithm.records_routes and (a_token := route_bytes(estimate.architecture, stored=True)):
        stored = a_token * estimate.steps()["tokens"] / config.algorithm.ppo_epochs
        yield f"         {stored / GIB:.2f} GiB of routes a step in the ledger, {a_token} bytes a token"
    if (hosts := hosts_of(estimate, target)) > 1:
        yield f"needs    {hosts} processes, {where_hosts_are(config, target.name)}: learner.hosts.number={hosts}"
    yield from _engines(estimate, target, placement)
    yield from _scorers(placement)
    for name, teacher in config.algorithm.distill.served.items():
        url = without_passwords(str(teacher.url))
        yield f"teacher  {name} is asked at {url}: the time that it takes is not counted"
    yield from _idle(estimate, target, placement)
    for line in estimate.dropped():
        yield f"replicated: {line}"


def _engines(estimate: Estimate, target: Target, placement: Placement | ConfigError) -> Iterator[str]:
    config, sidecar = estimate.config, estimate.config.sidecar
    placed = placement if isinstance(placement, Placement) else None
    where = f" {placed}" if placed else ""
    requests = f"{sidecar.max_concurrency} requests of up to {config.context} tokens"
    yield f"engines  {sidecar.num_engines} × {sidecar.engine}{where}, {requests}"
    room = None
    if placed and placed.platform == "gpu" and not ENGINES[sidecar.engine].in_process:
        room = engine_room(config, target)
        yield f"         {room / GIB:8.2f} GiB of each GPU: sidecar.gpu_memory_utilization={room / target.memory:g}"
    shared = placed is not None and shares_base(estimate, target, placed)
    found = estimate.engine(room, base=not shared, on_host=placed is not None and placed.platform == "cpu")
    for name, size in found.items():
        yield f"         {size / GIB:8.2f} GiB {name}{' a GPU' * (sidecar.tensor_parallel_size > 1)}"
    if shared:
        yield "         its frozen weights are the learner's, and there once"
    if placed and (handed := handed_over(estimate, target, placed)):
        yield f"         {handed / GIB:8.2f} GiB version that is handed over"
    if room is not None:
        tokens = found["KV"] / estimate.token
        yield f"         {tokens:,.0f} tokens at most: {tokens / config.context:.0f} requests of full length"


def _scorers(placement: Placement | ConfigError) -> Iterator[str]:
    for scorer in placement.scorers if isinstance(placement, Placement) else ():
        yield f"scores   {scorer.what}: {scorer.count} {scorer.placement}, {scorer.asked}"
        for name, size in scorer.kinds.items():
            yield f"         {size / GIB:8.2f} GiB {name}"


def _idle(estimate: Estimate, target: Target, placement: Placement | ConfigError) -> Iterator[str]:
    if isinstance(placement, ConfigError) or target.host_only:
        return
    every = [placement, *(scorer.placement for scorer in placement.scorers)]
    taken = {name for one in every if one.platform != "cpu" for name in one.names}
    left = target.devices - len(taken.union(learner_names(estimate.config, target)))
    if left:
        nor = "nor judges nor reward models " * bool(placement.scorers)
        yield f"idle     {left} of {target.devices} devices: neither learner.mesh nor the engines {nor}take them"


def _memory(estimate: Estimate, target: Target, stored: Sequence[Mapping[str, int]]) -> Iterator[str]:
    found = estimate.memory()
    yield "memory of a learner's device, by arithmetic"
    for name, size in found.items():
        yield f"  {size / GIB:8.2f} GiB {name}"
    yield f"  {sum(found.values()) / GIB:8.2f} GiB in all"
    hosts = hosts_of(estimate, target)
    each = "each of the learner's processes" if hosts > 1 else "the learner's process"
    yield f"host     of {each}, at most, beside what stays"
    for name, size in estimate.host(*stored, devices=target.each(estimate.mesh.size, hosts)).items():
        yield f"  {size / GIB:8.2f} GiB {name}"


def _programs(estimate: Estimate, target: Target) -> Iterator[str | Compiled | bool]:
    config, size, every = estimate.config, estimate.mesh.size, estimate.config.plan.all_shapes
    hardware = dataclasses.replace(target.hardware, mesh=estimate.layout)
    for length in [shape.length for shape in estimate.shapes] if every else [estimate.row.length]:
        body = attention_body(config, estimate.architecture, hardware, length)
        yield f"attention of rows of {length}: {body.name}{body.reason and f', since {body.reason}'}"
    devices = devices_of(target.name)
    if isinstance(devices, str):
        yield f"unknown  what the compiler makes of it: peaks of memory, seconds to compile ({devices})"
    elif len(devices) < size or (len(devices) > size and target.chip and target.chip.ring and target.name != "here"):
        # libtpu ends the process over a program for a part of its chips.
        yield f"unknown  what the compiler makes of it: it is asked for all {len(devices)} devices, the mesh has {size}"
    else:
        models = estimate.architecture, devices, target.hardware, estimate.teachers
        programs = abstract_programs(config, *models)
        yield f"programs compiled for {target.name}" + (f", all {len(programs)} of them" if every else "")
        try:
            yield from compiled([one for one in programs if one.likely or every], target.hardware.platform)
        except jax.errors.JaxRuntimeError as error:  # a TPU's compiler refuses what does not fit
            yield f"  the compiler refuses it: {first_line(error)}"
            yield False
        if not every:
            others = sum(not program.likely for program in programs)
            turns = ", among them of fewer turns" if rows_per_trajectory(config) > 1 else ""
            yield f"  and {others} for batches of other shapes{turns}: plan.all_shapes=true compiles them too"


def _verdict(
    estimate: Estimate, target: Target, placement: Placement | ConfigError, peak: float | None
) -> Iterator[str | bool]:
    if isinstance(placement, ConfigError):
        yield f"does not fit: {placement}"
        yield from _instead(estimate, target)
        yield False
        return
    found = pools(estimate, target, placement, peak)
    short = [pool for pool in found if not pool.fits]
    if not short:
        yield f"fits: {'; '.join(map(str, found))}"
        yield True
        return
    for pool in short:
        if math.isinf(pool.needed):
            yield "does not fit: the compiler finds no room for it"
            continue
        yield f"does not fit: {pool}, {(pool.needed - pool.limit) / GIB:.2f} more than there are"
        if pool.advice:
            yield f"with --config.{pool.advice} it would"
    yield from _instead(estimate, target) or [
        "no mesh of these devices does: lower learner.rows_per_microbatch or sidecar.max_concurrency, or take more "
        "devices"
    ]
    yield False


def _instead(estimate: Estimate, target: Target) -> list[str]:
    """Returns what does fit: another target, another mesh, both or neither."""
    return [line for line in (_elsewhere(estimate.config, target), nearest_mesh(estimate, target)) if line]


def nearest_mesh(estimate: Estimate, target: Target) -> str | None:
    """Returns the mesh that fits with the fewest devices, of those the one with the fewest over `tensor`, as keys of
    the command line; None where there is none.
    """
    sizes = range(1, target.devices + 1)
    for tensor, fsdp in sorted(itertools.product(sizes, sizes), key=lambda one: (one[0] * one[1], one[0])):
        if tensor * fsdp > target.devices:
            break
        config, rows = estimate.config, estimate.config.learner.rows_per_microbatch
        learner = dataclasses.replace(
            config.learner, mesh=MeshConfig(fsdp=fsdp, tensor=tensor), rows_per_microbatch=max(rows, fsdp)
        )
        if learner == config.learner:
            continue  # it is what does not fit
        try:
            other = dataclasses.replace(
                estimate, config=dataclasses.replace(config, learner=learner), mesh=learner.mesh
            )
        except ConfigError:  # rows that such a mesh does not divide
            continue
        placement = _placed(other, target)
        if isinstance(placement, ConfigError):
            continue
        found = pools(other, target, placement)
        if all(pool.fits for pool in found):
            return f"nearest that does, by arithmetic ({'; '.join(map(str, found))}): {_asked(learner, config.learner)}"
    return None


def _asked(learner: LearnerConfig, given: LearnerConfig) -> str:
    """Returns what the command line says for a mesh and its rows, where a config has those ``given``."""
    was = dataclasses.asdict(given.mesh)
    axes = dataclasses.asdict(learner.mesh).items()
    keys = [f"mesh.{axis}={size}" for axis, size in axes if size > 1 or size != was[axis]]
    if learner.rows_per_microbatch != given.rows_per_microbatch:
        keys.append(f"rows_per_microbatch={learner.rows_per_microbatch}")
    return " ".join(f"--config.learner.{key}" for key in keys)
