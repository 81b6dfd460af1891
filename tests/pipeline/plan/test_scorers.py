"""Judges and reward models in a plan, against numbers from hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from rljax.config.schema import (
    Config,
    ExplorerConfig,
    JudgeConfig,
    LearnerConfig,
    ModelConfig,
    PlanConfig,
    RewardModelConfig,
    SidecarConfig,
    TasksConfig,
    TasksetConfig,
    TinyConfig,
)
from rljax.config.validate import ConfigError
from rljax.models.resolve import ModelNotFound
from rljax.pipeline.plan.placement import Placement, Pool, place_engines, pools
from rljax.pipeline.plan.plan import plan
from rljax.pipeline.plan.scorers import place_scorers
from rljax.pipeline.plan.targets import GIB
from tests.classifiers import last_character_scorer
from tests.pipeline.plan.shapes import ONE_AND_A_HALF, SEVEN, estimated, target_named

SCORER = dataclasses.replace(SEVEN, tie_embeddings=True)
JUDGE = JudgeConfig(path="small", dtype="bf16", max_prompt_tokens=1792, max_response_tokens=256, max_concurrency=16)
REWARD = RewardModelConfig(path="rm", dtype="bf16")

JUDGES_WEIGHTS = 2 * 1_543_714_304
"""Qwen2.5-1.5B in bf16."""
JUDGES_KV = 16 * 2048 * 2 * 28 * 2 * 128 * 2
"""16 requests of 2048 tokens: keys and values of 28 layers with 2 heads of 128."""
SCORERS_WEIGHTS = 2 * (7_615_616_512 - 152_064 * 3584)
"""Qwen2.5-7B without its output head."""
SCORERS_ACTIVATIONS = 8 * 2304 * (4 * 3584 + 3 * 18_944) * 2
"""8 rows of the longest trajectory, 2048, and 256 more: a layer's stream and its MLP."""


def found(target: str, judge: dict[str, Any], reward: dict[str, Any], **keys: Any) -> tuple[Placement, list[Pool]]:
    settings = {
        "judges": {"mine": dataclasses.replace(JUDGE, **judge)},
        "reward_models": {"mine": dataclasses.replace(REWARD, **reward)},
        **keys,
    }
    architectures = {"judges.mine": ONE_AND_A_HALF, "reward_models.mine": SCORER}
    there = target_named(target)
    platform = there.hardware.platform
    estimate = dataclasses.replace(
        estimated(ONE_AND_A_HALF, {}, 8, 2048, platform=platform, **settings), scorers=architectures
    )
    placement = place_engines(estimate.config, there)
    placement = dataclasses.replace(placement, scorers=place_scorers(estimate, there, placement))
    return placement, pools(estimate, there, placement)


def places(placement: Placement) -> list[tuple[tuple[str, ...], ...]]:
    return [placement.engines, *(scorer.placement.engines for scorer in placement.scorers)]


def test_each_has_what_is_left_and_takes_what_its_engine_takes() -> None:
    vllm = SidecarConfig(engine="vllm", num_engines=2)
    placement, (learner, engine, judge, scorer) = found("h100:8", {"engine": "vllm"}, {}, sidecar=vllm)
    assert places(placement) == [(("gpu:1",), ("gpu:2",)), (("gpu:3",),), (("gpu:4",),)]
    assert (learner.what, engine.what) == ("a learner's device", "an engine's device")
    assert (judge.what, scorer.what) == ("a device of judges.mine", "a device of reward_models.mine")
    assert judge.needed == judge.limit == pytest.approx(0.9 * 79.1 * GIB), "vLLM fills what it is given"
    assert placement.scorers[0].kinds["weights"] == JUDGES_WEIGHTS
    assert placement.scorers[1].kinds == {"weights": SCORERS_WEIGHTS, "activations": SCORERS_ACTIVATIONS}
    assert scorer.needed == SCORERS_WEIGHTS + SCORERS_ACTIVATIONS
    assert scorer.limit == pytest.approx(0.75 * 79.1 * GIB), "JAX's share of the learner's process"


def test_an_embedded_judge_takes_the_cache_of_its_requests() -> None:
    placement, (_, _, judge, _) = found("v5e:2x2", {}, {})
    assert places(placement) == [(("tpu:1",),), (("tpu:2",),), (("tpu:3",),)]
    assert placement.scorers[0].kinds == {"weights": JUDGES_WEIGHTS, "KV": JUDGES_KV}
    assert judge.needed == JUDGES_WEIGHTS + JUDGES_KV


def test_a_reward_model_is_cut_over_its_devices() -> None:
    placement, _ = found("v5e:4x4", {"devices": "tpu:9"}, {"devices": "tpu:12-15"})
    assert places(placement) == [(("tpu:1",),), (("tpu:9",),), (("tpu:12", "tpu:13", "tpu:14", "tpu:15"),)]
    assert placement.scorers[1].kinds == {"weights": SCORERS_WEIGHTS / 4, "activations": SCORERS_ACTIVATIONS / 4}


def test_where_none_is_left_they_count_on_the_devices_that_they_share() -> None:
    _, (bare,) = found("h100:1", {"devices": "cpu"}, {"devices": "cpu"})
    placement, (everything,) = found("h100:1", {}, {})
    assert places(placement) == [(("gpu:0",),)] * 3
    scorers = JUDGES_WEIGHTS + JUDGES_KV + SCORERS_WEIGHTS + SCORERS_ACTIVATIONS
    assert everything.needed - bare.needed == pytest.approx(scorers)
    _, (learner, engine) = found("h100:2", {"devices": "cpu"}, {"devices": "cpu"})
    placement, (with_scorer, with_judge) = found("h100:2", {}, {})
    assert places(placement) == [(("gpu:1",),), (("gpu:1",),), (("gpu:0",),)]
    assert with_judge.needed - engine.needed == pytest.approx(JUDGES_WEIGHTS + JUDGES_KV)
    assert with_scorer.needed - learner.needed == pytest.approx(SCORERS_WEIGHTS + SCORERS_ACTIVATIONS)


def test_beside_an_explorer_of_its_own_process_they_share_with_its_engines() -> None:
    process = ExplorerConfig(own_process=True)
    _, (_, bare) = found("h100:2", {"devices": "cpu"}, {"devices": "cpu"}, explorer=process)
    placement, (_, engine) = found("h100:2", {}, {}, explorer=process)
    assert places(placement) == [(("gpu:1",),)] * 3
    scorers = JUDGES_WEIGHTS + JUDGES_KV + SCORERS_WEIGHTS + SCORERS_ACTIVATIONS
    assert engine.needed - bare.needed == pytest.approx(scorers)


def test_on_ray_judges_come_after_the_engines_and_a_reward_model_is_beside_the_learner() -> None:
    sidecar = SidecarConfig(engine="vllm")
    keys: dict[str, Any] = {"launcher": "ray", "sidecar": sidecar}
    placement, _ = found("h100:4", {"engine": "vllm", "num_engines": 2}, {}, **keys)
    assert places(placement) == [(("gpu:1",),), (("gpu:2",), ("gpu:3",)), (("gpu:0",),)]


def test_what_a_run_would_refuse_the_plan_refuses() -> None:
    with pytest.raises(ConfigError, match=r"^reward_models.mine.devices='tpu:1': others have tpu:1"):
        found("v5e:2x2", {}, {"devices": "tpu:1"})
    with pytest.raises(ConfigError, match=r"sidecar.devices='auto': num_engines × tensor_parallel_size needs 8 GPUs"):
        found("h100:8", {"engine": "vllm", "num_engines": 8}, {})


def settings(scorer: str, target: str) -> Config:
    tiny = ModelConfig(path="tiny", tiny=TinyConfig(hidden_size=32, num_layers=1))
    return Config(
        model=tiny,
        judges={"small": JudgeConfig(path="tiny", max_concurrency=4)},
        reward_models={"mine": RewardModelConfig(path=scorer, rows_per_batch=2)},
        learner=LearnerConfig(rows_per_microbatch=8),
        tasks=TasksConfig(train={"t": TasksetConfig(source="reverse_digits")}),
        plan=PlanConfig(target=target),
    )


def test_a_plan_says_what_scores_and_where(tmp_path: Path) -> None:
    scorer = str(last_character_scorer(tmp_path / "model", {"1": 1.0}))
    *lines, fits = plan(settings(scorer, "v5e:2x4"))
    assert fits is True
    said = [line for line in lines if isinstance(line, str) and line.startswith(("scores", "idle"))]
    assert said == [
        "scores   judges.small: 1 × embedded on tpu:2, 4 requests of up to 2304 tokens",
        "scores   reward_models.mine: scored on tpu:3, 2 rows of up to 384 tokens at once",
        "idle     4 of 8 devices: neither learner.mesh nor the engines nor judges nor reward models take them",
    ]
    assert "of 15.75 GiB on a device of judges.small; " in str(lines[-1])
    with pytest.raises(ModelNotFound, match=rf"^reward_models.mine: model.path={tmp_path}/none: there is no such dir"):
        list(plan(settings(f"{tmp_path}/none", "v5e:2x4")))


def test_on_a_host_all_have_one_memory() -> None:
    estimate = estimated(ONE_AND_A_HALF, {}, 8, 2048, platform="cpu")
    here = target_named("here")
    (bare,) = pools(estimate, here, place_engines(estimate.config, here))
    _, (everything,) = found("here", {"num_engines": 2}, {})
    assert everything.what == "learner, engines, judges and reward models"
    scorers = 2 * (JUDGES_WEIGHTS + JUDGES_KV) + SCORERS_WEIGHTS + 2 * SCORERS_ACTIVATIONS
    assert everything.needed - bare.needed == pytest.approx(scorers), "on a CPU activations are of float32"
