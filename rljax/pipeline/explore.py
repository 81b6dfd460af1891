"""Builds an explorer out of a config, and runs it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from rljax.algorithms.registry import filters
from rljax.config import Config, GeneratingConfig
from rljax.ledger import processes
from rljax.ledger.database import Database
from rljax.observe.trace import NullTrace, Trace
from rljax.pipeline.engines import make_pool
from rljax.pipeline.run_dir import RunDir
from rljax.pipeline.setup import Model, parity_bound, probe_tokens
from rljax.rollout.deadlines import PausableDeadlines
from rljax.rollout.explorer import Explorer, Probe, ValidationPlan
from rljax.rollout.groups import GroupRunner
from rljax.rollout.workflow import SingleTurn
from rljax.tasks.rewards.registry import resolve_reward
from rljax.tasks.rewards.runner import RewardRunner
from rljax.tasks.tasksets import load_tasksets
from sidecar.hosting import EngineHouse

log = logging.getLogger(__name__)

QUEUED = 1.25
"""Attempts under way for each that the engines can run at once: some are being scored, and some wait at the engines so
that none of these waits for a claim. What an explorer does not claim is there for those that join.
"""


def make_rewards(config: Config) -> RewardRunner:
    """What scores responses, in training and in validation."""
    names = set()
    for section, tasksets in (config.explored, ("tasks.validation", config.tasks.validation)):
        for taskset, asked in tasksets.items():
            for name in asked.rewards:
                resolve_reward(name, f"{section}.{taskset}.rewards")
                names.add(name)
    return RewardRunner(names, timeout=config.rollout.reward_timeout, workers=config.rollout.reward_workers)


def make_workflow(config: Config, model: Model, rewards: RewardRunner, generating: GeneratingConfig) -> SingleTurn:
    """One question, one answer."""
    return SingleTurn(
        model.tokenizer,
        rewards,
        generating,
        max_prompt_tokens=config.model.max_prompt_tokens,
        max_response_tokens=config.model.max_response_tokens,
        stop_token_ids=model.stop_token_ids,
    )


def make_explorer(
    config: Config,
    run: RunDir,
    db: Database,
    model: Model,
    rewards: RewardRunner,
    trace: Trace | NullTrace,
    house: EngineHouse,
) -> Explorer:
    """Everything between the ledger and the engines.

    Raises:
        ConfigError, BadRow: a taskset, reward or filter that does not work.
    """
    name = config.explorer.name
    _warn_of_truncation(config.sidecar.generating_args)
    seed, bad = config.seed, config.tasks.on_bad_row
    section, explored = config.explored
    tasksets = load_tasksets(explored, seed, bad, role="train", section=section)
    held_out = load_tasksets(config.tasks.validation, seed, bad, role="validation")
    pool = make_pool(config, run, model, trace, lambda kind, message: processes.note(db, name, kind, message), house)
    deadlines = PausableDeadlines()
    runner = GroupRunner(
        db,
        name,
        make_workflow(config, model, rewards, config.sidecar.generating_args),
        pool,
        deadlines,
        group_size=config.group_size,
        capacity=math.ceil(QUEUED * config.sidecar.num_engines * config.sidecar.max_concurrency),
        max_retries=config.rollout.max_retries,
        trajectory_timeout=config.rollout.trajectory_timeout,
        filters=[(f, filters.get(f)) for f in config.algorithm.filters],
        fail_on_bad_row=bad == "fail",
        trace=trace,
    )
    plan = ValidationPlan(
        make_workflow(config, model, rewards, config.sidecar.val_generating_args),
        held_out,
        config.val_batch_size,
        config.rollout.trajectory_timeout,
    )
    return Explorer(
        db,
        name,
        pool,
        runner,
        deadlines,
        tasksets,
        {n: t.weight for n, t in tasksets.items()},
        plan,
        Probe(probe_tokens(config, model.architecture), parity_bound(config)),
        wait_timeout=config.wait_timeout,
        trace=trace,
    )


def _warn_of_truncation(generating: GeneratingConfig) -> None:
    if generating.top_p < 1 or generating.top_k:
        log.warning(
            "sidecar.generating_args: top_p=%g, top_k=%d: tokens are sampled from a truncated distribution and trained "
            "as if from the whole; policy/ratio_mean shows the mass that is kept (1 is all of it)",
            generating.top_p,
            generating.top_k,
        )


def run_to_end(explorer: Explorer, rewards: RewardRunner, started: Callable[[asyncio.AbstractEventLoop], None]) -> None:
    """Runs an explorer on an event loop of its own in this thread; ``started`` is handed the loop."""

    async def main() -> None:
        started(asyncio.get_running_loop())
        try:
            await explorer.run()
        finally:
            rewards.close()

    asyncio.run(main())
