"""Learner and engines on the same accelerators: which configs may ask for it, and what share of a GPU each gets."""

from __future__ import annotations

from typing import Any

import pytest

from rljax.config.schema import Config, ExplorerConfig, LearnerConfig, MeshConfig, SidecarConfig
from rljax.config.validate import ConfigError
from rljax.config.validate_placement import engine_memory_share, learner_memory_share, shares_gpu_memory
from tests.config.making import make

APART = ExplorerConfig(own_process=True)


def colocated(
    mode: str = "both", explorer: ExplorerConfig | None = None, learner: dict[str, Any] | None = None, **sidecar: Any
) -> Config:
    return make(
        mode=mode,
        explorer=explorer or ExplorerConfig(),
        learner=LearnerConfig(**(learner or {})),
        sidecar=SidecarConfig(**{"engine": "vllm", "colocate": True, **sidecar}),
    )


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"learner": {"gpu_memory_utilization": 0.5}, "gpu_memory_utilization": 0.51},
            "sidecar.colocate=true: learner.gpu_memory_utilization=0.5 and sidecar.gpu_memory_utilization=0.51 are "
            "more than the GPU has; lower one of them (the defaults are 0.5 and 0.4)",
        ),
        ({"gpu_memory_utilization": 0.9}, "sidecar.colocate=true: learner.gpu_memory_utilization=0.5 and sidecar."),
        ({"learner": {"devices": "tpu"}}, "sidecar.colocate=true: processes can share a GPU, by a part of its memory"),
        ({"devices": "cpu"}, "sidecar.colocate=true: processes can share a GPU, by a part of its memory for each, and"),
        (
            {"engine": "embedded", "explorer": APART, "devices": "tpu:0"},
            "sidecar.colocate=true: processes can share a GPU, by a part of its memory for each, and no tpu",
        ),
        (
            {"learner": {"devices": "gpu:0"}, "engine": "embedded", "devices": "cpu"},
            "sidecar.colocate=true: learner.devices='gpu:0' and sidecar.devices='cpu' have no device in common",
        ),
        (
            {"num_engines": 2},
            "sidecar.colocate=true: num_engines × tensor_parallel_size needs 2 GPUs, and the learner has 1",
        ),
    ],
)
def test_what_cannot_share_is_refused_in_one_line(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        colocated(**changes)
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


def test_a_cluster_gives_each_its_own() -> None:
    with pytest.raises(ConfigError, match=r"launcher=ray gives every engine accelerators of its own; write launcher="):
        make(launcher="ray", sidecar=SidecarConfig(engine="vllm", colocate=True))


@pytest.mark.parametrize("explorer", [None, APART])
def test_the_same_devices_may_be_named_once_they_are_to_be_shared(explorer: ExplorerConfig | None) -> None:
    for engine in ("embedded", "vllm"):
        colocated(engine=engine, explorer=explorer, learner={"devices": "gpu:0"}, devices="gpu:0")
    with pytest.raises(ConfigError, match=r"overlaps learner.devices='gpu:0'; .*, or write sidecar.colocate=true"):
        colocated(colocate=False, learner={"devices": "gpu:0"}, devices="gpu:0")


def test_shares_are_given_where_processes_share_a_gpu() -> None:
    two = colocated()
    assert (shares_gpu_memory(two), learner_memory_share(two), engine_memory_share(two)) == (True, 0.5, 0.4)
    chosen = colocated(learner={"gpu_memory_utilization": 0.3, "mesh": MeshConfig()}, gpu_memory_utilization=0.7)
    assert (learner_memory_share(chosen), engine_memory_share(chosen)) == (0.3, 0.7)
    alone = colocated(colocate=False)
    assert (shares_gpu_memory(alone), learner_memory_share(alone), engine_memory_share(alone)) == (False, None, 0.9)
    assert [
        shares_gpu_memory(colocated(engine="embedded", mode=mode, explorer=explorer))
        for mode, explorer in (("both", None), ("both", APART), ("train", None), ("explore", None))
    ] == [False, True, True, True], "in one process the embedded engine draws on the same memory as the learner"
    full = {"learner": {"gpu_memory_utilization": 0.9}, "gpu_memory_utilization": 0.9}
    assert learner_memory_share(colocated(engine="embedded", **full)) == 0.9


def test_a_replay_shares_nothing_and_may_be_elsewhere() -> None:
    assert not shares_gpu_memory(colocated("replay"))
    colocated("replay", learner={"devices": "cpu"})
