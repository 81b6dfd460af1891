"""The parts of a run, the most important first, and their sizes on an accelerator, on a CPU, and for a test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.accelerator.shapes import Shape

PARTS = ("kernels", "learner", "quickstart", "engine", "first-step", "agreement")
"""What ``--only`` takes."""
SHORTEST_RUN = {"max_steps": 2, "rollout_batch_size": 32, "algorithm.minibatch_size": 32, "val_batch_size": 4}


@dataclass(frozen=True)
class Scale:
    """Sizes of a run.

    Attributes:
        shapes: model and places of a row, the most important first.
        dtype: of learner and engine.
        tokens: of a learner's step, at least.
        microbatch: tokens of a microbatch, at most.
        steps: of a learner that are timed.
        kernel_models: whose heads and widths the kernels are compared in.
        kernel_places: of the rows that are compared.
        kernel_timed: places of rows whose attention is timed.
        engine_model: which model generates.
        sequences: how many at once.
        prompt, new: tokens of each.
        quickstart: keys that shorten it; empty: until the held-out score is 0.9.
        seconds: a part's usual time by its worker, until this run knows better.
    """

    shapes: Sequence[tuple[str, int]]
    dtype: str
    tokens: int
    microbatch: int
    steps: int
    kernel_models: Sequence[str]
    kernel_places: Sequence[int]
    kernel_timed: Sequence[int]
    engine_model: str
    sequences: Sequence[int]
    prompt: int
    new: int
    quickstart: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


_SMALL, _MIDDLE, _LARGE = "SmolLM2-135M", "Qwen2.5-0.5B", "Qwen2.5-1.5B"
SCALES = {
    "accelerator": Scale(
        shapes=(
            (_LARGE, 8192),
            (_MIDDLE, 8192),
            (_SMALL, 8192),
            (_LARGE, 32768),
            (_LARGE, 2048),
            (_MIDDLE, 2048),
            (_SMALL, 2048),
            (_MIDDLE, 32768),
            (_SMALL, 32768),
        ),
        dtype="bf16",
        tokens=65536,
        microbatch=16384,
        steps=3,
        kernel_models=(_SMALL, _LARGE),
        kernel_places=(1024, 1021),
        kernel_timed=(2048, 8192, 32768),
        engine_model=_MIDDLE,
        sequences=(1, 32, 256),
        prompt=128,
        new=128,
        seconds={
            "kernels": 75,
            "learner": 30,
            "torch_learner": 120,
            "quickstart": 120,
            "engine": 65,
            "torch_engine": 90,
        },
    ),
    "cpu": Scale(
        shapes=((_SMALL, 512), (_SMALL, 256)),
        dtype="fp32",
        tokens=512,
        microbatch=512,
        steps=2,
        kernel_models=(_SMALL,),
        kernel_places=(256, 253),
        kernel_timed=(512, 1024),
        engine_model=_SMALL,
        sequences=(1, 8),
        prompt=32,
        new=16,
        seconds={
            "kernels": 30,
            "learner": 60,
            "torch_learner": 40,
            "quickstart": 120,
            "engine": 60,
            "torch_engine": 60,
        },
    ),
    "quick": Scale(
        shapes=(("quick", 128),),
        dtype="fp32",
        tokens=256,
        microbatch=128,
        steps=1,
        kernel_models=("quick",),
        kernel_places=(45,),
        kernel_timed=(64,),
        engine_model="quick",
        sequences=(1, 4),
        prompt=8,
        new=8,
        quickstart=SHORTEST_RUN,
        seconds={},
    ),
}
_USUAL_SECONDS = 20.0


@dataclass(frozen=True)
class Part:
    """One process of a run.

    Attributes:
        group: what ``--only`` calls it.
        worker: its name in `bench.accelerator.worker.PARTS`.
        case: which of the group's.
        arguments: of the worker.
        limit: seconds after which it is ended, however many the run has left.
    """

    group: str
    worker: str
    case: str
    arguments: dict[str, Any]
    limit: float

    @property
    def name(self) -> str:
        """Name of the part in the report."""
        return f"{self.group}: {self.worker}, {self.case}" if self.case else self.group


def usual_seconds(scale: Scale, part: Part) -> float:
    """Returns what a part takes, as far as was known when this was written."""
    return scale.seconds.get(part.worker, _USUAL_SECONDS)


def make_parts(scale: Scale, platform: str, only: Sequence[str]) -> list[Part]:
    """Returns the parts of a run, the most important first."""
    learners = [part for model, row in scale.shapes for part in _learner_pair(scale, model, row, platform)]
    ours, theirs, *compiled = _engines(scale, platform)
    mine, torch, *rest = learners
    # torch compiles for minutes: what only a device can show of ours comes before it.
    others = [*_quickstart(scale), ours, *_first_step(scale), *_agreement(platform)]
    parts = [_kernels(scale), mine, *others, torch, *rest, theirs, *compiled]
    return [part for part in parts if part.group in only]


def _kernels(scale: Scale) -> Part:
    arguments = {
        "models": list(scale.kernel_models),
        "lengths": list(scale.kernel_places),
        "timed_rows": list(scale.kernel_timed),
    }
    return Part("kernels", "kernels", "", arguments, 120)


def _shape(scale: Scale, model: str, row: int) -> dict[str, Any]:
    return asdict(Shape(model, row, scale.tokens, scale.microbatch, scale.dtype, scale.steps))


def _learner_pair(scale: Scale, model: str, row: int, platform: str) -> Iterator[Part]:
    ours = {"shape": _shape(scale, model, row), "attempt": None}
    case = f"{model}, rows of {row}"
    yield Part("learner", "learner", case, ours, 150)
    yield Part("learner", "torch_learner", case, {**ours, "platform": platform}, 180)


def _quickstart(scale: Scale) -> Iterator[Part]:
    overrides = [f"--config.{key}={value}" for key, value in scale.quickstart.items()]
    arguments = {"overrides": overrides, "target": None if scale.quickstart else 0.9}
    yield Part("quickstart", "quickstart", "", arguments, 200)


def _engines(scale: Scale, platform: str) -> Iterator[Part]:
    ours = {
        "model": scale.engine_model,
        "counts": list(scale.sequences),
        "prompt": scale.prompt,
        "new": scale.new,
        "dtype": scale.dtype,
    }
    yield Part("engine", "engine", scale.engine_model, ours, 120)
    for cache in ("dynamic", "static") if platform == "gpu" else ("dynamic",):
        case = f"{scale.engine_model}, {cache} cache"
        yield Part("engine", "torch_engine", case, {**ours, "platform": platform, "cache": cache}, 150)


def _first_step(scale: Scale) -> Iterator[Part]:
    """Yields the same start twice, of a model in the middle."""
    model, row = scale.shapes[min(1, len(scale.shapes) - 1)]
    arguments = {"shape": _shape(scale, model, row), "attempt": None}
    for cache in ("cold", "warm"):
        case = f"{model}, rows of {row}, {cache} compile cache"
        yield Part("first-step", "learner", case, arguments, 120)


def _agreement(platform: str) -> Iterator[Part]:
    shape = asdict(Shape("quick", 128, 256, 128, "fp32", 1))
    yield Part("agreement", "agreement", "", {"shape": shape, "platform": platform}, 90)
