"""The gap between learner and engine: in bfloat16, where they compute by different programs, on a real model; and of
experts, where they choose others.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from rljax.config.schema import AlgorithmConfig, Config, LearnerConfig, ModelConfig, TinyConfig
from rljax.learner.learner import Learner
from rljax.models.common.architecture import Architecture
from rljax.models.files import load_directory
from rljax.models.smollm2 import smollm2_directory
from rljax.models.tiny import make_tiny
from rljax.pipeline.assemble.run import PROBE_TOKENS, parity_bound, probe_routes, probe_tokens
from rljax.sampler.engine import EmbeddedEngine
from rljax.weights.publisher import OrbaxPublisher
from sidecar.protocol import WeightUpdate

pytestmark = [pytest.mark.slow, pytest.mark.optimised]


def scores(architecture: Architecture, config: Config, path: Path, dtype: str) -> np.ndarray:
    """Log-probabilities that an engine gives the probe, as an explorer asks for them."""
    probe = probe_tokens(config, architecture)

    async def scored() -> np.ndarray:
        engine = EmbeddedEngine(architecture, slots=1, max_length=64, decode_steps=1, dtype=dtype)
        await engine.update_weights(WeightUpdate(0, 0, str(path)))
        found = await engine.score(probe, probe_routes(config, architecture))
        await engine.close()
        return found

    return asyncio.run(scored())


def test_bfloat16_on_smollm2_stays_well_below_its_bound(tmp_path: Path) -> None:
    architecture, params = load_directory(smollm2_directory())
    config = Config(
        mode="evaluate",
        model=ModelConfig(path="smollm2-135m", dtype="bf16"),
        learner=LearnerConfig(devices="cpu", rows_per_microbatch=1),
    )
    learner = Learner(config, architecture, params)
    probe = probe_tokens(config, architecture)
    assert len(probe) == PROBE_TOKENS
    path = OrbaxPublisher(tmp_path).publish(0, 0, learner.export("bf16"), model="", dtype="bf16")
    gap = float(np.abs(scores(architecture, config, path, "bfloat16") - learner.score(probe)).max())
    assert 0 < gap < parity_bound(config) / 1.5


def test_with_replay_the_probe_goes_to_the_same_experts_where_routers_choose_others(tmp_path: Path) -> None:
    """Routers that hardly prefer an expert, and in the engine the others: as by rounding, gates are all but equal."""
    tiny = TinyConfig(family="qwen3_moe", hidden_size=32, moe_intermediate_size=64, num_experts=6)
    model = ModelConfig(path="tiny", tiny=tiny)
    architecture, params = load_directory(make_tiny(model, 0, tmp_path / "model"))
    params["layers"]["router"] = params["layers"]["router"] * 1e-5
    gaps = {}
    for mode in ("replay", "record"):
        algorithm, learns = AlgorithmConfig(router_replay=mode), LearnerConfig(devices="cpu", rows_per_microbatch=1)
        config = Config(mode="evaluate", model=model, learner=learns, algorithm=algorithm)
        learner = Learner(config, architecture, params)
        found = {name: np.asarray(tensor) for name, tensor in learner.export("fp32").items()}
        others = {name: -tensor if name.endswith("mlp.gate.weight") else tensor for name, tensor in found.items()}
        for place, tensors in (("same", found), ("other", others)):
            path = OrbaxPublisher(tmp_path / mode / place).publish(0, 0, tensors, model="", dtype="fp32")
            ours = learner.score(probe_tokens(config, architecture))
            gaps[mode, place] = float(np.abs(scores(architecture, config, path, "float32") - ours).max())
    assert max(gaps["replay", "same"], gaps["record", "same"]) < 1e-4
    assert gaps["replay", "other"] < parity_bound(config) < gaps["record", "other"]
