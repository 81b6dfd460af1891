"""Resident memory of the host over time: loading, resuming, evaluating and publishing a random model.

    python -m bench.host_memory [--quick] [--devices N] [--pushes N] [--parts NAME ...]

What: a model of random weights with Qwen2.5-0.5B's shape (``--quick``: 100M) is written once into a temporary
directory, in bfloat16, and a checkpoint of its training state. Each part then runs in a process of its own, on N
virtual CPU devices that cut the model over ``fsdp``; what is "on a device" is memory of the host here as well. This
process reads the other's resident memory every few milliseconds, with psutil: *before* the part begins, the *peak*
within it, and what is *settled* at its end; *beyond* is the peak over the larger of the two. The last column is the way
there, in ten equal steps of time.

masters: a fresh learner without moments. load: with them. resume: the same from the checkpoint. save: a checkpoint of
it, until it is written. evaluate: the checkpoint's weights, published for engines in float32. initial: the model's own,
likewise. files, memory: a push from a learner without moments in bfloat16; the first compiles, those that follow
(``--pushes``) are measured, each of which replaces the one before. A version in memory stays.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from bench.paired import print_machine, print_table

PARTS = ("masters", "load", "resume", "save", "evaluate", "initial", "files", "memory")
STEP = 1
"""Batches that the checkpoint has seen."""
SAMPLE_SECONDS = 0.003
POINTS = 10
MB = 1e6


@dataclass
class Watched:
    """Resident bytes of one process, sample by sample."""

    process: psutil.Process
    samples: list[tuple[float, int]] = field(default_factory=list)
    begin: float = 0.0
    end: float = 0.0

    def watch(self, pipe: Connection) -> None:
        """Samples until the part has ended; `pipe` brings the times at which it begins and ends."""
        while True:
            self.samples.append((time.time(), self.process.memory_info().rss))
            if pipe.poll(SAMPLE_SECONDS):
                what, at = pipe.recv()
                setattr(self, what, at)
                if what == "end":
                    self.samples.append((time.time(), self.process.memory_info().rss))
                    return

    def row(self, name: str) -> list[object]:
        """Returns the row of the table."""
        during = [bytes_ for at, bytes_ in self.samples if self.begin <= at <= self.end] or [self.samples[-1][1]]
        before, settled, peak = during[0], self.samples[-1][1], max(during)
        way = [during[round(i * (len(during) - 1) / (POINTS - 1))] for i in range(POINTS)]
        return [
            name,
            self.end - self.begin,
            *(f"{x / MB:.0f}" for x in (before, peak, settled, peak - max(before, settled))),
            " ".join(f"{x / 1e9:.1f}" for x in way),
        ]


def architecture_of(quick: bool) -> Any:
    """Returns the shape of the model."""
    from bench.push import QWEN_500M

    if not quick:
        return QWEN_500M
    return replace(
        QWEN_500M,
        vocab_size=32_000,
        hidden_size=640,
        intermediate_size=2560,
        num_layers=12,
        num_heads=10,
        num_kv_heads=2,
    )


def config_of(root: Path, devices: int) -> Any:
    """Returns the learner's config."""
    from rljax.config.schema import Config, LearnerConfig, MeshConfig, ModelConfig

    return Config(
        mode="evaluate",
        run_dir=str(root / "run"),
        model=ModelConfig(path=str(root / "model"), dtype="bf16"),
        learner=LearnerConfig(mesh=MeshConfig(fsdp=devices)),
    )


def prepare(root: Path, devices: int, quick: bool) -> None:
    """Writes model and checkpoint."""
    import jax
    import ml_dtypes
    import numpy as np

    from rljax.models.files import save_directory
    from rljax.models.hf_names import tensor_shapes
    from rljax.pipeline.assemble.learner import build_learner

    architecture = architecture_of(quick)
    rng = np.random.default_rng(0)
    tensors = {
        name: (0.02 * rng.standard_normal(shape, np.float32)).astype(ml_dtypes.bfloat16)
        for name, shape in tensor_shapes(architecture).items()
    }
    save_directory(root / "model", architecture, tensors, None, "bf16")
    tensors.clear()
    config, model, checkpoints = parts_of(root, devices)
    learner = build_learner(config, model, checkpoints, 0)
    jax.block_until_ready(learner.state)
    checkpoints.save(STEP, learner.state, {"lineage": 0})
    checkpoints.wait()


def parts_of(root: Path, devices: int) -> Any:
    """Returns config, model and checkpoints."""
    from rljax.learner.checkpoints import Checkpoints
    from rljax.models.files import load_architecture
    from rljax.pipeline.assemble.run import Model

    directory = root / "model"
    model = Model(directory, load_architecture(directory), None, ())
    return config_of(root, devices), model, Checkpoints(root / "run" / "checkpoints", 1)


def part(name: str, root: Path, devices: int, pushes: int) -> Iterator[Any]:
    """Prepares a part up to its first yield and does it up to the second, which brings what stays."""
    import jax
    import optax

    from rljax.learner import trainable
    from rljax.learner.learner import Learner
    from rljax.pipeline.assemble.learner import build_learner
    from rljax.pipeline.evaluate import weights_of
    from rljax.weights.memory import MemoryPublisher
    from rljax.weights.publisher import OrbaxPublisher, Publisher

    config, model, checkpoints = parts_of(root, devices)
    jax.block_until_ready(jax.numpy.zeros(1))
    if name in ("masters", "files", "memory"):
        trainable.make_optimizer = lambda *_: optax.set_to_zero()
    if name in ("masters", "load", "resume"):
        yield None
        learner: Learner = build_learner(config, model, checkpoints, STEP if name == "resume" else 0)
        yield jax.block_until_ready(learner.state)
    elif name == "save":
        learner = build_learner(config, model, checkpoints, STEP)
        jax.block_until_ready(learner.state)
        yield None
        checkpoints.save(STEP + 1, learner.state, {"lineage": 0})
        checkpoints.wait()
        yield learner.state
    elif name in ("evaluate", "initial"):
        publisher = OrbaxPublisher(root / name)
        run = type("Run", (), {"checkpoints": checkpoints.directory})
        yield None
        tensors = weights_of(config, run, model, STEP if name == "evaluate" else 0)  # type: ignore[arg-type]
        yield publisher.publish(0, 0, tensors, model="", dtype="fp32")
    else:
        channel: Publisher = OrbaxPublisher(root / name) if name == "files" else MemoryPublisher(root / name)
        learner = build_learner(config, model, checkpoints, 0)
        channel.publish(0, 0, learner.export("bf16"), model="", dtype="bf16")
        channel.delete(0, 0)
        yield None
        for version in range(1, pushes + 1):
            path = channel.publish(version, 0, learner.export("bf16"), model="", dtype="bf16")
            if version > 1:
                channel.delete(version - 1, 0)
        yield path, channel


def live(pipe: Connection, name: str, root: Path, devices: int, quick: bool, pushes: int) -> None:
    """Runs one part in this process, its only one."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    if name == "prepare":
        prepare(root, devices, quick)
        pipe.send(("end", time.time()))
        return
    steps = part(name, root, devices, pushes)
    next(steps)
    pipe.send(("begin", time.time()))
    kept = next(steps)
    pipe.send(("end", time.time()))
    pipe.poll(None)  # until the last sample is taken
    del kept


def in_its_own_process(name: str, root: Path, devices: int, quick: bool, pushes: int) -> Watched:
    """Runs one part and watches it.

    Raises:
        RuntimeError: it died.
    """
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=live, args=(theirs, name, root, devices, quick, pushes))
    process.start()
    theirs.close()
    watched = Watched(psutil.Process(process.pid))
    try:
        watched.watch(pipe)
    except (EOFError, psutil.NoSuchProcess):
        raise RuntimeError(f"{name}: died; is there enough memory?") from None
    finally:
        pipe.close()
        process.join()
    return watched


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100M parameters")
    parser.add_argument("--devices", type=int, default=4, help="virtual devices that the model is cut over")
    parser.add_argument("--parts", nargs="+", metavar="NAME", default=PARTS, choices=PARTS, help=", ".join(PARTS))
    parser.add_argument("--pushes", type=int, default=1, help="pushes in a row that are measured")
    options = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory(prefix="bench-memory-") as name:
        given = Path(name), options.devices, options.quick, options.pushes
        in_its_own_process("prepare", *given)
        rows = [in_its_own_process(name, *given).row(name) for name in options.parts]
    columns = ("part", "s", "before", "peak", "settled", "beyond", "on the way, GB")
    print_table(f"resident memory, MB, on {options.devices} devices", columns, rows)


if __name__ == "__main__":
    main()
