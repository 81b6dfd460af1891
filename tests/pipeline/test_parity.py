"""Learner and engine compute in bfloat16 by different programs: their gap on a real model, and the bound for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from rljax.config.schema import Config, LearnerConfig, ModelConfig
from rljax.learner.learner import Learner
from rljax.models.files import load_directory
from rljax.models.smollm2 import smollm2_directory
from rljax.pipeline.assemble.run import PROBE_TOKENS, parity_bound, probe_tokens
from rljax.sampler.engine import EmbeddedEngine
from rljax.weights.publisher import OrbaxPublisher
from sidecar.protocol import WeightUpdate

pytestmark = [pytest.mark.slow, pytest.mark.optimised]


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

    async def scored() -> np.ndarray:
        engine = EmbeddedEngine(architecture, slots=1, max_length=64, decode_steps=1, dtype="bfloat16")
        await engine.update_weights(WeightUpdate(0, 0, str(path)))
        scores = await engine.score(probe)
        await engine.close()
        return scores

    gap = float(np.abs(asyncio.run(scored()) - learner.score(probe)).max())
    assert 0 < gap < parity_bound(config) / 1.5
