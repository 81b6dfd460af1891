"""Validates placement: devices, engines, and the channel of the weights."""

from __future__ import annotations

import re

from rljax.config.chips import CHIPS, split_target
from rljax.config.engines import ENGINES, kinds_with
from rljax.config.fields import ConfigError, shown
from rljax.config.refusals import Refusals, collected, refused_by
from rljax.config.schema import Config

_SPAN = r"[0-9]{1,4}(-[0-9]{1,4})?"
_CHIPS = "|".join(chip.name for chip in CHIPS)
_COLOCATED = "sidecar.colocate=true"
"""Key that engines on the learner's accelerators are asked for by, for messages."""
_TARGET = re.compile(rf"here|({_CHIPS})(:[1-9][0-9]{{0,3}}(x[1-9][0-9]{{0,2}}){{0,2}})?")
_DEVICES = re.compile(rf"auto|(cpu|gpu|tpu)(:{_SPAN}(,{_SPAN})*)?")


def check_placement(config: Config) -> Refusals:
    """Refuses devices that are taken, keys that the mesh gives nothing to do, engines that do not fit, and memory that
    nobody shares or that is short.
    """
    learner = (_check_mesh, _check_layout, _check_hosts)
    shared = (_check_overlap, _check_launcher, _check_common, _check_shared_gpus, _check_shares, _check_engine_on_each)
    engines = (
        _check_dtype,
        _check_pinned,
        _check_parallel,
        _check_own_process,
        _check_cpu_engine,
        _check_number,
    )
    return collected(config, *learner, *shared, *engines, _check_channel, _check_deltas)


def _check_layout(config: Config) -> Refusals:
    if config.learner.sequence_parallel and config.learner.mesh.tensor == 1:
        yield ConfigError(
            "learner.sequence_parallel=true: it cuts rows over learner.mesh.tensor, which is 1; raise that, leave it "
            "out, or write learner.mesh.sequence"
        )


def is_address(text: str) -> bool:
    """Returns whether a text is HOST:PORT, HOST being no IPv6 address."""
    machine, _, port = text.rpartition(":")
    return bool(machine) and ":" not in machine and port.isascii() and port.isdecimal() and 0 < int(port) < 2**16


def _check_hosts(config: Config) -> Refusals:
    hosts, mesh = config.learner.hosts, config.learner.mesh
    what = f"learner.hosts.number={hosts.number}"
    if hosts.number == 1:
        if hosts.rank is not None or hosts.coordinator is not None or hosts.start != "auto":
            yield ConfigError(
                f"{what}: one process is host 0 of 1; leave rank, coordinator and start out, or raise number"
            )
        return
    if hosts.rank is not None and hosts.coordinator is None:
        yield ConfigError(f"learner.hosts.rank={hosts.rank}: write learner.hosts.coordinator, HOST:PORT of host 0, too")
    if hosts.coordinator is not None and not is_address(hosts.coordinator):
        yield ConfigError(
            f"learner.hosts.coordinator={hosts.coordinator!r}: write HOST:PORT of host 0, HOST a name or IPv4 address"
        )
    on_cluster = config.has_hosts and config.launcher == "ray" and hosts.start == "auto"
    if on_cluster and hosts.coordinator is not None and hosts.rank is None:
        yield ConfigError(
            f"learner.hosts.coordinator={hosts.coordinator!r}: with launcher=ray this command starts all hosts and "
            "finds one; write learner.hosts.rank (or start=environment) too, or leave the coordinator out"
        )
    if hosts.start == "here" and (hosts.rank is not None or hosts.coordinator is not None):
        yield ConfigError(
            "learner.hosts.start=here: this command starts all hosts; leave learner.hosts.rank and coordinator out"
        )
    if hosts.rank is not None and hosts.rank >= hosts.number:
        yield ConfigError(f"learner.hosts.rank={hosts.rank}: {what} counts from 0 to {hosts.number - 1}")
    if mesh.size % hosts.number:
        yield ConfigError(
            f"{what}: learner.mesh multiplies to {mesh.size} devices, which the hosts do not share evenly; write a "
            "mesh of as many as they have together"
        )
    if config.sidecar.colocate:
        yield ConfigError(
            f"{what}: {_COLOCATED} puts engines on the devices of one process; leave it out, and give the engines "
            "accelerators of their own (launcher=ray and sidecar.devices=gpu: those that the hosts leave)"
        )
    if config.has_hosts and config.sync_method == "nccl":
        yield ConfigError(f"{what}: sync_method=nccl sends from one process's GPUs; write sync_method=checkpoint")


def check_device_names(path: str, devices: str) -> None:
    """Refuses what names no devices; ``path`` is the key.

    Raises:
        ConfigError: it does not.
    """
    if not _DEVICES.fullmatch(devices):
        raise ConfigError(
            f"{path}={shown(devices)}: write auto, cpu, cpu:0-3, gpu:0-3,6 or tpu:0-7, with indices of up to 4 digits"
        )


def device_indices(devices: str) -> tuple[str, frozenset[int] | None]:
    """Splits ``gpu:0-3,6`` into its platform and indices; None stands for all of them."""
    platform, _, spans = devices.partition(":")
    if not spans:
        return platform, None
    bounds = [span.partition("-") for span in spans.split(",")]
    return platform, frozenset(i for low, _, high in bounds for i in range(int(low), int(high or low) + 1))


def check_number_named(devices: str, size: int) -> None:
    """Refuses the learner's devices where they are named and are not as many as its mesh has.

    Raises:
        ConfigError: they are not.
    """
    _, indices = device_indices(devices)
    if indices is not None and len(indices) != size:
        raise ConfigError(
            f"learner.devices={devices!r}: names {len(indices)} devices, learner.mesh multiplies to {size}; "
            "write as many in both"
        )


def shares_gpu_memory(config: Config) -> bool:
    """Returns whether learner and engines are processes on the same GPUs, so that each is given a share of them."""
    if config.mode == "replay":  # it starts no engine
        return False
    separate = config.mode in ("train", "explore", "serve") or (config.mode == "both" and config.explorer.own_process)
    return config.sidecar.colocate and (not ENGINES[config.sidecar.engine].in_process or separate)


def engine_memory_share(config: Config) -> float:
    """Returns the share of a GPU's memory that an engine in a process of its own takes."""
    return config.sidecar.gpu_memory_utilization or (0.4 if config.sidecar.colocate else 0.9)


def learner_memory_share(config: Config) -> float | None:
    """Returns the share of a GPU's memory that JAX takes in the learner's process; None for what it takes by itself."""
    return config.learner.gpu_memory_utilization or (0.5 if shares_gpu_memory(config) else None)


def versions_held(config: Config) -> int:
    """Returns how many versions each engine holds at once, so that trajectories keep theirs: as many as may be in use,
    S + 1. 0 where none is kept: a new version takes the place of the one before.

    Engines of other modes sample no trajectories to train, and load whole models.
    """
    pins = config.sidecar.update_policy == "pin" and config.mode in ("both", "explore")
    return config.staleness_bound + 1 if pins else 0


def check_target(path: str, target: str) -> None:
    """Refuses what names no devices to plan for; ``path`` is the key.

    Raises:
        ConfigError: it does not.
    """
    what = f"{path}={target!r}"
    if not _TARGET.fullmatch(target):
        raise ConfigError(
            f"{what}: write here, or a chip and how many, v5e:4x4, v5p:2x2x1, h100:8, or h100:8x8 (8 machines of 8 "
            f"each); chips are {', '.join(chip.name for chip in CHIPS)}"
        )
    if target == "here":
        return
    chip, sizes = split_target(target)
    if chip.slices and not chip.slice_of(sizes):
        near = ", ".join(f"{chip.name}:{'x'.join(map(str, shape))}" for shape in chip.slices_near(sizes))
        raise ConfigError(f"{what}: there is no such slice of TPUs; near it are {near}")


def _check_mesh(config: Config) -> Refusals:
    yield from refused_by(check_number_named, config.learner.devices, config.learner.mesh.size)


def _check_overlap(config: Config) -> Refusals:
    devices, its = config.sidecar.devices, config.learner.devices
    (platform, mine), (other, theirs) = device_indices(its), device_indices(devices)
    overlap = platform == other and platform in ("gpu", "tpu") and (mine is None or theirs is None or mine & theirs)
    given_by_ray = config.launcher == "ray" and theirs is None  # it gives each accelerators of its own
    if not overlap or given_by_ray or config.sidecar.colocate:
        return
    several = config.launcher == "ray" or config.learner.hosts.number > 1
    other_way = f"launcher=ray and sidecar.devices={other}: what the learner leaves" if several else _COLOCATED
    yield ConfigError(
        f"sidecar.devices={devices!r}: overlaps learner.devices={its!r}; "
        f"give each its own accelerators (CPUs may be shared), or write {other_way}"
    )


def _check_launcher(config: Config) -> Refusals:
    if config.sidecar.colocate and config.launcher == "ray" and config.learner.hosts.number == 1:
        yield ConfigError(
            f"{_COLOCATED}: launcher=ray gives every engine accelerators of its own; write launcher=local"
        )


def _shared_platforms(config: Config) -> set[str]:
    return {device_indices(devices)[0] for devices in (config.learner.devices, config.sidecar.devices)} - {"auto"}


def _check_common(config: Config) -> Refusals:
    if config.sidecar.colocate and len(_shared_platforms(config)) > 1:
        places = (("learner.devices", config.learner.devices), ("sidecar.devices", config.sidecar.devices))
        yield ConfigError(f"{_COLOCATED}: {' and '.join(f'{key}={d!r}' for key, d in places)} have no device in common")


def _check_shared_gpus(config: Config) -> Refusals:
    platforms = _shared_platforms(config)
    if shares_gpu_memory(config) and len(platforms) == 1 and platforms != {"gpu"}:
        yield ConfigError(
            f"{_COLOCATED}: processes can share a GPU, by a part of its memory for each, and no {min(platforms)}; "
            "write gpu, or leave it out"
        )


def _check_shares(config: Config) -> Refusals:
    shares = learner_memory_share(config) or 0.0, engine_memory_share(config)
    if shares_gpu_memory(config) and sum(shares) > 1:
        yield ConfigError(
            f"{_COLOCATED}: learner.gpu_memory_utilization={shares[0]:g} and "
            f"sidecar.gpu_memory_utilization={shares[1]:g} are more than the GPU has; lower one of them (the defaults "
            "are 0.5 and 0.4)"
        )


def _check_engine_on_each(config: Config) -> Refusals:
    needed, size = config.sidecar.num_engines * config.sidecar.tensor_parallel_size, config.learner.mesh.size
    in_process = ENGINES[config.sidecar.engine].in_process
    if shares_gpu_memory(config) and not in_process and config.mode == "both" and needed > size:
        yield ConfigError(
            f"{_COLOCATED}: num_engines × tensor_parallel_size needs {needed} GPUs, and the learner has "
            f"{size} (learner.mesh), each with room for one engine; lower one of them"
        )


def _check_dtype(config: Config) -> Refusals:
    sidecar = config.sidecar
    if sidecar.dtype == "fp16" and not ENGINES[sidecar.engine].half_precision:
        yield ConfigError(
            f"sidecar.dtype='fp16': sidecar.engine={sidecar.engine} computes in fp32 or bf16; write one of them, or "
            f"sidecar.engine={kinds_with(half_precision=True)}"
        )


def _check_pinned(config: Config) -> Refusals:
    what, rank, engine = "sidecar.update_policy=pin", config.model.lora.rank, config.sidecar.engine
    if config.sidecar.update_policy != "pin":
        return
    most = ENGINES[engine].max_adapter_rank
    if rank is None:
        yield ConfigError(
            f"{what}: engines hold several versions as adapters of one model, and there is none; write "
            "model.lora.rank=16, say, or one of in_flight, keep_kv, drain and abort"
        )
    elif most is not None and rank > most:
        yield ConfigError(
            f"{what}: sidecar.engine={engine} holds adapters up to rank {most}, and model.lora.rank is {rank}; lower "
            "it, or write in_flight, keep_kv, drain or abort"
        )
    if config.sync_method == "nccl":
        yield ConfigError(
            f"{what}: with sync_method=nccl the learner sends merged models, and engines hold one; write "
            "sync_method=checkpoint"
        )


def _check_parallel(config: Config) -> Refusals:
    sidecar = config.sidecar
    if sidecar.tensor_parallel_size > 1 and not ENGINES[sidecar.engine].several_devices:
        yield ConfigError(
            f"sidecar.tensor_parallel_size={sidecar.tensor_parallel_size}: engine={sidecar.engine} computes on one "
            f"device; write sidecar.engine={kinds_with(several_devices=True)}"
        )


def _check_own_process(config: Config) -> Refusals:
    sidecar = config.sidecar
    platform, _ = device_indices(sidecar.devices)
    if platform == "tpu" and (not ENGINES[sidecar.engine].in_process or config.launcher != "local"):
        yield ConfigError(
            f"sidecar.devices={sidecar.devices!r}: an engine in a process of its own computes on cpu or gpu; for a TPU "
            "write sidecar.engine=embedded and launcher=local"
        )


def _check_cpu_engine(config: Config) -> Refusals:
    size = config.sidecar.tensor_parallel_size
    if size > 1 and device_indices(config.sidecar.devices)[0] == "cpu":
        yield ConfigError(
            f"sidecar.tensor_parallel_size={size}: an engine on a CPU is one process; give it more cores by "
            "sidecar.cpu_threads"
        )


def _check_number(config: Config) -> Refusals:
    sidecar = config.sidecar
    (platform, named), needed = device_indices(sidecar.devices), sidecar.num_engines * sidecar.tensor_parallel_size
    if not ENGINES[sidecar.engine].in_process and platform == "gpu" and named is not None and len(named) < needed:
        yield ConfigError(
            f"sidecar.devices={sidecar.devices!r}: names {len(named)} devices, num_engines × tensor_parallel_size "
            f"needs {needed}"
        )


def _check_channel(config: Config) -> Refusals:
    """Checks that the ``memory`` channel is shared: by threads of a process, or through Ray by its processes."""
    if config.sync_method != "memory":
        return
    separation = ""
    if ENGINES[config.sidecar.engine].own_workers:
        separation = f"the workers of sidecar.engine={config.sidecar.engine} are processes of its own"
    elif config.mode in ("train", "explore"):
        separation = f"with mode={config.mode} learner and explorer are processes that do not share a Ray job"
    elif config.launcher == "local" and config.explorer.own_process:
        separation = "with explorer.own_process=true and launcher=local learner and explorer are two processes"
    elif config.launcher == "local" and not ENGINES[config.sidecar.engine].in_process:
        separation = f"with launcher=local sidecar.engine={config.sidecar.engine} runs in a process of its own"
    if separation:
        by_ray = config.mode == "both" and not ENGINES[config.sidecar.engine].own_workers
        ways = "write sync_method=checkpoint or nccl" + (", or launcher=ray" if by_ray else "")
        yield ConfigError(f"sync_method=memory: {separation}, and no memory is shared; {ways}")


def _check_deltas(config: Config) -> Refusals:
    """Refuses ``sync_deltas`` where no version can be written as what has changed, or where that never pays."""
    if not config.sync_deltas:
        return
    what = f"sync_deltas={config.sync_deltas}"
    if config.sync_method == "nccl":
        yield ConfigError(
            f"{what}: with sync_method=nccl every version travels whole; write sync_method=checkpoint, or leave it out"
        )
    if config.sync_method == "memory" and config.launcher == "local":
        yield ConfigError(
            f"{what}: with sync_method=memory and launcher=local versions are handed over where they are, and nothing "
            "travels; leave it out, or write launcher=ray or sync_method=checkpoint"
        )
    if config.has_hosts:
        yield ConfigError(
            f"{what}: of a learner of several hosts (learner.hosts.number) each writes its part of a version whole; "
            "leave it out"
        )
    if config.resolved_sync_dtype == "fp32":
        yield ConfigError(
            f"{what}: of versions in float32 nearly every value changes at every step; write sync_dtype=bf16, or leave "
            "it out"
        )
