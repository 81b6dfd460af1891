"""What an explorer in a process of its own cannot be given."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rljax.algorithms.registry import advantages, aggregations, filters, policy_losses
from rljax.config.load import as_plain, from_plain
from rljax.config.refusals import joined
from rljax.config.schema import AlgorithmConfig, Config, ExplorerConfig, TasksConfig
from rljax.config.validate import ConfigError
from rljax.launch.explorer_process import explorer_config
from rljax.pipeline.assemble.names import name_refusals
from rljax.tasks.rewards import register_reward
from tests.config.making import TASKSET, make

FAR = ExplorerConfig(own_process=True)


def check_names_reach(config: Config) -> None:
    """Raises what is refused of the functions that a config names."""
    if refused := [*name_refusals(config)]:
        raise joined(refused)


OWN: list[tuple[str, Any, dict[str, Any]]] = [
    ("algorithm.adv_estimator", advantages, {"adv_estimator": "mine"}),
    ("algorithm.pg_variant", policy_losses, {"pg_variant": "mine", "allow_uncorrected": True}),
    ("algorithm.aggregation", aggregations, {"aggregation": "mine"}),
    ("algorithm.filters", filters, {"filters": ("group_variance", "mine")}),
]


def own_function(*_: Any) -> None:
    """Of a module that is none of ours."""


@pytest.mark.parametrize(("key", "slot", "algorithm"), OWN, ids=lambda x: x if isinstance(x, str) else "")
def test_a_function_of_this_process_is_refused_where_the_explorer_is_another(
    key: str, slot: Any, algorithm: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=f"^{key}='mine': there is no such one; "):
        make(algorithm=AlgorithmConfig(**algorithm))
    slot.register("mine")(own_function)
    config = make(algorithm=AlgorithmConfig(**algorithm))
    check_names_reach(config)
    with pytest.raises(ConfigError, match=f"^{key}='mine': registered in this process, .*write module:function$"):
        check_names_reach(dataclasses.replace(config, explorer=FAR))


def test_nor_does_it_reach_in_the_place_of_a_built_in() -> None:
    """The explorer would filter by the built-in one, and say nothing."""
    config = make(algorithm=AlgorithmConfig(filters=("overlong",)), explorer=FAR)
    check_names_reach(config)
    filters.register("overlong")(own_function)
    with pytest.raises(ConfigError, match=r"^algorithm\.filters='overlong': registered in this process"):
        check_names_reach(config)


@pytest.mark.parametrize("kind", ["train", "validation"])
def test_a_reward_of_this_process_is_refused_likewise(kind: str) -> None:
    register_reward("mine")(lambda task, response: 0.0)
    judged = {"judged": dataclasses.replace(TASKSET, rewards=("mine",))}
    tasks = dataclasses.replace(TasksConfig(train={"digits": TASKSET}), **{kind: judged})
    check_names_reach(make(tasks=tasks))
    with pytest.raises(ConfigError, match=rf"^tasks\.{kind}\.judged\.rewards='mine': registered in this process"):
        check_names_reach(make(tasks=tasks, explorer=FAR))


def test_what_every_process_can_import_is_not_refused() -> None:
    config: Config = make(algorithm=AlgorithmConfig(pg_variant="math:fsum", allow_uncorrected=True), explorer=FAR)
    check_names_reach(config)


@pytest.mark.parametrize("channel", ["checkpoint", "memory", "nccl"])
def test_an_actor_of_the_learners_ray_job_explores_whatever_the_channel(channel: str) -> None:
    """A config of ``mode=explore`` that a user writes may not name ``memory``."""
    config = make(sync_method=channel, launcher="ray", explorer=FAR)
    sent = from_plain(as_plain(explorer_config(config)))
    assert sent.mode == "explore"
    assert not sent.explorer.own_process
