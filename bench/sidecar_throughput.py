"""New tokens per second of vLLM behind protocol, scheduler, ledger and Ray, against bare ``LLM.generate``.

    python -m bench.sidecar_throughput [--quick] [--pairs N]

What: SmolLM2-135M, bfloat16; 32 sequences, 4 prompts of 32 random tokens with 8 sequences each; 64 new tokens, none
stops early; sampled at temperature 1 from the whole distribution. On either side one OpenMP thread, vLLM's core in the
process that calls it, eager, the same KV cache, prefix caching.

rljax: the real explorer, group runner, engine pool and ledger (SQLite on disk) in one process, and the engine that
``sidecar.engine=vllm`` and ``launcher=ray`` start, an actor of a Ray cluster. A turn begins when the learner's side
marks the batch before as trained, which lets the explorer claim, and ends when it has leased the next batch whole.

vllm: ``LLM.generate`` on the 32 prompts at once, in a process of its own, with vLLM's default scheduling. The first row
asks it for what training needs and ours always does: a seed for each request, and the log-probability of each token.
The second asks for tokens alone.

Target: 0.95.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.paired import Answer, Pairs, Side, alternate, pair_row, print_machine, print_table
from rljax.config.schema import Config, ModelConfig, RayConfig, SidecarConfig, TasksConfig, TasksetConfig
from rljax.models.smollm2 import smollm2_directory

SEQUENCES, GROUP_SIZE = 32, 8
PROMPT_TOKENS, NEW_TOKENS = 32, 64
TARGET = "0.95"


def prompt(group: int, vocab_size: int) -> np.ndarray:
    """Returns the random tokens of a group, int32 ``[prompt]``; every batch has the same groups."""
    rng = np.random.default_rng(group % (SEQUENCES // GROUP_SIZE))
    return rng.integers(0, vocab_size, PROMPT_TOKENS).astype(np.int32)


def config_of(run_dir: str) -> Config:
    """Returns the config that the engine is started with."""
    return Config(
        run_dir=run_dir,
        launcher="ray",
        async_generation_ratio=0.0,
        rollout_batch_size=SEQUENCES,
        group_size=GROUP_SIZE,
        sync_interval=10**6,
        max_steps=10**6,
        model=ModelConfig(
            path="smollm2-135m", dtype="bf16", max_prompt_tokens=PROMPT_TOKENS, max_response_tokens=NEW_TOKENS
        ),
        sidecar=SidecarConfig(engine="vllm", max_concurrency=SEQUENCES, cpu_threads=1),
        ray=RayConfig(address="local"),
        tasks=TasksConfig(train={"unused": TasksetConfig(source="add_numbers")}),
    )


def start_rljax() -> Answer:
    """Starts rljax's side in its process, with a Ray cluster that ends when the process ends."""
    os.environ["OMP_NUM_THREADS"] = "1"
    parts = contextlib.ExitStack()
    run_dir = parts.enter_context(tempfile.TemporaryDirectory(prefix="bench-throughput-"))
    next_batch = parts.enter_context(exploring(config_of(run_dir)))

    def answer(request: dict[str, Any]) -> float:
        if request.get("close"):
            parts.close()
            return 0.0
        return next_batch()

    return answer


@contextlib.contextmanager
def exploring(config: Config) -> Iterator[Any]:
    """Runs an explorer in a thread; yields the function that has it make a batch, and
    returns the seconds that it took.
    """
    from rljax.launch.engine_launchers import ENGINE_LAUNCHERS
    from rljax.ledger import leases
    from rljax.ledger.async_database import AsyncDatabase
    from rljax.observe.trace import NullTrace
    from rljax.pipeline.assemble.engines import make_pool
    from rljax.pipeline.assemble.run import open_ledger, open_model
    from rljax.pipeline.explore import QUEUED
    from rljax.pipeline.run_dir import RunDir
    from rljax.pipeline.simulate.schedule import explorer_of
    from rljax.rollout.engine_events import FaultLog

    run = RunDir.create(config)
    model = open_model(config, run)
    with (
        contextlib.closing(open_ledger(config, run)) as db,
        contextlib.closing(ENGINE_LAUNCHERS["ray"](config)) as engine_launcher,
    ):
        lineage = announce(db, run, model)
        pool = make_pool(config, run, model, NullTrace(), FaultLog(), engine_launcher)
        workflow = RandomPrompts(model.architecture.vocab_size)
        ledger, capacity = AsyncDatabase(db), int(QUEUED * SEQUENCES)
        explorer = explorer_of(ledger, pool, workflow, group_size=GROUP_SIZE, capacity=capacity)
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=lambda: loop.run_until_complete(explorer.run()), name="explorer")
        thread.start()
        leased: list[int] = []

        def next_batch() -> float:
            begin = time.perf_counter()
            if leased:
                leases.mark_trained(db, lineage, leased.pop(), publishes=False)
            while True:
                seen = db.notifier.changes
                found = leases.lease(db, lineage)
                if isinstance(found, leases.LeasedBatch):
                    break
                if not thread.is_alive():
                    raise RuntimeError(f"the explorer ended; see {run.root / 'logs'}")
                db.notifier.wait(seen)
            seconds = time.perf_counter() - begin
            made = [int(t.loss_mask.sum()) for group in found.groups for t in group.trajectories]
            assert made == [NEW_TOKENS] * SEQUENCES, made
            leased.append(found.step)
            return seconds

        try:
            yield next_batch
        finally:
            loop.call_soon_threadsafe(explorer.stop)
            thread.join()


def announce(db: Any, run: Any, model: Any) -> int:
    """Publishes the model as version 0, as a learner does that starts; returns its lineage."""
    from rljax.ledger import leases, versions
    from rljax.models.files import load_directory
    from rljax.models.hf_names import to_hf
    from rljax.weights.gathering import DTYPES
    from rljax.weights.publisher import OrbaxPublisher

    lineage = leases.begin_lineage(db, 0)
    architecture, params = load_directory(model.directory)
    tensors = {name: np.asarray(t).astype(DTYPES["bf16"]) for name, t in to_hf(params, architecture).items()}
    path = OrbaxPublisher(run.weights).publish(0, lineage, tensors, model="smollm2-135m", dtype="bf16")
    versions.announce(db, lineage, 0, run.announced_path(path))
    return lineage


class RandomPrompts:
    """Workflow of one request of a fixed length, and a constant reward."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    async def run(self, task: Any, attempt: Any, pool: Any) -> Any:
        from rljax.rollout.workflows.single_turn import assemble
        from sidecar.protocol import GenerateRequest, SamplingParams

        tokens = prompt(task.id.index, self._vocab_size)
        sampling = SamplingParams(max_new_tokens=NEW_TOKENS, seed=attempt.seed(task, 0))
        name = f"{task.id}/{attempt.member}/{attempt.retry}"
        request = GenerateRequest(name, tokens, sampling, min_version=attempt.min_version, affinity=str(task.id))
        completion = await pool.generate(request, attempt.lineage)
        return assemble(tokens, completion, attempt, sampling, float(attempt.member), {})


def start_vllm() -> Answer:
    """Starts vLLM's side in its process."""
    from sidecar.vllm.settings import VllmSettings, environment

    os.environ.update(environment(cpu_threads=1, multiprocessing=False))
    from vllm import LLM
    from vllm import SamplingParams as VllmSampling
    from vllm.inputs import TokensPrompt

    from rljax.models.files import load_architecture
    from rljax.pipeline.assemble.engines import kv_cache_bytes

    directory, config = smollm2_directory(), config_of("unused")
    architecture = load_architecture(directory)
    settings = VllmSettings(
        model=str(directory),
        max_length=config.context,
        slots=SEQUENCES,
        kv_cache_bytes=kv_cache_bytes(config, architecture),
        enforce_eager=True,
        load_format="auto",
    )
    arguments = settings.arguments(on_cpu=True)
    del arguments["worker_extension_cls"], arguments["disable_log_stats"]
    llm = LLM(**arguments)
    tokens = [prompt(i // GROUP_SIZE, architecture.vocab_size).tolist() for i in range(SEQUENCES)]
    prompts = [TokensPrompt(prompt_token_ids=ids) for ids in tokens]
    turn = 0

    def answer(request: dict[str, Any]) -> float:
        nonlocal turn
        turn += 1
        plain: dict[str, Any] = {"max_tokens": NEW_TOKENS, "ignore_eos": True, "detokenize": False}
        recorded: dict[str, Any] = {"logprobs": 0, "flat_logprobs": True} if request["recorded"] else {}
        seeds = [1000 * turn + i if request["recorded"] else None for i in range(SEQUENCES)]
        begin = time.perf_counter()
        params = [VllmSampling(seed=seed, **plain, **recorded) for seed in seeds]
        done = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - begin
        assert all(len(output.outputs[0].token_ids) == NEW_TOKENS for output in done)
        return seconds

    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two pairs, the first row only")
    parser.add_argument("--pairs", type=int, default=7)
    options = parser.parse_args()
    print_machine()
    smollm2_directory(lambda text, fraction: print(f"{text}: {fraction:.0%}", flush=True))
    ours, theirs = Side("rljax", start_rljax), Side("vllm", start_vllm)
    rows = []
    try:
        for recorded in (True,) if options.quick else (True, False):
            timed: Pairs = alternate(ours, theirs, 2 if options.quick else options.pairs, recorded=recorded)
            case = "seeds and log-probabilities on both sides" if recorded else "bare vLLM without them"
            rows.append(pair_row(case, "new tokens/s", SEQUENCES * NEW_TOKENS, timed, TARGET if recorded else ""))
    finally:
        with contextlib.suppress(RuntimeError):
            ours.ask(close=True)
        ours.close()
        theirs.close()
    title = f"{SEQUENCES} sequences of {PROMPT_TOKENS} + {NEW_TOKENS} tokens, SmolLM2-135M, bfloat16"
    print_table(title, ("case", "unit", "rljax", "vllm", "ratio (smallest–largest)", "pairs", "target"), rows)


if __name__ == "__main__":
    main()
