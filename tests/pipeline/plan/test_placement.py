"""Where a plan puts a learner of several hosts, and the engines beside it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rljax.config.schema import Config, HostsConfig, SidecarConfig
from rljax.config.validate import ConfigError
from rljax.pipeline.plan.placement import learner_names, place_engines, pools
from rljax.pipeline.plan.plan import room_refusals
from tests.pipeline.plan.shapes import HALF, SEVEN, estimated, target_named


def run(target: str, fsdp: int, hosts: int = 1, devices: str = "auto", launcher: str = "ray", **sidecar: Any) -> Config:
    """Returns the config of a learner of so many GPUs, and of vLLM's engines beside it."""
    engines = SidecarConfig(**{"engine": "vllm_async", "devices": "gpu"} | sidecar)
    config = estimated(HALF, {"fsdp": fsdp}, fsdp, 2048, sidecar=engines, launcher=launcher).config
    learner = dataclasses.replace(config.learner, hosts=HostsConfig(number=hosts), devices=devices)
    return dataclasses.replace(config, learner=learner, plan=dataclasses.replace(config.plan, target=target))


def placed(config: Config) -> tuple[tuple[str, ...], ...]:
    return place_engines(config, target_named(config.plan.target)).engines


def test_hosts_have_as_many_gpus_of_each_machine() -> None:
    """Of two machines of 8 each host has 4; an engine of 4 is on the other half, and none of 8 fits on either."""
    config = run("h100:2x8", 8, hosts=2, tensor_parallel_size=4, num_engines=2)
    names = learner_names(config, target_named("h100:2x8"))
    assert names == [f"gpu:{index}" for index in (0, 1, 2, 3, 8, 9, 10, 11)]
    assert placed(config) == tuple(tuple(f"gpu:{i}" for i in four) for four in ((4, 5, 6, 7), (12, 13, 14, 15)))
    with pytest.raises(ConfigError, match=r"the engines need 8 GPUs, and only 0 × 8 of those .* on one machine each"):
        placed(run("h100:2x8", 8, hosts=2, tensor_parallel_size=8))
    with pytest.raises(ConfigError, match="the engines need 9 GPUs, and the learner leaves 8"):
        placed(run("h100:2x8", 8, hosts=2, num_engines=9))


@pytest.mark.parametrize(
    ("target", "fsdp", "hosts", "said"),
    [
        ("h100:2x8", 16, 2, ""),
        ("h100:2x8", 8, 2, ""),
        ("h100:2x8", 8, 4, "the 8 devices of learner.mesh are on 1 to 2 machines of h100:2x8, a host each; write 1"),
        ("h100:4x8", 32, 2, "the 32 devices of learner.mesh are on 4 machines of h100:4x8, a host each; write 4"),
        ("h100:8", 8, 2, "the 8 devices of learner.mesh are on 1 machines of h100:8, a host each; write 1"),
        ("v5e:4x4", 16, 2, "the 16 devices of learner.mesh are on 4 machines of v5e:4x4, a host each; write 4"),
    ],
)
def test_hosts_are_as_many_as_the_target_has_for_them(target: str, fsdp: int, hosts: int, said: str) -> None:
    lines = [str(error) for error in room_refusals(run(target, fsdp, hosts, devices="auto"))]
    assert [line for line in lines if "learner.hosts" in line] == (
        [f"learner.hosts.number={hosts}: {said}"] if said else []
    )


def test_engines_on_ray_are_on_the_gpus_that_are_named() -> None:
    assert placed(run("h100:2x8", 4, devices="gpu:0-3", launcher="ray", **{"num_engines": 2})) == (
        ("gpu:4",),
        ("gpu:5",),
    )
    named = run("h100:2x8", 4, launcher="ray", num_engines=2)
    named = dataclasses.replace(named, sidecar=dataclasses.replace(named.sidecar, devices="gpu:8-9"))
    assert placed(named) == (("gpu:8",), ("gpu:9",))
    for devices, said in (
        ("gpu:15-16", "h100:2x8 has 16, counted from 0"),
        ("gpu:3-4", "gives the others to the learner"),
    ):
        wrong = dataclasses.replace(named, sidecar=dataclasses.replace(named.sidecar, devices=devices))
        with pytest.raises(ConfigError, match=f"sidecar.devices='{devices}': .*{said}"):
            placed(wrong)
    across = dataclasses.replace(named.sidecar, devices="gpu:7-8", num_engines=1, tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="are on two machines"):
        placed(dataclasses.replace(named, sidecar=across))


def test_engines_of_the_local_launcher_are_on_the_learners_machine() -> None:
    """Of two machines of 8, the learner leaves 4 of its own."""
    assert placed(run("h100:2x8", 4, launcher="local", num_engines=4))[-1] == ("gpu:7",)
    with pytest.raises(ConfigError, match=r"leaves 4 of 8; .*for others write launcher=ray"):
        placed(run("h100:2x8", 4, launcher="local", num_engines=5))
    assert placed(run("h100:2x8", 4, num_engines=5))[-1] == ("gpu:8",)


def test_an_adapter_of_seven_billion_weights_is_trained_and_sampled_on_one_card_of_24_gb() -> None:
    """The engine has the learner's 14.2 GiB; of its own the newest factors, a cache of 16 requests of 2048 tokens, each
    28 layers · 4 heads · 128, twice, in bf16, and a layer's half of it to resize; the next factors are handed over.
    """
    target, sidecar = target_named("a10:1", gpu_memory_utilization=0.95), SidecarConfig(max_concurrency=16)
    one = estimated(SEVEN, {}, 1, 2048, share=0.95, rank=32, sidecar=sidecar)
    (pool,) = pools(one, target, place_engines(one.config, target))
    factors, cache = 2 * 80_740_352, 16 * 2048 * 28 * 4 * 128 * 2 * 2
    own = factors + (factors + cache / 56) + cache
    assert pool.needed == sum(one.memory().values()) + own + factors
    assert pool.fits
    apart = dataclasses.replace(
        one, config=dataclasses.replace(one.config, sidecar=dataclasses.replace(sidecar, dtype="fp32"))
    )
    (pool,) = pools(apart, target, place_engines(apart.config, target))
    assert pool.needed > sum(one.memory().values()) + 4 * 7_615_616_512, "in another dtype they are others"
