"""Builds an explorer out of a config, and runs it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping

from rljax.algorithms.registry import chosen_filters
from rljax.config.schema import Config, GeneratingConfig
from rljax.ledger.async_database import AsyncDatabase
from rljax.ledger.database import Database
from rljax.models.common.architecture import Architecture
from rljax.observe.busy import Gathered, TimedSelector
from rljax.observe.trace import NullTrace, Trace
from rljax.pipeline.assemble.engines import make_pool
from rljax.pipeline.assemble.run import Model, parity_bound, probe_routes, probe_tokens
from rljax.pipeline.assemble.tasksets import Tasksets
from rljax.pipeline.assemble.workflows import Workflows
from rljax.pipeline.run_dir import RunDir
from rljax.rollout.deadlines import PausableDeadlines
from rljax.rollout.explorer import Explorer
from rljax.rollout.group_runner import BAD_ROWS_IN_A_ROW, GroupRunner
from rljax.rollout.parity import EngineChecks, Probe
from rljax.tasks.task import Taskset
from sidecar.hosting.spec import EngineLauncher

log = logging.getLogger(__name__)

QUEUED = 1.25
"""Attempts in flight for each that the engines can run at once: some are being scored, and some wait at the engines so
that none of these waits for a claim. What an explorer does not claim is there for those that join.
"""


def make_explorer(
    config: Config,
    run: RunDir,
    db: Database,
    model: Model,
    tasksets: Tasksets,
    workflows: Workflows,
    trace: Trace | NullTrace,
    engine_launcher: EngineLauncher,
) -> Explorer:
    """Builds the explorer of a run, between its ledger and its engines.

    Raises:
        ConfigError, BadRow: a taskset, reward or filter that does not work.
    """
    name = config.explorer.name
    _warn_of_truncation(config.sidecar.generating_args)
    calls = Gathered(lambda begin, end, used: trace.span(f"{name} · ledger", "transactions", begin, end, cpu=used))
    ledger = AsyncDatabase(db, noted=calls.add)
    training, held_out = tasksets.training, tasksets.held_out
    checks = EngineChecks(ledger, name, _probe(config, model.architecture))
    pool = make_pool(config, run, model, trace, checks, engine_launcher)
    deadlines = PausableDeadlines()
    runner = GroupRunner(
        ledger,
        name,
        workflows.training,
        pool,
        deadlines,
        group_size=config.group_size,
        redundancy=config.rollout.train_env_manager.group_size_redundancy,
        capacity=capacity(config),
        max_retries=config.rollout.max_retries,
        trajectory_timeout=config.rollout.trajectory_timeout,
        filters=chosen_filters(config.algorithm),
        bad_rows_in_a_row=_bad_rows_in_a_row(config, training),
        trace=trace,
        baseline=workflows.greedy,
    )
    plan = workflows.validation_plan(held_out)

    async def prepare() -> None:
        await workflows.open(checks.fault)
        await workflows.try_rewards(config.explored[0], training)
        await workflows.try_rewards("tasks.validation", held_out)

    return Explorer(
        ledger,
        name,
        pool,
        runner,
        deadlines,
        training,
        {n: t.weight for n, t in training.items()},
        plan,
        checks,
        wait_timeout=config.wait_timeout,
        trace=trace,
        prepare=prepare,
    )


def capacity(config: Config) -> int:
    """Returns how many members an explorer has in flight at most: what its engines can run and some more; of
    environments, which are with an engine only part of their time, as many as the manager says.
    """
    members = config.group_size + config.rollout.train_env_manager.group_size_redundancy
    slots = math.ceil(QUEUED * config.sidecar.num_engines * config.sidecar.max_concurrency / members) * members
    return sum(config.train_groups.values()) * members or slots


def _bad_rows_in_a_row(config: Config, tasksets: Mapping[str, Taskset]) -> int:
    if config.tasks.on_bad_row == "fail":
        return 0
    return min(BAD_ROWS_IN_A_ROW, sum(map(len, tasksets.values())))


def _probe(config: Config, architecture: Architecture) -> Probe:
    return Probe(probe_tokens(config, architecture), parity_bound(config), probe_routes(config, architecture))


def _warn_of_truncation(generating: GeneratingConfig) -> None:
    if generating.top_p < 1 or generating.top_k:
        log.warning(
            "sidecar.generating_args: top_p=%g, top_k=%d: tokens are sampled from a truncated distribution and trained "
            "as if from the whole; policy/ratio_mean shows the mass that is kept (1 is all of it)",
            generating.top_p,
            generating.top_k,
        )


def run_to_end(explorer: Explorer, workflows: Workflows, started: Callable[[asyncio.AbstractEventLoop], None]) -> None:
    """Runs an explorer on an event loop of its own in this thread; ``started`` is handed the loop."""

    async def main() -> None:
        started(asyncio.get_running_loop())
        try:
            await explorer.run()
        finally:
            await workflows.close()

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(TimedSelector(explorer.ran))) as runner:
        runner.run(main())
