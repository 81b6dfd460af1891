"""What tells the hosts of one run from those of another."""

from __future__ import annotations

import dataclasses

from rljax.config.schema import Config, HostsConfig, LearnerConfig, MeshConfig
from rljax.pipeline.assemble.hosts import identity


def config(**hosts: object) -> Config:
    learner = LearnerConfig(mesh=MeshConfig(fsdp=4), hosts=HostsConfig(number=2, **hosts))
    return Config(mode="evaluate", learner=learner)


def test_hosts_differ_in_who_they_are_alone() -> None:
    first, second = config(rank=0, coordinator="here:1"), config(rank=1, coordinator="there:1")
    assert identity(first) == identity(second)
    other = identity(dataclasses.replace(second, seed=7))
    assert [name for name, value in identity(first).items() if other[name] != value] == ["config.seed"]
