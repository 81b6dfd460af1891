"""Keys of a learner of several hosts that are refused."""

from __future__ import annotations

import dataclasses
import re

import pytest

from rljax.config.fields import ConfigError
from rljax.config.load import load_config
from rljax.config.schema import Config, HostsConfig


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
        ({"number": 2, "rank": 1}, 4, {}, "learner.hosts.rank=1: write learner.hosts.coordinator"),
        ({"number": 2, "rank": 2, "coordinator": "first:1"}, 4, {}, "learner.hosts.rank=2: .* counts from 0 to 1"),
        ({"number": 2, "coordinator": "first"}, 4, {}, "learner.hosts.coordinator='first': write HOST:PORT of host 0"),
        (
            {"number": 2, "coordinator": "first:99999"},
            4,
            {},
            "learner.hosts.coordinator='first:99999': write HOST:PORT",
        ),
        ({"number": 2}, 1, {}, "learner.hosts.number=2: learner.mesh multiplies to 1 devices"),
        ({"number": 2}, 4, {"sync_method": "nccl"}, "learner.hosts.number=2: sync_method=nccl"),
    ],
)
def test_hosts_that_cannot_be_are_refused(
    hosts: dict[str, object], fsdp: int, changes: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        made(HostsConfig(**hosts), fsdp, **changes)
    lines = [str(refused.value), *map(str, refused.value.others)]
    assert any(re.match(said, line) for line in lines), lines


def test_what_an_explorer_is_started_with_may_say_how_many_hosts_its_learner_has() -> None:
    made(HostsConfig(number=2), mode="explore", launcher="ray")
