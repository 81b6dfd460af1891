"""Seconds of a push of weights, from the learner's state to an engine that samples from it, and the pause it makes.

    python -m bench.push [--quick] [--pushes N] [--models NAME ...] [--changed SHARE] [--dtype DTYPE]
                         [--policy POLICY | --rank RANK] [--in-place] [--requests N]

What: a learner in this process and a stepped vLLM engine (one OpenMP thread) in an actor of a Ray cluster, as
``launcher=ray`` starts it, bfloat16, with 8 requests of 32 + 400 tokens in flight and the policy ``in_flight``, or
another. Models of random weights: the default tiny one, SmolLM2-135M's shape, and one of 494M (Qwen2.5-0.5B's shape).
Medians. The channels come one after the other, since an engine is given its versions by one of them; the first push of
each is not counted.

deltas: of what has changed alone (`sync_deltas`): before each push ``--changed`` of the values, drawn at random, become
their neighbours in bfloat16. written: MB of numbers. `bench.push_deltas` has other shares, without Ray.
With ``--rank`` the learner has an adapter of that rank, pushed by files, and the engine holds two versions: requests
run on with the one that they began with (``pin``).

learner: until the learner may train on: `Learner.export`, inside jit, and `Publisher.take`. write: that, and the
publisher, which works beside the next step (checksums, and files or Ray's object store); write cpu: processor seconds
of the learner's process meanwhile, all its threads, which another load on the machine changes less. read: the receiver
(and its checksums), while the engine samples. check: names and shapes. stage: weights are loaded beside those in use, a
part between two steps. load: the engine's thread takes them over, and samples nothing meanwhile. together: from the
beginning of the export until `update_weights` has returned.
pause: the largest gap between two tokens of the running requests during the push. They keep no KV of older weights, so
it is a part of the load, or one prefill of all that they have so far, and in place both; "usual gap" is the mean of
those before the push.

On a processor that does not multiply bfloat16 requests take seconds for a token: there ``--dtype fp32`` has the pause,
and ``--requests 0`` the rest in bfloat16: where none runs, vLLM loads in place. With ``--in-place`` it always does, and
has no second set of weights (``sidecar.double_buffer=False``).

Below the table is what a machine takes for as many bytes, at rest: to copy them in memory, and to write them to one
file and sync it. Pages that a virtual machine's host has yet to give it make either several times as long.

Targets: 135M within 1 s together, the pause under 0.3 s.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from bench.paired import print_machine, print_table
from rljax.config.model import LoraConfig
from rljax.config.schema import Config, ModelConfig, RayConfig, SidecarConfig, TasksConfig, TasksetConfig
from rljax.learner.learner import Learner
from rljax.models.common.architecture import Architecture
from rljax.models.families.registry import to_config
from rljax.models.files import load_architecture, save_directory, stored_tensors
from rljax.models.hf_names import to_hf
from rljax.models.smollm2 import smollm2_directory
from rljax.models.tiny import tiny_architecture
from rljax.models.transformer import init_params
from rljax.pipeline.assemble.engines import engine_spec
from rljax.pipeline.assemble.run import Model
from rljax.pipeline.plan.estimate import BYTES
from rljax.pipeline.run_dir import RunDir
from rljax.weights.deltas import DeltaPublisher
from rljax.weights.gathering import on_host
from rljax.weights.memory import RayPublisher
from rljax.weights.publisher import OrbaxPublisher, Publisher
from sidecar.garbage import collect_seldom
from sidecar.protocol import Engine, GenerateRequest, SamplingParams, UpdatePolicy, WeightUpdate
from sidecar.vllm.settings import DTYPES

CHANNELS: tuple[str, ...] = ("files", "files, deltas", "memory", "memory, deltas")
SIZES = ("tiny", "135M", "494M")
PROMPT_TOKENS, NEW_TOKENS, REQUESTS = 32, 400, 8
GAPS_AFTER, GAPS_BEFORE = 3, 8
"""Gaps between tokens after an update that still belong to it, and those before it that are as usual."""
LOOK_SECONDS = 0.05
PARTS = ("written", "learner", "write", "write cpu", "read", "check", "stage", "load", "together")
GAPS = ("largest_gap", "usual_gap")
QWEN_500M = Architecture(
    family="qwen2",
    vocab_size=151_936,
    hidden_size=896,
    intermediate_size=4864,
    num_layers=24,
    num_heads=14,
    num_kv_heads=2,
    head_dim=64,
    rope_theta=1e6,
    tie_embeddings=True,
    attention_bias=True,
)


@dataclass(frozen=True)
class Pusher:
    """Pushes versions from a learner to an engine, and times the parts."""

    learner: Learner
    engine: Engine
    publishers: Mapping[str, Publisher]
    vocab_size: int
    changed: float
    policy: UpdatePolicy
    dtype: str
    requests: int
    _requests: list[asyncio.Future[Any]] = field(default_factory=list)

    async def push(self, version: int, channel: str) -> dict[str, float]:
        """Pushes one version with requests in flight; returns its `PARTS`: MB, and seconds."""
        running = [asyncio.ensure_future(self.engine.generate(self._request(version, i))) for i in range(self.requests)]
        self._requests[:] = running
        if version:
            await self._gaps(GAPS_AFTER)
        change(self.learner, self.changed, version)
        await self._gaps(int(version > 0))  # those of the change are not the push's
        usual = {"gaps": 1.0, "gap_seconds": 0.0} | (await self._gaps(GAPS_BEFORE) if version else {})
        begin, cpu, publisher = time.perf_counter(), time.process_time(), self.publishers[channel]
        tensors = publisher.take(self.learner.export(self.dtype))
        size = sum(array.nbytes for array in tensors.values())
        taken = time.perf_counter()
        adapter = self.learner.adapter_info
        path = publisher.publish(version, 1, tensors, model="random", dtype=self.dtype, adapter=adapter)
        written, spent = time.perf_counter(), time.process_time() - cpu
        del tensors
        await self.engine.update_weights(WeightUpdate(version, 1, path, self.policy))
        end = time.perf_counter()
        seen = await self._gaps(GAPS_AFTER, await self._gaps(0))
        await self.engine.abort([f"{version}/{i}" for i in range(self.requests)])
        await asyncio.gather(*running)
        publisher.prune({(version, 1)} if "deltas" in channel else (), 1)
        megabytes = 1e-6 * publisher.metrics.get("publish/bytes", float(size))
        parts = {"learner": taken - begin, "write": written - begin, "write cpu": spent, "together": end - begin}
        return {**seen, **parts, "written": megabytes, "usual_gap": usual["gap_seconds"] / usual["gaps"]}

    async def _gaps(self, count: int, before: Mapping[str, float] = MappingProxyType({})) -> dict[str, float]:
        """Returns the times recorded by the engine's `Watch` since the last look, and those before, once so many more
        gaps between tokens have ended.
        """
        total, ended = dict(before), before.get("gaps", 0.0) + count
        while True:
            for name, value in (await self.engine.status()).details.items():
                known = total.get(name, 0.0)
                total[name] = known + value if name.startswith("gap") else max(known, value)
            if total.get("gaps", 0.0) >= ended or not self._requests:
                return total
            if all(request.done() for request in self._requests):
                raise RuntimeError("the requests ended before the push did: NEW_TOKENS is too small for this machine")
            await asyncio.sleep(LOOK_SECONDS)

    def _request(self, version: int, index: int) -> GenerateRequest:
        tokens = np.random.default_rng(index).integers(0, self.vocab_size, PROMPT_TOKENS).astype(np.int32)
        seed = 1000 * version + index
        return GenerateRequest(f"{version}/{index}", tokens, SamplingParams(max_new_tokens=NEW_TOKENS, seed=seed))


@functools.partial(jax.jit, donate_argnums=0)
def changed(params: Any, share: float, seed: int) -> Any:
    """Returns parameters of which a share, drawn at random, are the numbers next to them in bfloat16."""
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    made = []
    for leaf, key in zip(leaves, keys, strict=True):
        bits = jax.lax.bitcast_convert_type(leaf.astype(jax.numpy.bfloat16), jax.numpy.uint16)
        next_one = jax.lax.bitcast_convert_type(bits ^ 1, jax.numpy.bfloat16).astype(leaf.dtype)
        made.append(jax.numpy.where(jax.random.bernoulli(key, share, leaf.shape), next_one, leaf))
    return jax.tree.unflatten(tree, made)


def change(learner: Learner, share: float, seed: int) -> None:
    """Has a learner's parameters change, as `changed`."""
    learner.state = replace(learner.state, params=jax.block_until_ready(changed(learner.state.params, share, seed)))


def at_rest(tensors: Mapping[str, Any], file: Path) -> tuple[float, float]:
    """Returns the seconds that copying tensors in memory takes, and writing them to a file with its sync."""
    begin = time.perf_counter()
    copies = [np.array(tensor) for tensor in tensors.values()]
    copied = time.perf_counter()
    del copies
    again = time.perf_counter()
    with file.open("wb") as out:
        for tensor in tensors.values():
            out.write(np.ascontiguousarray(tensor).view(np.uint8).data)
        out.flush()
        os.fsync(out.fileno())
    written = time.perf_counter()
    file.unlink()
    return copied - begin, written - again


def config_of(
    run_dir: Path, policy: str = "in_flight", rank: int | None = None, dtype: str = "bf16", in_place: bool = False
) -> Config:
    """Returns the config of learner and engine; the model comes beside it."""
    lora = LoraConfig(rank=rank)
    return Config(
        run_dir=str(run_dir),
        launcher="ray",
        model=ModelConfig(dtype=dtype, max_prompt_tokens=PROMPT_TOKENS, max_response_tokens=NEW_TOKENS, lora=lora),
        sidecar=SidecarConfig(
            engine="vllm",
            max_concurrency=REQUESTS,
            cpu_threads=1,
            update_policy=policy,
            double_buffer=not in_place,
        ),
        ray=RayConfig(address="local"),
        tasks=TasksConfig(train={"unused": TasksetConfig(source="add_numbers")}),
    )


def random_learner(config: Config, architecture: Architecture, directory: Path) -> Learner:
    """Makes a learner that will not train: without Adam's moments, which a push does not touch. The base of an adapter
    is saved to a directory.
    """
    params = jax.jit(init_params, static_argnums=0)(architecture, 0)
    if config.model.lora.rank:
        tensors = {name: np.asarray(array) for name, array in to_hf(params, architecture).items()}
        save_directory(directory, architecture, tensors, None, "bf16")
        learner = Learner(config, architecture)
        learner.load(stored_tensors(directory))
    else:
        learner = Learner(config, architecture, params)
    learner.state = replace(learner.state, opt_state=None)
    return learner


async def measure(
    config: Config,
    engine_launcher: Any,
    architecture: Architecture,
    pushes: int,
    share: float,
    requests: int,
) -> tuple[dict[str, dict[str, float]], list[tuple[float, float]]]:
    """Returns the medians of the parts of a push, by channel, and what `at_rest` returned after the pushes of each."""
    run = RunDir.create(config)
    directory = run.root / "model"
    learner = random_learner(config, architecture, directory)
    if not directory.exists():
        directory.mkdir()
        (directory / "config.json").write_text(
            json.dumps(to_config(architecture) | {"dtype": DTYPES[config.engine_dtype]})
        )
    spec = engine_spec(config, run, Model(directory, architecture, None, ()), 0, engine_launcher)
    engine = await engine_launcher.start(replace(spec, factory="bench.watched_vllm:open_watched"))
    publishers: dict[str, Publisher] = {
        "files": OrbaxPublisher(run.weights / "whole"),
        "files, deltas": DeltaPublisher(run.weights / "deltas", pushes),
        "memory": RayPublisher(run.weights / "memory"),
        "memory, deltas": RayPublisher(run.weights / "memory", pushes),
    }
    channels = CHANNELS[:1] if config.model.lora.rank else CHANNELS
    if config.engine_dtype == "fp32":  # of which nearly all changes
        channels = tuple(name for name in channels if "deltas" not in name)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in channels}
    rest: list[tuple[float, float]] = []
    try:
        policy = UpdatePolicy(config.sidecar.update_policy)
        pusher = Pusher(
            learner, engine, publishers, architecture.vocab_size, share, policy, config.engine_dtype, requests
        )
        for number, channel in enumerate(channels):
            for turn in range(pushes + 1):
                seconds = await pusher.push(number * (pushes + 1) + turn, channel)
                if turn:
                    found[channel].append(seconds)
            rest.append(at_rest(on_host(learner.export(config.engine_dtype)), run.root / "plain"))
    finally:
        await engine.close()
        for publisher in publishers.values():
            publisher.close()
    medians = {
        name: {part: statistics.median(s[part] for s in all_) for part in (*PARTS, *(GAPS if requests else ()))}
        for name, all_ in found.items()
    }
    return medians, rest


def show(
    found: Mapping[str, Mapping[str, Mapping[str, float]]],
    rest: Mapping[str, Sequence[tuple[float, float]]],
    title: str,
    megabytes: Mapping[str, float],
) -> None:
    """Prints a row for each model and channel; the last column is what each gigabyte more
    than the model before costs.
    """
    rows: list[list[object]] = []
    smaller = ""
    for name, channels in found.items():
        for channel, seconds in channels.items():
            more = ""
            if smaller:
                longer = seconds["together"] - found[smaller][channel]["together"]
                more = f"{1e3 * longer / (megabytes[name] - megabytes[smaller]):.2f}"
            parts = [seconds.get(part, "") for part in (*PARTS, *GAPS)]
            rows.append([name, channel, megabytes[name], *parts, more])
        smaller = name
    columns = ("model", "channel", "MB", *PARTS, "pause", "usual gap", "s per GB more")
    print_table(title, columns, rows)
    for name, at_rests in rest.items():
        copied, file = (
            f"{statistics.median(each):.3f} s (at most {max(each):.3f})" for each in zip(*at_rests, strict=True)
        )
        print(f"{name}, as many bytes at rest: copied in memory {copied}, written to one file and synced {file}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two pushes each, without the 494M model")
    parser.add_argument("--pushes", type=int, default=7)
    parser.add_argument("--models", nargs="+", metavar="NAME", default=SIZES, choices=SIZES, help=", ".join(SIZES))
    parser.add_argument("--changed", type=float, default=0.01, metavar="SHARE", help="of the values, before each push")
    parser.add_argument("--policy", default="in_flight", choices=("in_flight", "keep_kv"), help="requests at an update")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "fp32"), help="fp32: without deltas")
    parser.add_argument("--in-place", action="store_true", help="of vLLM's weights, not beside those in use")
    counts = range(REQUESTS + 1)
    parser.add_argument("--requests", type=int, default=REQUESTS, choices=counts, metavar="N", help="0 to 8, in flight")
    parser.add_argument("--rank", type=int, help="of an adapter, of which versions are pinned")
    options = parser.parse_args()
    if options.rank and (options.in_place or options.dtype != "bf16"):
        parser.error("--rank: adapters are put beside the weights, in bfloat16; leave --in-place and --dtype out")
    if not options.requests and (options.in_place or options.policy == "keep_kv"):
        parser.error(
            "--requests 0: without requests all is in place and no KV is kept; leave --in-place and --policy out"
        )
    print_machine()
    collect_seldom()  # as a run has it
    from rljax.launch.engine_launchers import ENGINE_LAUNCHERS

    models = {
        "tiny": tiny_architecture(ModelConfig()),
        "135M": load_architecture(smollm2_directory()),
        "494M": QWEN_500M,
    }
    models = {name: models[name] for name in (SIZES[:-1] if options.quick else options.models)}
    found, rest = {}, {}
    with contextlib.ExitStack() as parts:
        root = parts.enter_context(tempfile.TemporaryDirectory(prefix="bench-push-"))
        engine_launcher = parts.enter_context(contextlib.closing(ENGINE_LAUNCHERS["ray"](config_of(Path(root)))))
        for name, architecture in models.items():
            policy = "pin" if options.rank else options.policy
            config = config_of(Path(root) / name, policy, options.rank, options.dtype, options.in_place)
            pushes = 2 if options.quick else options.pushes
            found[name], rest[name] = asyncio.run(
                measure(config, engine_launcher, architecture, pushes, options.changed, options.requests)
            )
            jax.clear_caches()
    width = 1e-6 * BYTES[options.dtype]
    title = f"a push in {options.dtype}, seconds; {options.requests} requests in flight"
    show(found, rest, title, {name: width * parameters(architecture) for name, architecture in models.items()})


def parameters(architecture: Architecture) -> int:
    """Counts the parameters of a model."""
    shapes = jax.eval_shape(lambda: init_params(architecture, 0))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


if __name__ == "__main__":
    main()
