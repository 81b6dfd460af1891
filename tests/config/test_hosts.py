"""Keys of a learner of several hosts that are refused."""

from __future__ import annotations

import dataclasses
import re

import pytest

from rljax.config.fields import ConfigError
from rljax.config.load import load_config
from rljax.config.schema import Config, HostsConfig, SidecarConfig


def made(hosts: HostsConfig, fsdp: int = 4, **changes: object) -> Config:
    config = load_config("quickstart")
    mesh = dataclasses.replace(config.learner.mesh, fsdp=fsdp)
    learner = dataclasses.replace(config.learner, mesh=mesh, hosts=hosts)
    return dataclasses.replace(config, learner=learner, **changes)


@pytest.mark.parametrize(
    ("hosts", "fsdp", "changes", "said"),
    [
        ({"rank": 0, "coordinator": "first:1"}, 4, {}, "learner.hosts.number=1: one process is host 0 of 1"),
        ({"start": "here"}, 4, {}, "learner.hosts.number=1: one process is host 0 of 1"),
        ({"number": 2, "start": "here", "coordinator": "first:1"}, 4, {}, "learner.hosts.start=here: "),
        ({"number": 2, "coordinator": "first:1"}, 4, {"launcher": "ray"}, ".*write learner.hosts.rank .* or leave"),
        ({"number": 2, "rank": 1}, 4, {}, "learner.hosts.rank=1: write learner.hosts.coordinator"),
        ({"number": 2, "rank": 2, "coordinator": "first:1"}, 4, {}, "learner.hosts.rank=2: .* counts from 0 to 1"),
        ({"number": 2, "coordinator": "[fd00::1]:8476"}, 4, {}, ".*HOST a name or IPv4 address"),
        ({"number": 2, "coordinator": "first"}, 4, {}, "learner.hosts.coordinator='first': write HOST:PORT of host 0"),
        (
            {"number": 2, "coordinator": "first:99999"},
            4,
            {},
            "learner.hosts.coordinator='first:99999': write HOST:PORT",
        ),
        ({"number": 2}, 1, {}, "learner.hosts.number=2: learner.mesh multiplies to 1 devices"),
        ({"number": 2}, 4, {"sync_method": "nccl"}, "learner.hosts.number=2: sync_method=nccl"),
        ({"number": 2}, 4, {"sync_deltas": 8, "sync_dtype": "bf16"}, "sync_deltas=8: of a learner of several hosts"),
        ({"number": 2}, 4, {"sidecar": SidecarConfig(colocate=True)}, "learner.hosts.number=2: sidecar.colocate=true"),
    ],
)
def test_hosts_that_cannot_be_are_refused(
    hosts: dict[str, object], fsdp: int, changes: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        made(HostsConfig(**hosts), fsdp, **changes)
    lines = [str(refused.value), *map(str, refused.value.others)]
    assert any(re.match(said, line) for line in lines), lines


def test_a_coordinator_on_ray_needs_who_says_the_rank() -> None:
    """An explorer starts no host, whatever it is told of them."""
    made(HostsConfig(number=2, coordinator="first:1", rank=1), launcher="ray")
    made(HostsConfig(number=2, coordinator="first:1", start="environment"), launcher="ray")
    made(HostsConfig(number=2, coordinator="first:1"), launcher="ray", mode="explore")


def test_what_an_explorer_is_started_with_may_say_how_many_hosts_its_learner_has() -> None:
    made(HostsConfig(number=2), mode="explore", launcher="ray")


@pytest.mark.parametrize(
    ("launcher", "devices", "hosts", "other_way"),
    [
        ("local", "gpu", 1, "sidecar.colocate=true"),
        ("local", "gpu:3", 1, "sidecar.colocate=true"),
        ("ray", "gpu:3", 1, "launcher=ray and sidecar.devices=gpu"),
        ("ray", "gpu:3", 2, "launcher=ray and sidecar.devices=gpu"),
        ("local", "gpu", 2, "launcher=ray and sidecar.devices=gpu"),
        ("ray", "gpu", 1, None),
        ("ray", "gpu", 2, None),
        ("ray", "gpu:4", 2, None),
    ],
)
def test_gpus_of_ray_are_nobody_elses(launcher: str, devices: str, hosts: int, other_way: str | None) -> None:
    """The learner has gpu:0-3. An advice that is followed is not refused itself: the fifth case becomes the seventh."""
    changes = {"launcher": launcher, "sidecar": SidecarConfig(engine="vllm", devices=devices)}

    def run() -> None:
        config = load_config("quickstart")
        mesh = dataclasses.replace(config.learner.mesh, fsdp=4)
        its = dataclasses.replace(config.learner, mesh=mesh, hosts=HostsConfig(number=hosts), devices="gpu:0-3")
        dataclasses.replace(config, learner=its, **changes)

    if other_way is None:
        run()
    else:
        with pytest.raises(ConfigError, match=rf"sidecar.devices='{devices}': overlaps .*, or write {other_way}"):
            run()
