"""Seconds of a push of an adapter to the embedded engine, against one of all weights.

    python -m bench.push_adapter [--rank 16] [--pushes 7]

What: a learner of SmolLM2-135M's shape with random weights, bfloat16, in this process, versions as files, an embedded
engine in this process. write: `Learner.export` and the publisher. load: the receiver with its checksums, and the
engine's placing. Medians; the first push of each is not counted.

Target: an adapter of rank 16 well under 0.1 s.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from bench.accelerator.shapes import MODELS
from bench.paired import print_machine, print_table
from rljax.config.model import LoraConfig
from rljax.config.schema import Config, ModelConfig
from rljax.learner.learner import Learner
from rljax.models.files import save_directory, stored_tensors
from rljax.models.hf_names import to_hf
from rljax.models.transformer import init_params
from rljax.sampler.adapted import Below
from rljax.sampler.engine import EmbeddedEngine
from rljax.weights.publisher import OrbaxPublisher
from sidecar.protocol import WeightUpdate

ARCHITECTURE = MODELS["SmolLM2-135M"]


def learner_of(directory: Path, lora: LoraConfig) -> Learner:
    """Returns a learner that begins with the model in a directory."""
    config = Config(mode="evaluate", model=ModelConfig(dtype="bf16", lora=lora))
    learner = Learner(config, ARCHITECTURE, devices=jax.devices()[:1])
    learner.load(stored_tensors(directory))
    return learner


def megabytes(directory: Path) -> float:
    """Returns the size of all files in a directory."""
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file()) / 1e6


async def pushes(learner: Learner, directory: Path, weights: Path, number: int) -> list[tuple[float, float, float]]:
    """Returns the seconds of writing and loading of each push, and its MB."""
    engine = EmbeddedEngine(
        ARCHITECTURE, slots=1, max_length=64, decode_steps=4, dtype=jax.numpy.bfloat16, below=Below(directory)
    )
    publisher, found = OrbaxPublisher(weights), []
    for version in range(number + 1):
        began = time.perf_counter()
        what = {"model": "", "dtype": "bf16"}
        path = publisher.publish(version, 1, learner.export("bf16"), adapter=learner.adapter_info, **what)
        written = time.perf_counter()
        await engine.update_weights(WeightUpdate(version, 1, path))
        loaded = time.perf_counter()
        found.append((written - began, loaded - written, megabytes(Path(path))))
    await engine.close()
    return found[1:]


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.push_adapter", description=__doc__)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--pushes", type=int, default=7)
    options = parser.parse_args()
    print_machine()
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-push-adapter-") as name:
        directory = Path(name) / "model"
        tensors = {key: np.asarray(x) for key, x in to_hf(init_params(ARCHITECTURE, 0), ARCHITECTURE).items()}
        save_directory(directory, ARCHITECTURE, tensors, None, "bf16")
        for what, lora in (("adapter", LoraConfig(rank=options.rank)), ("all weights", LoraConfig())):
            learner = learner_of(directory, lora)
            found = asyncio.run(pushes(learner, directory, Path(name) / what, options.pushes))
            write, load, size = (statistics.median(column) for column in zip(*found, strict=True))
            rows.append([what, f"{size:.1f}", f"{write:.3f}", f"{load:.3f}", f"{write + load:.3f}"])
            del learner
    print_table("A push to the embedded engine", ["version", "MB", "write, s", "load, s", "together, s"], rows)


if __name__ == "__main__":
    main()
