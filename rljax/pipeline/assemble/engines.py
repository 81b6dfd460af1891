"""Builds the engines that a config asks for: their specs, devices and pool."""

from __future__ import annotations

import math
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from rljax.config.engines import ENGINES as KINDS
from rljax.config.schema import Config
from rljax.config.validate import ConfigError
from rljax.config.validate_placement import device_indices, engine_memory_share, versions_held
from rljax.learner.sharding import Present, jax_devices
from rljax.models.adapter import target_words
from rljax.models.common.architecture import Architecture
from rljax.models.frozen import FrozenBase, serves_engines
from rljax.observe.trace import NullTrace, Trace, part_path
from rljax.pipeline.assemble.devices import device_name, engine_devices, engine_gpus, pool_gpus
from rljax.pipeline.assemble.run import Model
from rljax.pipeline.run_dir import RunDir
from rljax.rollout.engine_events import Answered, EngineEvents
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.engine_slot import EngineFactory
from sidecar.hosting.spec import EngineLauncher, EngineSpec
from sidecar.protocol import Completion, Engine, GenerateRequest, UpdatePolicy

COMPUTE_DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16}
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""Head sizes that vLLM's attention on the CPU supports."""
LEAST_KV_CACHE = 64 * 2**20
"""Bytes of the KV cache of an engine on the CPU, at least."""


@dataclass(frozen=True, slots=True)
class Before:
    """Engines and devices before those of a pool.

    Attributes:
        engines: how many engines of other pools.
        taken: devices that the pool does not choose by itself, by `device_name`.
        shared: those of them that an embedded engine may share where no other is left.
    """

    engines: int = 0
    taken: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()


def make_pool(
    config: Config,
    run: RunDir,
    model: Model,
    trace: Trace | NullTrace,
    events: EngineEvents,
    engine_launcher: EngineLauncher,
    before: Before = Before(),
) -> EnginePool:
    """Builds the pool of engines that the config asks for, not started yet.

    The embedded engine with ``launcher=local`` is a thread of this process; every other has a process of its own, and
    ``engine_launcher`` starts it. ``before`` are engines of other pools of this explorer.

    Raises:
        ConfigError: a device is not there, or is the learner's.
    """
    if KINDS[config.sidecar.engine].in_process and config.launcher == "local":
        start = _in_thread(config, model, trace, before)
    else:
        for index in range(config.sidecar.num_engines):  # what is wrong is said before anything is started
            engine_spec(config, run, model, index, engine_launcher, before)
        start = _with_engine_launcher(config, run, model, engine_launcher, before, isinstance(trace, Trace))
    # A hung engine must be found and replaced before the trainer gives up waiting for it.
    return EnginePool(
        start,
        config.sidecar.num_engines,
        run.root.absolute(),
        events,
        call_timeout=config.wait_timeout / 2,
        policy=_policy(config),
        held=versions_held(config),
        answered=_traced(config, trace),
    )


def engine_spec(
    config: Config,
    run: RunDir,
    model: Model,
    index: int,
    engine_launcher: EngineLauncher,
    before: Before = Before(),
) -> EngineSpec:
    """Builds the spec of this explorer's engine number ``index``, for a process that ``engine_launcher`` will start.

    Raises:
        ConfigError: its devices are not there or taken, or cannot compute the model.
    """
    sidecar, name = config.sidecar, f"engine {index}"
    place = before.engines + index
    gpu = (engine_launcher.platform(place) or local_platform(config)) == "gpu"
    _check_colocated(config, gpu)
    cores = () if gpu else _cores(config)
    threads = None if gpu else sidecar.cpu_threads or max(1, _spare_cores(cores) // sidecar.num_engines)
    log = run.root.absolute() / "logs" / f"{config.explorer.name}-engine-{index}.log"
    factory, build = ENGINES[sidecar.engine]
    arguments, environment = build(config, model, gpu, threads)
    if gpu and config.launcher == "local":  # on Ray, the placement decides
        environment |= {"CUDA_VISIBLE_DEVICES": ",".join(engine_gpus(config, index, before.taken))}
    return EngineSpec(
        name=name,
        index=place,
        factory=factory,
        arguments=arguments,
        environment=environment,
        accelerators=sidecar.tensor_parallel_size if gpu else 0,
        cores=cores,
        log=str(log),
    )


def _trace_of(config: Config, run: RunDir, index: int) -> dict[str, Any]:
    """Returns what the trace of an engine in a process of its own is written by."""
    role = _process(config, index)
    path = part_path(run.root.absolute(), role)
    return {"path": str(path), "role": role, "track": f"{role} · computation", "limit": config.observe.trace_events}


def local_platform(config: Config) -> str:
    """Returns the platform of engines in child processes of this one."""
    platform, _ = device_indices(config.sidecar.devices)
    if platform == "auto":
        return "gpu" if Path("/dev/nvidiactl").exists() else "cpu"
    return platform


def kv_cache_bytes(config: Config, architecture: Architecture) -> int:
    """Returns the bytes of KV cache of `max_concurrency` requests of full length, and some for partly filled blocks."""
    per_token = 2 * architecture.num_layers * architecture.num_kv_heads * architecture.head_dim
    width = 4 if config.engine_dtype == "fp32" else 2
    block = config.sidecar.block_size or 128
    tokens = config.sidecar.max_concurrency * (math.ceil((config.context + 1) / block) + 1) * block
    return max(LEAST_KV_CACHE, per_token * width * tokens)


def _policy(config: Config) -> UpdatePolicy:
    """Returns what an update does with requests in flight: where versions are not held, those that keep theirs end
    first.
    """
    policy = UpdatePolicy(config.sidecar.update_policy)
    return UpdatePolicy.DRAIN if policy is UpdatePolicy.PIN and not versions_held(config) else policy


def _with_engine_launcher(
    config: Config, run: RunDir, model: Model, engine_launcher: EngineLauncher, before: Before, traced: bool
) -> EngineFactory:
    async def start(index: int) -> Engine:
        spec = engine_spec(config, run, model, index, engine_launcher, before)
        return await engine_launcher.start(replace(spec, trace=_trace_of(config, run, index)) if traced else spec)

    return start


def _in_thread(config: Config, model: Model, trace: Trace | NullTrace, before: Before) -> EngineFactory:
    from rljax.sampler.adapted import Below
    from rljax.sampler.engine import EmbeddedEngine

    devices = embedded_devices(config, before)

    def shared(device: jax.Device) -> FrozenBase | None:
        has = model.frozen
        return has if has is not None and has.device == device and serves_engines(config) else None

    async def start(index: int) -> Engine:
        device = devices[index % len(devices)]
        name, track = f"engine {index}", f"{_process(config, index)} · computation"
        return EmbeddedEngine(
            model.architecture,
            slots=config.sidecar.max_concurrency,
            max_length=config.context,
            decode_steps=config.sidecar.decode_steps,
            dtype=COMPUTE_DTYPES[config.engine_dtype],
            tokenizer=model.tokenizer,
            device=device,
            name=name,
            trace=lambda kind, begin, end, details: trace.span(track, kind, begin, end, **details),
            record_routes=config.records_routes,
            below=Below(model.directory, shared(device)),
            held=versions_held(config),
        )

    return start


def _process(config: Config, index: int) -> str:
    """Returns the name of an engine among the processes of the trace."""
    return f"{config.explorer.name} engine {index}"


def _traced(config: Config, trace: Trace | NullTrace) -> Answered:
    def answered(index: int, request: GenerateRequest, began: float, done: Completion) -> None:
        track, task = f"{_process(config, index)} · requests", request.affinity or request.id
        trace.in_flight(track, task, began, time.time(), tokens=len(done.token_ids))

    return answered


def embedded_devices(config: Config, before: Before, present: Present = jax_devices) -> list[jax.Device]:
    """Returns the devices of embedded engines, of which engine i computes on the i-th, starting over after the last;
    ``present`` returns those of a platform.

    Raises:
        ConfigError: they are not there, or are or are not the learner's as they should be.
    """
    devices = engine_devices(config, present)
    if config.sidecar.devices != "auto":
        return devices
    names = [device_name(device.platform, device.id) for device in devices]
    free = [device for device, name in zip(devices, names, strict=True) if name not in before.taken]
    return free or [d for d, name in zip(devices, names, strict=True) if name in before.shared] or devices


def pool_devices(config: Config, before: Before = Before()) -> frozenset[str]:
    """Returns the names of the devices that the engines of a pool will compute on, as far as this process chooses them.

    Raises:
        ConfigError: they are not there, or are the learner's.
    """
    sidecar = config.sidecar
    if config.launcher != "local":
        return frozenset()
    if KINDS[sidecar.engine].in_process:
        devices = embedded_devices(config, before)[: sidecar.num_engines]
        return frozenset(device_name(device.platform, device.id) for device in devices)
    gpu = local_platform(config) == "gpu"
    _check_colocated(config, gpu)
    if not gpu:
        return frozenset()
    return frozenset(device_name("gpu", i) for i in pool_gpus(config, before.taken))


def _check_colocated(config: Config, gpu: bool) -> None:
    if config.sidecar.colocate and not gpu:
        raise ConfigError("sidecar.colocate=true: this machine has no GPU that could be shared; leave it out")


def _spare_cores(cores: tuple[int, ...]) -> int:
    return len(cores) or len(os.sched_getaffinity(0)) - 1


def _cores(config: Config) -> tuple[int, ...]:
    platform, indices = device_indices(config.sidecar.devices)
    return tuple(sorted(indices)) if platform == "cpu" and indices is not None else ()


def _embedded(config: Config, model: Model, gpu: bool, threads: int | None) -> tuple[dict[str, Any], dict[str, str]]:
    arguments = {
        "model": str(model.directory.absolute()),
        "slots": config.sidecar.max_concurrency,
        "max_length": config.context,
        "decode_steps": config.sidecar.decode_steps,
        "dtype": config.engine_dtype,
        "record_routes": config.records_routes,
        "held": versions_held(config),
    }
    return arguments, {} if gpu else {"JAX_PLATFORMS": "cpu"}


def _check_on_cpu(engine: str, architecture: Architecture, held: int) -> None:
    if architecture.head_dim not in CPU_HEAD_SIZES:
        raise ConfigError(
            f"sidecar.engine={engine}: vLLM on a CPU takes heads of {', '.join(map(str, CPU_HEAD_SIZES))}, "
            f"the model's are {architecture.head_dim} wide; choose another model, or sidecar.engine=embedded"
        )
    if held and architecture.experts is not None:
        raise ConfigError(
            f"sidecar.update_policy=pin: sidecar.engine={engine} on a CPU holds no adapters of a model with "
            "experts, for which vLLM needs Triton; write another, or sidecar.engine=embedded"
        )


def _check_routes(config: Config, platform: str) -> None:
    if not config.records_routes:
        return
    engine, wanted = config.sidecar.engine, config.algorithm.router_replay
    if platform not in KINDS[engine].records_routes:
        records = " or ".join(name for name, kind in KINDS.items() if platform in kind.records_routes)
        raise ConfigError(
            f"algorithm.router_replay={wanted}: sidecar.engine={engine} records no routes on a {platform.upper()}; "
            f"write sidecar.engine={records}, or leave it out"
        )
    if platform == "gpu" and not config.sidecar.enable_prefix_caching:
        raise ConfigError(
            f"sidecar.enable_prefix_caching=false: vLLM returns routes from its prefix cache alone, and algorithm."
            f"router_replay={wanted} asks for them; write true, or algorithm.router_replay=off"
        )


def _vllm(config: Config, model: Model, gpu: bool, threads: int | None) -> tuple[dict[str, Any], dict[str, str]]:
    from sidecar.vllm.settings import VllmSettings, environment

    sidecar, own_workers = config.sidecar, KINDS[config.sidecar.engine].own_workers
    held = versions_held(config)
    if not gpu:
        _check_on_cpu(sidecar.engine, model.architecture, held)
    _check_routes(config, "gpu" if gpu else "cpu")
    if sidecar.kv_cache_gib is not None:
        kv_cache: int | None = int(sidecar.kv_cache_gib * 2**30)
    else:
        kv_cache = None if gpu else kv_cache_bytes(config, model.architecture)
    adapted = tuple(target_words(model.architecture, config.model.lora)) if held else ()
    settings = VllmSettings(
        model=str(model.directory.absolute()),
        max_length=config.context,
        positions=model.architecture.max_position_embeddings,
        slots=sidecar.max_concurrency,
        dtype=config.engine_dtype,
        tensor_parallel_size=sidecar.tensor_parallel_size,
        gpu_memory_utilization=engine_memory_share(config),
        kv_cache_bytes=kv_cache,
        enforce_eager=sidecar.enforce_eager or not gpu,
        enable_prefix_caching=sidecar.enable_prefix_caching,
        load_format=sidecar.load_format,
        block_size=sidecar.block_size,
        seed=config.seed if sidecar.seed is None else sidecar.seed,
        accelerator=gpu,
        nccl=gpu and config.sync_method == "nccl" and own_workers,
        held=held,
        rank=(config.model.lora.rank or 0) if held else 0,
        adapted=adapted,
        record_routes=config.records_routes,
        double_buffer=sidecar.double_buffer,
        engine_args=dict(sidecar.engine_args),
    )
    variables = environment(cpu_threads=threads, multiprocessing=gpu and own_workers)
    return {"settings": asdict(settings)}, variables


ENGINES = {
    "embedded": ("rljax.sampler.hosted:open_engine", _embedded),
    "vllm": ("sidecar.vllm.stepped:open_engine", _vllm),
    "vllm_async": ("sidecar.vllm.concurrent:open_engine", _vllm),
}
"""By choice of `sidecar.engine`: what opens one in a process of its own, and what makes its arguments and variables."""
