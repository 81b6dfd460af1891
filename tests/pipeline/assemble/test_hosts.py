"""Which host of a learner a process is, and what tells the hosts of one run from those of another."""

from __future__ import annotations

import dataclasses

import pytest

from rljax.config.fields import ConfigError
from rljax.config.schema import Config, HostsConfig, LearnerConfig, MeshConfig
from rljax.pipeline.assemble.hosts import identity, place_of

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "first", "MASTER_PORT": "29500"}


def config(**hosts: object) -> Config:
    learner = LearnerConfig(mesh=MeshConfig(fsdp=4), hosts=HostsConfig(number=2, **hosts))
    return Config(mode="evaluate", learner=learner)


def test_the_config_comes_first() -> None:
    assert place_of(config(rank=0, coordinator="here:1"), TORCHRUN) == (0, "here:1", 2)


def test_torchrun_says_it() -> None:
    """Its own store listens at MASTER_PORT: JAX's service is at the port after it."""
    assert place_of(config(), TORCHRUN) == (1, "first:29501", 2)


def test_otherwise_jax_finds_out() -> None:
    assert place_of(config(), {"SLURM_JOB_ID": "7"}) == (None, None, None)


def test_another_number_of_processes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learner.hosts.number=2: WORLD_SIZE=4 processes were started; write 4"):
        place_of(config(), {**TORCHRUN, "WORLD_SIZE": "4"})


def test_hosts_differ_in_who_they_are_alone() -> None:
    first, second = config(rank=0, coordinator="here:1"), config(rank=1, coordinator="there:1")
    assert identity(first) == identity(second)
    other = identity(dataclasses.replace(second, seed=7))
    assert [name for name, value in identity(first).items() if other[name] != value] == ["config.seed"]
