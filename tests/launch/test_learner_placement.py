"""A learner that computes on a CPU asks a cluster for nothing, whatever its machine has."""

from __future__ import annotations

import pytest

from rljax.config.schema import Config, LearnerConfig, RayConfig, TasksConfig, TasksetConfig
from rljax.launch import ray_launcher


@pytest.mark.parametrize(("devices", "asks"), [("cpu", False), ("auto", True), ("gpu:1", True)])
def test_who_computes_on_a_cpu_reserves_nothing(devices: str, asks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Cluster:
        def __init__(self, config: Config) -> None:
            pass

        def place_learner(self, platform: str) -> str:
            asked.append(platform)
            return "gpu:1"

        def close(self) -> None:
            pass

    monkeypatch.setattr(ray_launcher, "RayCluster", Cluster)
    monkeypatch.setattr(ray_launcher, "learner_platform", lambda: "gpu")
    monkeypatch.setattr(ray_launcher, "cluster_address", lambda address: address)
    config = Config(
        mode="train",
        launcher="ray",
        ray=RayConfig(address="head:6379"),
        learner=LearnerConfig(devices=devices),
        tasks=TasksConfig(train={"digits": TasksetConfig(source="reverse_digits")}),
    )
    with ray_launcher.learner_placed_on_ray(config) as placed:
        assert placed.learner.devices == ("gpu:1" if asks else devices)
    assert asked == ["gpu"] * asks
