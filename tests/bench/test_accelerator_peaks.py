"""Operations of a step, parameters of a model and peaks of devices, against numbers from elsewhere."""

from __future__ import annotations

import time

import pytest

from bench.accelerator.peaks import parameters, peak_of, step_flops, time_steps
from bench.accelerator.shapes import MODELS
from rljax.models.common.architecture import Architecture


def test_flops_of_a_step_are_those_of_a_calculation_by_hand() -> None:
    """One layer, width 4, MLP 8, two heads of 2 that share one key-value head, vocabulary 16; sequences of 3 and 1."""
    architecture = Architecture("llama", 16, 4, 8, 1, 2, 1, 2, tie_embeddings=True)
    layer = 4 * 4 + 4 * 2 + 4 * 2 + 4 * 4 + 3 * 4 * 8  # query, key, value, output, MLP: 144
    forward = 2 * layer * 4 + 2 * 16 * 4 * 2  # four tokens, two of them trained
    pairs = (1 + 2 + 3) + 1  # a query sees itself and what came before
    forward += 2 * 2 * pairs * 2 * 2  # scores and sums, a multiplication and an addition each, two heads of two
    assert step_flops(architecture, [3, 1], 2) == 3 * forward
    assert parameters(architecture) == layer + 16 * 4


@pytest.mark.parametrize(
    ("name", "published"), [("SmolLM2-135M", 134.5e6), ("Qwen2.5-0.5B", 494e6), ("Qwen2.5-1.5B", 1543.7e6)]
)
def test_models_have_as_many_parameters_as_their_cards_say(name: str, published: float) -> None:
    assert parameters(MODELS[name]) == pytest.approx(published, rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989.4),
        ("NVIDIA GH200 480GB", 989.4),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA B200", 2250),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A10G", 70),
        ("NVIDIA A10", 125),
        ("Tesla V100-SXM2-16GB", 125),
        ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121),
        ("Tesla T4", 65),
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU v5e", 197),
        ("TPU v5", 459),
        ("TPU v5p", 459),
        ("TPU v6 lite", 918),
    ],
)
def test_peaks_are_found_by_jax_names_of_devices(kind: str, teraflops: float) -> None:
    found = peak_of(kind)
    assert found is not None
    assert found[0] == teraflops * 1e12


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA GeForce RTX 4090", "TPU v5 something"])
def test_a_device_of_unknown_peak_has_none(kind: str) -> None:
    assert peak_of(kind) is None


def test_steps_are_timed_after_two_that_do_not_count() -> None:
    """Steps of 50, 40, 3, 1 and 2 ms: the median of the last three; 2 layers, so that operations are `step_flops`'."""
    seconds = iter([0.05, 0.04, 0.003, 0.001, 0.002])

    def step() -> float:
        end = time.perf_counter() + next(seconds)
        while time.perf_counter() < end:
            pass
        return 0.5

    opened = time.time()
    row = time_steps(step, MODELS["quick"], [5, 3], 3, opened, opened - 7)
    assert 0.002 <= row["seconds"] < 0.04
    assert len(row["all_seconds"]) == 3
    assert (row["tokens"], row["flops"]) == (8, step_flops(MODELS["quick"], [5, 3], 8))
    assert row["ready_seconds"] == 7
    assert row["first_step_seconds"] >= 7.05
    with pytest.raises(RuntimeError, match="the loss is nan"):
        time_steps(lambda: float("nan"), MODELS["quick"], [5], 1, opened, opened)
