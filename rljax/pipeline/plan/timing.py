"""The time that a plan says: seconds a step of the present split and of those beside it, and which to take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rljax.config.schema import Config
from rljax.pipeline.plan.figures import Figures, given_figures, with_given
from rljax.pipeline.plan.measured import Measured, measured
from rljax.pipeline.plan.placement import Placement
from rljax.pipeline.plan.splits import Split, Timing, counted_steps, neighbours, one_more_engine, timed

NEAR = 0.02
"""Share of the time by which splits are as good as each other: then the one with the fresher tokens is."""
FEWEST = 4
"""Simulated steps from which a split is recommended. Where steps are uneven, chance does more than `NEAR` to a mean of
more than these.
"""
PRESENT = "as configured"
_COLUMNS = "  s/step  of bound  staleness  learner waits  engines idle"


def run_before(config: Config) -> Measured | None:
    """Returns the run that the time is measured in; None without one.

    Raises:
        ConfigError: ``plan.from_run`` is no run, or has too few steps.
    """
    return None if config.plan.from_run is None or config.imitates_alone else measured(config.plan.from_run)


def time_is_known(config: Config, run: Measured | None) -> bool:
    """Returns whether `describe_time` simulates, which takes seconds to minutes."""
    return run is not None or given_figures(config) is not None


def describe_time(config: Config, run: Measured | None, placement: Placement | None) -> Iterator[str]:
    """Yields the lines of a plan on time.

    Args:
        config: what is planned.
        run: of `run_before`.
        placement: of the engines; None where there is no room for them.
    """
    if config.imitates_alone:
        return
    if (policy := config.sidecar.update_policy) != "in_flight":
        yield f"time     is simulated as if sidecar.update_policy={policy} were in_flight"
    if run is not None:
        if config.plan.target != "here":
            yield f"time     by the devices of plan.from_run={config.plan.from_run}, where no speed is given beside it"
        yield from _compared(run, config)
        yield from _table(config, with_given(config, run.figures), placement, run.config)
    elif (figures := given_figures(config)) is not None:
        if figures.taken:
            yield f"time     taken, since nobody says otherwise: {', '.join(figures.taken)}"
        yield from _table(config, figures, placement)
    else:
        yield (
            "time     unknown: write plan.from_run=RUN of a run that has been, or plan.learner_tokens_per_second and "
            "plan.engine_tokens_per_second"
        )


def _compared(run: Measured, config: Config) -> Iterator[str]:
    """Yields what was measured in a run, and what is predicted by that and was in fact."""
    figures = run.figures
    announced = figures.publish_seconds + figures.announce_seconds
    sampled = figures.reply_tokens / (figures.reply_tokens + figures.prompt_cost)
    speeds = ", ".join(f"{speed * sampled:,.0f} at {count:.0f}" for count, speed in figures.engine_speeds)
    yield (
        f"measured {config.plan.from_run}, {run.counted} of {run.steps} steps: learner {figures.learner_speed:,.0f} "
        f"tokens/s; an engine {speeds} requests; a version announced in {announced:.3g} s, loaded in "
        f"{figures.load_seconds + figures.read_seconds:.3g} s, {figures.load_seconds:.3g} of them without sampling"
    )
    split = Split((), replace(run.config, plan=config.plan))
    predicted, fact = timed(split, figures), run.fact
    off = predicted.step / fact.step - 1
    yield (
        f"predicted {predicted.step:.3g} s a step, in fact {fact.step:.3g} ({off:+.0%}); of the bound "
        f"{predicted.fraction:.2f}, in fact {fact.fraction:.2f}; staleness {predicted.staleness:.2f}, in fact "
        f"{fact.staleness:.2f}; the learner waits {predicted.waiting:.0%}, in fact {fact.waiting:.0%}"
    )


def _table(
    config: Config, figures: Figures, placement: Placement | None, before: Config | None = None
) -> Iterator[str]:
    apart = placement is not None and placement.apart
    splits, more = (Split((), config), *neighbours(config, apart, before)), one_more_engine(config)
    _, count = counted_steps(config)
    if (given := config.plan.response_tokens) is not None and given > figures.reply_tokens:
        yield f"time     replies are cut at {figures.reply_tokens:g} tokens: plan.response_tokens={given:g} is more"
    yield (
        f"time     of {count} simulated steps (plan.steps), without validations: as configured, and with one thing "
        f"changed, {len(splits) + (more is not None)} rows"
    )
    yield _COLUMNS
    found: list[tuple[Split, Timing]] = []
    for split in splits:
        found.append((split, timed(split, figures)))
        yield _row(*found[-1])
    if more is not None:
        larger = timed(more, figures)
        yield _row(more, larger)
        bought = max(0.0, round(1 - larger.step / found[0][1].step, 2))  # in this order never -0
        yield f"one more engine would buy {bought:.0%} of the time of a step"
    if placement is not None and placement.beside_learner:
        turns = (
            "; a step in turns (async_generation_ratio=0) may take less than its row says"
            if (before is None or before.async_generation_ratio)
            and any(not split.config.async_generation_ratio for split, _ in found)
            else ""
        )
        same = "how much one slows the other is taken to be the same in all rows"
        yield f"learner and engines share processors: {same}{turns}"
    few = f"recommended: nothing by {count} steps; write plan.steps={FEWEST} or more"
    yield few if count < FEWEST else _recommended(found)


def _row(split: Split, timing: Timing) -> str:
    said = " ".join(split.changes) or PRESENT
    stale = f"{timing.staleness:.2f} ({timing.most})"
    devices = " (on more devices)" * split.more + " (gives the last attempts up)" * split.drops
    return (
        f"  {timing.step:6.3g}  {timing.fraction:8.2f}  {stale:>9}  {timing.waiting:13.0%}  {timing.idle:12.0%}  "
        f"{said}{devices}"
    )


def _recommended(found: Sequence[tuple[Split, Timing]]) -> str:
    """Returns which split to take: the fastest, or of those that are as fast the one whose tokens are freshest. One
    that gives attempts up is none of them: it learns from other lengths than are sampled (promise P2).
    """
    (present, now), *_ = found = [(split, timing) for split, timing in found if not split.drops]
    fastest = min(timing.step for _, timing in found)
    near = [(split, timing) for split, timing in found if timing.step <= fastest * (1 + NEAR)]
    split, timing = min(near, key=lambda one: (one[1].staleness, one[1].step))
    if any(one is present for one, _ in near) and timing.staleness >= now.staleness:
        return f"recommended: {PRESENT}; nothing beside it is faster by more than {NEAR:.0%}, or fresher and as fast"
    keys = " ".join(f"--config.{change}" for change in split.changes)
    takes, took = f"{timing.step:.3g}", f"{now.step:.3g}"
    beside = ", as now" if takes == took else f" instead of {took}"
    return (
        f"recommended: {keys}: {takes} s a step{beside}, staleness {timing.staleness:.2f} instead of "
        f"{now.staleness:.2f}; see by a plan whether it fits, and by a new run whether it learns as well"
    )
