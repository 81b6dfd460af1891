"""The figures that a simulated run is made of: given by ``plan.*``, or measured in a run."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rljax.config.schema import Config
from rljax.config.sizes import rows_per_trajectory, sampled_parts
from rljax.config.validate_plan import engine_speeds
from rljax.pipeline.simulate.engine import Rate
from rljax.pipeline.simulate.workload import Draw, constant, lognormal, normal

Speeds = tuple[tuple[float, float], ...]
"""Pairs of requests that an engine runs, rising, and what it does in a second then: tokens that it samples, and
the cost of each prompt in tokens.
"""


Unevenness = tuple[tuple[float, float], ...]
"""Times of the mean that the learner, and the engines, needed for the same work in each of several steps."""
EVEN = ((1.0, 1.0),)


@dataclass(frozen=True)
class Figures:
    """Times and lengths of a run; seconds and tokens.

    Attributes:
        learner_speed: tokens, those of prompts too, that the learner trains in a second.
        learner_devices: on so many devices.
        engine_speeds: of one engine.
        prompt_tokens: tokens of an attempt that are trained with it and not sampled.
        prompt_cost: tokens that a request could sample in the time of its prompt.
        reply_tokens: the mean length of a reply.
        replies: draws the length of one.
        turns: draws the replies of an attempt.
        environment_seconds: draws the seconds behind a reply.
        publish_seconds: of the learner for a version.
        load_seconds, read_seconds: in which an engine stands still for a version, and before it reads it and samples.
        announce_seconds: from there until it is announced, beside the learner's next step.
        between_seconds: of the learner in a step for what is neither training nor publishing.
        explorer_seconds: of the explorer's event loop for a reply; other attempts wait meanwhile.
        ledger_seconds: of the explorer's ledger for a group; other groups wait meanwhile.
        unevenness: by how much longer than that steps of the run were trained, and engines sampled beside them.
        filtered: share of groups that are filtered.
        taken: what nobody gave and is taken to be so, for the reader.
    """

    learner_speed: float
    engine_speeds: Speeds
    prompt_tokens: float
    reply_tokens: float
    replies: Draw
    turns: Draw
    environment_seconds: Draw
    publish_seconds: float
    load_seconds: float
    learner_devices: int
    announce_seconds: float = 0.0
    prompt_cost: float = 0.0
    read_seconds: float = 0.0
    between_seconds: float = 0.0
    explorer_seconds: float = 0.0
    ledger_seconds: float = 0.0
    unevenness: Unevenness = EVEN
    filtered: float = 0.0
    taken: Sequence[str] = ()


def given_figures(config: Config) -> Figures | None:
    """Returns the figures of ``plan.*``; None where there are none."""
    plan = config.plan
    if plan.learner_tokens_per_second is None or plan.engine_tokens_per_second is None:
        return None
    prompt, response = sampled_parts(config)
    most, rows = turns_at_most(config), rows_per_trajectory(config)
    reply = response if rows > 1 else response / most  # of a row, or of all turns in one
    empty = Figures(
        plan.learner_tokens_per_second,
        (),
        float(prompt * rows),
        reply,
        constant(reply),
        constant(most),
        constant(0.0),
        0.0,
        0.0,
        config.learner.mesh.size,
    )
    guesses = {
        "response_tokens": f"replies of {empty.reply_tokens:g} tokens",
        "prompt_tokens": f"{empty.prompt_tokens:g} tokens of an attempt that are not sampled",
        "turns": f"{most} replies in an attempt" if most > 1 else "",
        "environment_seconds": "environments and rewards in no time",
        "publish_seconds": "versions published in no time",
        "load_seconds": "and loaded in none",
    }
    taken = [f"{said} (plan.{name})" for name, said in guesses.items() if said and getattr(plan, name) is None]
    return replace(with_given(config, empty), taken=tuple(taken))


def turns_at_most(config: Config) -> int:
    """Returns the most replies of an attempt."""
    tags = config.rollout.train_env_manager.tags
    return max((config.custom_envs[tag].turn_limit for tag in tags), default=1)


def with_given(config: Config, figures: Figures) -> Figures:
    """Returns the figures with those of ``plan.*`` in their place."""
    plan, found = config.plan, figures
    longest = sampled_parts(config)[1]
    if plan.learner_tokens_per_second is not None:
        size = config.learner.mesh.size
        found = replace(found, learner_speed=plan.learner_tokens_per_second, learner_devices=size)
    if plan.engine_tokens_per_second is not None:
        speeds = engine_speeds(plan.engine_tokens_per_second, config.sidecar.max_concurrency)
        found = replace(found, engine_speeds=speeds, prompt_cost=0.0)  # of what is given it is part
    if plan.prompt_tokens is not None:
        found = replace(found, prompt_tokens=plan.prompt_tokens)
    if plan.response_tokens is not None:
        mean = min(plan.response_tokens, float(longest))
        found = replace(found, reply_tokens=mean, replies=lognormal(mean, plan.response_tokens_std, longest))
    if plan.turns is not None:
        found = replace(found, turns=between(plan.turns))
    if plan.environment_seconds is not None:
        seconds = normal(plan.environment_seconds, plan.environment_seconds_std)
        found = replace(found, environment_seconds=seconds)
    if plan.publish_seconds is not None:
        beside = config.sync_overlap and not config.has_hosts
        own, later = (0.0, plan.publish_seconds) if beside else (plan.publish_seconds, 0.0)
        found = replace(found, publish_seconds=own, announce_seconds=later)
    if plan.load_seconds is not None:
        found = replace(found, load_seconds=plan.load_seconds, read_seconds=0.0)
    return found


def between(mean: float) -> Draw:
    """Returns what draws one of the two whole numbers beside ``mean``, so that this is the mean."""
    low = math.floor(mean)
    return lambda rng: low + (rng.random() < mean - low)


def uneven(unevenness: Unevenness, count: int, rng: random.Random) -> list[tuple[float, float]]:
    """Returns those of ``count`` steps, in any order, that stand for all: evenly spaced by the learner's, with means of
    1 again.
    """
    ordered = sorted(unevenness)
    chosen = np.array([ordered[int((place + 0.5) * len(ordered) / count)] for place in range(count)])
    pairs: list[tuple[float, float]] = [(float(a), float(b)) for a, b in chosen / chosen.mean(0)]
    rng.shuffle(pairs)
    return pairs


def rate_of(speeds: Speeds, tokens: float = 1.0) -> Rate:
    """Returns the speed of an engine by the requests that it runs, in units of so many ``tokens`` a second.

    Between two measurements the seconds of a decoding step are on a line. Fewer requests than the first take the same
    step; more than the last share its speed.
    """
    counts = np.array([count for count, _ in speeds], np.float64)
    seconds = np.array([count / speed for count, speed in speeds], np.float64)
    last, fastest = speeds[-1]
    known: dict[int, float] = {}

    def rate(running: int) -> float:
        if running not in known:
            step = float(np.interp(running, counts, seconds))
            known[running] = (fastest if running >= last else running / step) / tokens
        return known[running]

    return rate
