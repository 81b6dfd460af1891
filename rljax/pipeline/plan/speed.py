"""The speed of a learner on a target, at the peak of computing and of its links, as a plan says it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rljax.config.chips import Chip
from rljax.pipeline.plan.estimate import Estimate
from rljax.pipeline.plan.placement import hosts_of
from rljax.pipeline.plan.targets import GIB, Target
from rljax.pipeline.plan.traffic import Sent, traffic, version_traffic


def describe_speed(estimate: Estimate, target: Target) -> Iterator[str]:
    """Yields the lines of a plan on what goes over the links, and on the learner's tokens per second at most."""
    step, moved, layers = estimate.steps(), traffic(estimate), estimate.architecture.num_layers
    hosts, sending = hosts_of(estimate, target), 0.0
    if moved:
        yield "traffic of a device: of a layer in a microbatch, and of a step"
    for sent in moved:
        size = step["microbatches"] * sent.size
        line = (
            f"  {sent.size / GIB / layers:8.3f}, {size / GIB:9.2f} GiB {sent.collective} of {sent.what} ({sent.axis})"
        )
        if target.chip:
            over, rate = target.link(estimate.mesh, sent.axis, hosts)
            sending += size / rate
            line += f" over {over}, {rate / 1e9:g} GB/s: {size / rate:.1f} s"
        yield line
    if target.chip and hosts > 1:
        yield from _network(estimate, target, target.chip, step["microbatches"])
    if target.chip is None:
        yield f"speed    unknown: what {target.kind!r} computes at its peak has no line in rljax/config/chips.py"
        return
    computing = step["operations"] / target.chip.flops / estimate.mesh.size
    most, given = step["tokens"] / max(computing, sending), estimate.config.plan.learner_tokens_per_second
    yield (
        f"speed    {step['tokens']:,.0f} tokens a step, {step['microbatches']:.0f} microbatches: {computing:.1f} s at "
        f"the peak of computing, {sending:.1f} s at that of the links; {most:,.0f} tokens/s at most"
    )
    if given is not None and (computed := given * estimate.config.algorithm.ppo_epochs) > most:
        yield (
            f"         plan.learner_tokens_per_second={given:g} is above it ({computed:,.0f} in all epochs): unless "
            "rows are far shorter, or share prompts, the times below are too short"
        )


def _network(estimate: Estimate, target: Target, chip: Chip, microbatches: float) -> Iterator[str]:
    """Yields what comes to each machine of the learner over the slowest of its links."""
    hosts, mesh = hosts_of(estimate, target), estimate.mesh
    if chip.ring:
        yield f"network  nothing: ICI joins the {hosts} machines of the slice"
        return

    def received(moved: Sequence[Sent]) -> float:
        return sum(sent.size * target.crossing(mesh, sent.axis, hosts) for sent in moved) / 1e9

    step, version = microbatches * received(traffic(estimate)), received(version_traffic(estimate))
    rate = target.each(mesh.size, hosts) * chip.network / 1e9
    yield (
        f"network  {step:,.1f} GB a step to each of the {hosts} machines and as much from it, {version:,.1f} GB more "
        f"where a version is published, of {rate:g} GB/s"
    )
