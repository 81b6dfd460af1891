"""The learner's update, compiled for accelerators that are not here.

    python -m bench.aot tpu     with libtpu (`make aot-tpu`)
    python -m bench.aot gpu     with JAX's CUDA plug-in (`make aot-gpu`)
    python -m bench.aot test    for the tests: two layers on v5e:2x4; a line of JSON each
    python -m bench.aot lower   lowers it for both, on virtual CPU devices: needs neither, and sees less

Each compiles what a run would: bf16, remat full, rows packed full of which half is trained; for TPUs with little
optimisation, since that takes a fifth of the time. Peaks are of one device, collectives of one device and microbatch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax

from bench.accelerator.shapes import MODELS
from rljax.config.schema import Config, LearnerConfig, LoraConfig, MeshConfig, ModelConfig
from rljax.learner.programs import Program
from rljax.models.common.architecture import Architecture, Experts
from rljax.models.common.hardware import Hardware
from rljax.pipeline.plan.collectives import by_kind
from rljax.pipeline.plan.compiled import Compiled, absent, abstract_programs, attention_body, compiled, kernels
from rljax.pipeline.plan.targets import GIB, devices_of

ARCHITECTURES = MODELS | {
    # config.json of Qwen/Qwen2.5-7B and Qwen/Qwen3-32B
    "Qwen2.5-7B": Architecture("qwen2", 152064, 3584, 18944, 28, 28, 4, 128, rope_theta=1e6, attention_bias=True),
    "Qwen3-32B": Architecture("qwen3", 151936, 5120, 25600, 64, 64, 8, 128, rope_theta=1e6, qk_norm=True),
}
ARCHITECTURES["two layers"] = replace(ARCHITECTURES["Qwen2.5-1.5B"], num_layers=2)
ARCHITECTURES["two layers with experts"] = Architecture(
    "qwen3_moe", 32_000, 1024, 3072, 2, 8, 4, 128, qk_norm=True, experts=Experts(16, 2, 512)
)
ARCHITECTURES["two layers of Qwen3-30B-A3B"] = Architecture(
    "qwen3_moe", 151936, 2048, 6144, 2, 32, 4, 128, rope_theta=1e6, qk_norm=True, experts=Experts(128, 8, 768)
)
ARCHITECTURES["small"] = Architecture("qwen3", 512, 256, 512, 2, 4, 2, 128, qk_norm=True)
LITTLE_EFFORT: dict[str, Any] = (
    {"exec_time_optimization_effort": -1.0, "memory_fitting_effort": -1.0}
    if jax.__version_info__ < (0, 11)
    else {"xla_optimization_level": "EFFORT_O1", "xla_memory_fitting_level": "EFFORT_O1"}
)
"""For libtpu: a fifth of its time, and a peak of memory that is a little lower. Later ones refuse the former names."""


@dataclass(frozen=True)
class Case:
    """An update: of which model, for which devices, over which mesh, and rows of a microbatch and their length; of
    adapters of a rank alone, where there is one.
    """

    model: str
    target: str
    mesh: dict[str, int]
    rows: int
    row: int
    dtype: str = "bf16"
    rank: int | None = None

    def config(self) -> Config:
        """Returns the config of a run that has this update."""
        half = self.row // 2
        return Config(
            mode="plan",
            rollout_batch_size=1024,
            group_size=4,
            model=ModelConfig(
                dtype=self.dtype,
                remat="full",
                max_prompt_tokens=half,
                max_response_tokens=half,
                lora=LoraConfig(rank=self.rank),
            ),
            learner=LearnerConfig(rows_per_microbatch=self.rows, mesh=MeshConfig(**self.mesh)),
        )

    def update(self, devices: Any, hardware: Hardware | None = None) -> Program:
        """Returns the update of rows packed full."""
        programs = abstract_programs(self.config(), ARCHITECTURES[self.model], devices, hardware)
        return next(program for program in programs if program.name.startswith("update "))


CASES = {
    "tpu": [
        Case("SmolLM2-135M", "v5e:1x1", {}, 8, 2048),
        Case("Qwen2.5-0.5B", "v5e:1x2", {"fsdp": 2}, 8, 2048),
        Case("Qwen2.5-1.5B", "v5e:2x4", {"fsdp": 8}, 8, 2048),
        Case("Qwen2.5-1.5B", "v5e:2x4", {"fsdp": 2, "tensor": 4}, 8, 2048),
        Case("Qwen2.5-1.5B", "v5e:2x4", {"fsdp": 2, "sequence": 4}, 8, 2048),
        Case("Qwen2.5-7B", "v5e:4x4", {"fsdp": 16}, 16, 8192),
        Case("Qwen2.5-7B", "v5e:4x4", {"fsdp": 4, "tensor": 4}, 4, 8192),
        Case("Qwen3-32B", "v5p:4x4x4", {"fsdp": 64}, 64, 8192),
    ],
    "gpu": [
        Case("Qwen2.5-1.5B", "h100:1", {}, 8, 8192),
        Case("Qwen2.5-7B", "h100:1", {}, 1, 2048, rank=32),
        Case("Qwen2.5-7B", "h100:8", {"fsdp": 8}, 8, 8192),
        Case("Qwen2.5-7B", "h100:8", {"fsdp": 2, "tensor": 4}, 8, 8192),
        Case("Qwen2.5-7B", "h100:8", {"fsdp": 2, "sequence": 4}, 2, 32768),
        Case("Qwen3-32B", "h100:8x8", {"fsdp": 64}, 64, 8192),
        Case("Qwen3-32B", "h100:8x8", {"fsdp": 8, "tensor": 8}, 64, 8192),
        Case("Qwen3-32B", "h100:8x8", {"fsdp": 32, "sequence": 2}, 32, 16384),
        Case("Qwen3-32B", "h100:8x8", {"fsdp": 8, "sequence": 2, "tensor": 4}, 64, 8192),
        Case("two layers of Qwen3-30B-A3B", "h100:8", {"expert": 8}, 8, 2048),
        Case("two layers of Qwen3-30B-A3B", "h100:8", {"fsdp": 2, "expert": 4}, 8, 2048),
        Case("two layers with experts", "h100:8", {"fsdp": 2, "expert": 4}, 8, 2048),
    ],
    "test": [
        Case("two layers", "v5e:2x4", mesh, 8, 2048)
        for mesh in ({"data": 8}, {"fsdp": 8}, {"fsdp": 2, "tensor": 4}, {"fsdp": 2, "sequence": 4})
    ]
    + [Case("two layers with experts", "v5e:2x4", {"fsdp": 2, "expert": 4}, 8, 2048)],
}
MESHES: list[dict[str, int]] = [{}, {"data": 8}, {"fsdp": 8}, {"tensor": 4}, {"fsdp": 2, "sequence": 4}]
LOWERED = [
    Case("small", target, mesh, 8, row, dtype)
    for target in ("tpu", "cuda")
    for mesh in MESHES
    for row, dtype in ((256, "bf16"), (200, "bf16"), (256, "fp32"))
]
HARDWARE = {"tpu": Hardware("tpu"), "cuda": Hardware("gpu", capability=9.0)}
KINDS = {"tpu": ("TPU v5 lite", "tpu"), "cuda": ("NVIDIA H100 80GB HBM3", "gpu")}


def compile_cases(cases: list[Case], options: dict[str, Any] | None = None) -> Iterator[tuple[Case, Compiled | str]]:
    """Compiles each, and yields what the compiler says, or why there is nothing to say."""
    for case in cases:
        devices: Any = devices_of(case.target)
        if isinstance(devices, str):
            yield case, devices
            continue
        try:
            yield case, next(compiled([case.update(devices)], devices[0].platform, options))
        except Exception as error:  # one that a compiler refuses is a result
            yield case, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def row_of(case: Case, found: Compiled | str) -> str:
    """Returns a row of the table in `RESULTS.md`."""
    mesh = " · ".join(f"{axis} {size}" for axis, size in case.mesh.items()) or "1"
    model = case.model if case.rank is None else f"{case.model}, rank {case.rank}"
    begun = f"| {model} | {case.target} | {mesh} | {case.rows} × {case.row} |"
    if isinstance(found, str):
        return f"{begun} {found} |"
    sent = [f"{kind} {count}, {size / GIB:.2f}" for kind, (count, size) in by_kind(found.collectives).items()]
    body = ", ".join(sorted(found.kernels)) or "no kernel"
    return f"{begun} {body} | {found.peak / GIB:.2f} | {'; '.join(sent) or 'none'} | {found.seconds:.0f} |"


def lower(case: Case) -> str:
    """Returns the body of attention in an update lowered for accelerators, and why it is not the kernel."""
    hardware = HARDWARE[case.target]
    program = case.update(jax.devices(), hardware)
    with absent(*KINDS[case.target]):
        traced = program.function.trace(*jax.tree.map(_without_devices, program.arguments))
        found = kernels(traced.lower(lowering_platforms=(case.target,)).as_text())
    body = attention_body(case.config(), ARCHITECTURES[case.model], hardware, case.row)
    if found != {body.name} - {"blockwise"}:
        raise AssertionError(f"{case} should have {body.name}, and calls {sorted(found) or 'no kernel'}")
    return f"{body.name}{body.reason and f', since {body.reason}'}"


def _without_devices(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)  # those of another platform than the one that it is lowered for


def main(what: str) -> int:
    """Prints a line a case; returns how many failed."""
    failed = 0
    if what == "lower":
        jax.config.update("jax_num_cpu_devices", 8)
        for case in LOWERED:
            try:
                body = lower(case)
            except Exception as error:  # the others are tried
                failed, body = failed + 1, f"FAILED: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            print(f"{case.target:5} {case.mesh!s:30} row {case.row} {case.dtype}: {body}", flush=True)
    elif what == "test":
        for case, found in compile_cases(CASES[what], LITTLE_EFFORT):
            failed += isinstance(found, str)
            said = {"error": found} if isinstance(found, str) else asdict(replace(found, kernels=frozenset()))
            kernel = [] if isinstance(found, str) else sorted(found.kernels)
            print(json.dumps({**said, "mesh": case.mesh, "kernels": kernel}), flush=True)
    else:
        print("| model | target | mesh | rows | attention | peak, GiB | collectives: runs, GiB | compiled, s |")
        print("|---|---|---|---|---|---|---|---|", flush=True)
        for case, found in compile_cases(CASES[what], LITTLE_EFFORT if what == "tpu" else None):
            failed += isinstance(found, str)
            print(row_of(case, found), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
