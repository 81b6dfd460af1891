"""Environments alone: number of them on a core, and the cost of each, when engine and learner take no time.

    python -m bench.environments [--quick]

What: the real explorer, ledger (SQLite on disk), dialogue and FrozenLake in real time, episodes of at most ten turns in
groups of eight, with an engine that answers a random move within a few turns of the event loop. ``loop``: environments
beside the explorer; ``process``: 16 to a worker process.

turns/s, episodes/s: of all environments together. CPU ms: of explorer and workers together, for a turn: rendering,
tokenising, the environment, the ledger. KiB: resident memory of explorer and workers beyond what the explorer had
before its first episode, for each environment in flight. share of a core: what so many environments cost with an
engine and environments that take ten seconds for a turn.

Target: the rate does not fall as more are in flight, and thousands fit one core.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import random
import string
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
from transformers import PreTrainedTokenizerFast

from bench.paired import print_machine, print_table
from bench.scheduler import GROUP_SIZE, InstantEngine, learn, run_spec
from rljax.config.environments import built_in
from rljax.config.schema import GeneratingConfig
from rljax.ledger import audit
from rljax.ledger.async_database import AsyncDatabase
from rljax.ledger.database import Database
from rljax.ledger.sqlite import SqliteFile
from rljax.models.tokenizer import load_tokenizer, save_tiny_tokenizer
from rljax.pipeline.simulate.schedule import explorer_of
from rljax.rollout.engine_events import FaultLog
from rljax.rollout.engine_pool import EnginePool
from rljax.rollout.environments.hosts import EnvironmentHost, LoopHost, ProcessHost
from rljax.rollout.workflows.multi_turn import MultiTurn
from rljax.rollout.workflows.tools import Tools
from rljax.tasks.environments import environment_tasksets
from rljax.tasks.rewards import RewardRunner
from sidecar.protocol import Completion, GenerateRequest

TAG, MOVES, TURNS, TURN_SECONDS = "FrozenLake", ("Left", "Down", "Right", "Up"), 10, 10.0
PER_WORKER = 16
CHARACTERS = string.printable[:95] + "\n√"
CASES = (("loop", 64), ("loop", 512), ("loop", 4096), ("process", 64), ("process", 256))
QUICK = (("loop", 64), ("loop", 512), ("process", 64))


class Mover(InstantEngine):
    """Answers a random move, and measures the memory meanwhile."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__()
        self.replies = [np.array(tokenizer(f"<answer>{m}</answer>")["input_ids"], np.int32) for m in MOVES]
        self.turns = 0
        self.most_bytes = 0

    async def generate(self, request: GenerateRequest) -> Completion:
        self.turns += 1
        if self.turns % 2048 == 0:  # before anybody else has a turn
            self.most_bytes = max(self.most_bytes, resident())
        done = await super().generate(request)
        reply = random.Random(request.sampling.seed).choice(self.replies)
        n = len(reply)
        return replace(done, token_ids=reply, logprobs=np.zeros(n, np.float32), versions=np.full(n, done.versions[0]))


def cpu_seconds() -> float:
    """Returns the CPU seconds of this process and its children, those that have ended included."""
    me = psutil.Process()
    times = [me.cpu_times(), *(child.cpu_times() for child in alive(me))]
    return times[0].children_user + times[0].children_system + sum(t.user + t.system for t in times)


def alive(me: psutil.Process) -> Iterator[psutil.Process]:
    """Yields the child processes that have not ended."""
    for child in me.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE:
                yield child


def resident() -> int:
    """Returns the resident bytes of this process and its children."""
    me = psutil.Process()
    return me.memory_info().rss + sum(child.memory_info().rss for child in alive(me))


def run_case(place: str, in_flight: int, episodes: int) -> list[object]:
    """Runs `play` in a directory of its own; for a process of its own, whose memory no other case has grown."""
    with tempfile.TemporaryDirectory(prefix="bench-environments-") as directory:
        return asyncio.run(play(place, in_flight, episodes, Path(directory)))


async def play(place: str, in_flight: int, episodes: int, directory: Path) -> list[object]:
    """Runs one case; returns its row of the table."""
    save_tiny_tokenizer(directory / "tokenizer", CHARACTERS)
    tokenizer = load_tokenizer(directory / "tokenizer")
    environments = {TAG: replace(built_in()[TAG], place=place, max_actions=TURNS)}
    host: EnvironmentHost = LoopHost() if place == "loop" else ProcessHost(PER_WORKER, 60.0, log=directory / "log")
    workflow = MultiTurn(
        Tools(
            tokenizer=tokenizer,
            rewards=RewardRunner([], timeout=1.0, workers=1),
            generating=GeneratingConfig(),
            stop_token_ids=(),
            max_prompt_tokens=4096,
            max_response_tokens=64,
            sequence_length=4096,
            hosts={place: host},
            environments=environments,
        )
    )
    engine = Mover(tokenizer)
    db = Database(SqliteFile(directory / "ledger.db"), run_spec(in_flight, episodes))

    async def start(_: int) -> InstantEngine:
        return engine

    ledger = AsyncDatabase(db)
    pool = EnginePool(start, 1, directory, FaultLog())
    explorer = explorer_of(
        ledger,
        pool,
        workflow,
        group_size=GROUP_SIZE,
        capacity=in_flight,
        tasksets=environment_tasksets({TAG: in_flight // GROUP_SIZE}, environments, 0, "train"),
    )
    before, begin, cpu = resident(), time.perf_counter(), cpu_seconds()
    async with asyncio.TaskGroup() as group:
        group.create_task(explorer.run())
        group.create_task(learn(ledger))
    seconds, cpu = time.perf_counter() - begin, cpu_seconds() - cpu
    await host.close()
    report = audit.audit(db)
    db.close()
    if not report["balanced"]:
        raise RuntimeError(f"the ledger does not balance: {report['problems']}")
    done, each = report["trained"] * GROUP_SIZE, 1e3 * cpu / engine.turns
    kib = (engine.most_bytes - before) / 1024 / in_flight
    share = in_flight / TURN_SECONDS * each / 1e3
    rates = [engine.turns / seconds, done / seconds]
    return [place, in_flight, engine.most_running, *rates, each, kib, f"{share:.0%}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer episodes, and not the largest")
    options = parser.parse_args()
    print_machine()
    rows = []
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as executor:
        for place, in_flight in QUICK if options.quick else CASES:
            episodes = max(2048 if options.quick else 8192, 2 * in_flight)
            rows.append(executor.submit(run_case, place, in_flight, episodes).result())
            print(rows[-1], flush=True)
    columns = ("place", "in flight", "asked at once", "turns/s", "episodes/s", "CPU ms a turn", "KiB each", "share")
    print_table("FrozenLake in dialogue, engine and learner take no time", columns, rows)


if __name__ == "__main__":
    main()
