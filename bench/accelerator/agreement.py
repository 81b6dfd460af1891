"""Checks that both sides of the learner's step compute the same function: loss and gradient of one batch in float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from bench.accelerator.learner import make_groups, open_learner
from bench.accelerator.shapes import Shape, Way
from bench.accelerator.torch_learner import PackedTorchLearner, bodies, device_of
from rljax.learner.learner import Learner
from rljax.learner.train_step import loss_and_gradient
from rljax.models.hf_names import to_hf

AGREEMENT = 1e-3
"""Largest gradient error of a tensor over its largest magnitude, as in `bench.learner_vs_torch`."""


def gradient_of(learner: Learner, shape: Shape) -> tuple[float, dict[str, np.ndarray]]:
    """Returns loss and gradient of the learner, by Hugging Face name."""
    packed = learner.pack(make_groups(shape))[0]
    differentiate = jax.jit(lambda p, batch, n: loss_and_gradient(learner.objective, p, batch, n)[:2])
    loss, found = differentiate(learner.state.params, learner.place(packed.batch), np.int32(packed.microbatches))
    return float(loss), {name: np.array(x) for name, x in to_hf(found, shape.architecture).items()}


def measure(shape: Shape, platform: str) -> Iterator[dict[str, Any]]:
    """Yields the errors of torch's loss and gradient for each attention that torch is measured with, uncompiled."""
    shape, way = replace(shape, dtype="fp32"), Way(False, 1)
    device = device_of(platform)
    with jax.default_matmul_precision("highest"):
        learner = open_learner(shape, way)
        loss, ours = gradient_of(learner, shape)
    weights = {name: np.array(x) for name, x in to_hf(learner.state.params, shape.architecture).items()}
    for attention in dict.fromkeys(
        name for name, _ in bodies(device) if not name.startswith("flash")
    ):  # half precision
        torch_learner = PackedTorchLearner(shape, way, device, attention, False, weights)
        their_loss = torch_learner.accumulate()
        theirs = torch_learner.gradient()
        if theirs.keys() - ours.keys():
            raise RuntimeError(f"the two models differ in their tensors: {sorted(theirs.keys() ^ ours.keys())[:4]}")
        errors = {name: float(np.abs(ours[name] - g).max() / np.abs(g).max()) for name, g in theirs.items()}
        worst = max(errors, key=lambda name: errors[name])
        yield {
            "case": f"{attention}, float32",
            "error": max(errors[worst], abs(loss - their_loss) / abs(their_loss)),
            "bound": AGREEMENT,
            "losses": [loss, their_loss],
            "worst": worst,
        }
