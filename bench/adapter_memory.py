"""Memory of a learner that trains an adapter, against one that trains all weights.

    python -m bench.adapter_memory [--rank 16]

What: SmolLM2-135M's shape with random weights, float32, on a CPU; each case in a process of its own. kept: the arrays
that stay once two steps are trained, rows of 24 tokens, and with an engine once it has a version. peak: of the
process's resident memory till then. An engine of a learner of all weights has its own; below an adapter, the learner's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from bench.accelerator.shapes import MODELS
from bench.paired import print_machine, print_table
from rljax.config.model import LoraConfig
from rljax.config.schema import Config, LearnerConfig, ModelConfig
from rljax.learner.learner import Learner
from rljax.models.files import save_directory, stored_tensors
from rljax.models.hf_names import to_hf
from rljax.models.transformer import init_params
from rljax.pipeline.assemble.learner import frozen_base
from rljax.sampler.adapted import Below
from rljax.sampler.engine import EmbeddedEngine
from rljax.trajectory import Group, TaskId, Trajectory
from rljax.weights.publisher import OrbaxPublisher
from sidecar.protocol import WeightUpdate

ARCHITECTURE = MODELS["SmolLM2-135M"]
MIB = 2**20
PROMPT, RESPONSE = 16, 8


def groups() -> list[Group]:
    """Returns 4 groups of 4 random trajectories."""
    rng, length = np.random.default_rng(0), PROMPT + RESPONSE
    mask = np.arange(length) >= PROMPT

    def one() -> Trajectory:
        return Trajectory(
            token_ids=rng.integers(0, ARCHITECTURE.vocab_size, length).astype(np.int32),
            loss_mask=mask,
            logprobs=np.where(mask, -10.8, 0).astype(np.float32),
            versions=np.where(mask, 0, -1).astype(np.int32),
            turns=np.array([[PROMPT, length]], np.int32),
            reward=float(rng.random()),
        )

    return [Group(TaskId("random", 0, index), tuple(one() for _ in range(4))) for index in range(4)]


@contextlib.contextmanager
def engine_of(learner: Learner, model: Path) -> Iterator[None]:
    """Starts an engine and gives it a version of the learner."""
    with asyncio.Runner() as runner, tempfile.TemporaryDirectory() as weights:
        path = OrbaxPublisher(Path(weights)).publish(
            1, 1, learner.export("fp32"), model="", dtype="fp32", adapter=learner.adapter_info
        )

        async def start() -> EmbeddedEngine:
            engine = EmbeddedEngine(
                ARCHITECTURE,
                slots=4,
                max_length=64,
                decode_steps=4,
                dtype=np.float32,
                below=Below(model, frozen_base(learner)),
            )
            await engine.update_weights(WeightUpdate(1, 1, str(path)))
            return engine

        engine = runner.run(start())
        yield
        runner.run(engine.close())


def measure(model: Path, rank: int | None, with_engine: bool) -> None:
    """Prints the MiB kept and at the peak of this process."""
    settings = ModelConfig(max_prompt_tokens=PROMPT, max_response_tokens=RESPONSE, lora=LoraConfig(rank=rank))
    config = Config(
        mode="evaluate",
        rollout_batch_size=16,
        group_size=4,
        model=settings,
        learner=LearnerConfig(rows_per_microbatch=2),
    )
    learner = Learner(config, ARCHITECTURE, devices=jax.devices()[:1])
    learner.load(stored_tensors(model))
    for _ in range(2):
        learner.train(groups())
    with engine_of(learner, model) if with_engine else contextlib.nullcontext():
        kept = sum(array.nbytes for array in jax.live_arrays())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(kept / MIB, peak / MIB)


def measured(model: Path, rank: int, engine: int) -> list[str]:
    """Returns what `measure` says in a process of its own."""
    asked = f"--measure {model} {rank} {engine}".split()
    done = subprocess.run(
        [sys.executable, "-m", "bench.adapter_memory", *asked], check=True, stdout=subprocess.PIPE, text=True
    )
    return [f"{float(mib):,.0f}" for mib in done.stdout.split()[-2:]]


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.adapter_memory", description=__doc__)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--measure", nargs=3, metavar=("MODEL", "RANK", "ENGINE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        model, rank, engine = options.measure
        measure(Path(model), int(rank) or None, engine == "1")
        return
    print_machine()
    with tempfile.TemporaryDirectory(prefix="bench-adapter-memory-") as made:
        directory = Path(made) / "model"
        tensors = {key: np.asarray(x) for key, x in to_hf(init_params(ARCHITECTURE, 0), ARCHITECTURE).items()}
        save_directory(directory, ARCHITECTURE, tensors, None, "fp32")
        rows = [
            [f"rank {rank}" if rank else "all weights", "yes" if engine else "no", *measured(directory, rank, engine)]
            for rank in (0, options.rank)
            for engine in (0, 1)
        ]
    print_table("A learner of 135M on a CPU", ["trained", "with an engine", "kept, MiB", "peak, MiB"], rows)


if __name__ == "__main__":
    main()
