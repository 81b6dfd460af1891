"""Scalings of rotary frequencies: those that transformers has, computed in float32 in its order of operations."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar

import numpy as np

Scaled = tuple[np.ndarray, float]
"""Radians per position of each rotating pair, float32, and what cosine and sine are multiplied by."""

_READ: Mapping[str, Callable[[Any], Any]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "tuple[float, ...]": lambda values: tuple(float(value) for value in values),
}


@dataclass(frozen=True)
class RopeScaling(ABC):
    """A scaling. Its fields are those of `config.json`."""

    rope_type: ClassVar[str]

    @abstractmethod
    def scaled(self, wavelengths: np.ndarray, theta: float, context: int) -> Scaled:
        """Scales frequencies.

        Args:
            wavelengths: of the pairs, in positions per radian: float32 powers of `theta`.
            theta: base of them.
            context: longest sequence, in tokens.
        """

    @classmethod
    def read(cls, parameters: Mapping[str, Any]) -> RopeScaling:
        """Reads the scaling from its part of a `config.json`.

        Raises:
            KeyError: a field is missing.
            ValueError: a field's value is of another kind.
        """
        found = {}
        for field in fields(cls):
            value = parameters.get(field.name)
            if value is None and field.default is MISSING:
                raise KeyError(field.name)
            if value is not None:
                kind = str(field.type).removesuffix(" | None")
                try:
                    found[field.name] = _READ[kind](value)
                except (TypeError, ValueError):
                    raise ValueError(f"{cls.rope_type}: {field.name}={value!r} is no {kind}") from None
        return cls(**found)

    def written(self) -> dict[str, Any]:
        """Returns the scaling's part of a `config.json`."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
        return {"rope_type": self.rope_type, **plain}


@dataclass(frozen=True)
class LinearRope(RopeScaling):
    """All frequencies are divided by `factor` (position interpolation, Chen et al. 2023)."""

    rope_type = "linear"
    factor: float

    def scaled(self, wavelengths: np.ndarray, theta: float, context: int) -> Scaled:
        """Scales frequencies."""
        return 1 / wavelengths / np.float32(self.factor), 1.0


@dataclass(frozen=True)
class DynamicRope(RopeScaling):
    """The base grows with a sequence that is longer than ``max_position_embeddings``. No run has one: so nothing is
    scaled.
    """

    rope_type = "dynamic"
    factor: float

    def scaled(self, wavelengths: np.ndarray, theta: float, context: int) -> Scaled:
        """Returns the frequencies as they are."""
        return 1 / wavelengths, 1.0


@dataclass(frozen=True)
class Llama3Rope(RopeScaling):
    """Low frequencies are divided by `factor`, high ones kept, those between interpolated ("The Llama 3 Herd of
    Models", 2024).
    """

    rope_type = "llama3"
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def scaled(self, wavelengths: np.ndarray, theta: float, context: int) -> Scaled:
        """Scales frequencies."""
        frequency, original = 1 / wavelengths, self.original_max_position_embeddings
        low, high = self.low_freq_factor, self.high_freq_factor
        turn = 1 / frequency * (2 * math.pi)  # PyTorch divides a number by an array so
        slow = np.where(turn > original / low, frequency / self.factor, frequency)
        share = (1 / turn * original - low) / (high - low)
        smooth = (1 - share) * slow / self.factor + share * slow
        between = (turn >= original / high) & (turn <= original / low)
        return np.where(between, smooth, slow), 1.0


@dataclass(frozen=True)
class YarnRope(RopeScaling):
    """Pairs that turn seldom within the original length are divided by `factor`, those that turn often kept, and scores
    sharpened (YaRN, Peng et al. 2023).
    """

    rope_type = "yarn"
    factor: float
    original_max_position_embeddings: int
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def scaled(self, wavelengths: np.ndarray, theta: float, context: int) -> Scaled:
        """Scales frequencies."""
        pairs = len(wavelengths)
        low, high = (self._pair(turns, 2 * pairs, theta) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * pairs - 1)
        high += 0.001 * (low == high)
        kept = 1 - np.clip((np.arange(pairs, dtype=np.float32) - low) / (high - low), 0, 1)
        return 1 / (self.factor * wavelengths) * (1 - kept) + 1 / wavelengths * kept, self._sharpening

    def _pair(self, turns: float, width: int, theta: float) -> float:
        """Returns the pair, counted in fractions, that turns so many times within the original length."""
        return width * math.log(self.original_max_position_embeddings / (turns * 2 * math.pi)) / (2 * math.log(theta))

    @property
    def _sharpening(self) -> float:
        def by(mscale: float) -> float:
            return 1.0 if self.factor <= 1 else 0.1 * mscale * math.log(self.factor) + 1

        if self.attention_factor is not None:
            return self.attention_factor
        both = self.mscale and self.mscale_all_dim
        return by(self.mscale or 1) / by(self.mscale_all_dim or 1) if both else by(1)


@dataclass(frozen=True)
class LongRope(RopeScaling):
    """Every pair has a factor, for contexts up to the original length and beyond it (LongRoPE, Ding et al. 2024).

    transformers chooses by the sequence, so that a sequence changes its past when it grows past the original length.
    Here, as in vLLM, the longest sequence of the run chooses: what was sampled is trained with the same frequencies.
    """

    rope_type = "longrope"
    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    factor: float
    original_max_position_embeddings: int
    attention_factor: float | None = None

    def check(self, pairs: int) -> None:
        """Checks that each of so many rotating pairs has its factors.

        Raises:
            ValueError: some have none, or there are more.
        """
        for name, factors in (("short_factor", self.short_factor), ("long_factor", self.long_factor)):
            if len(factors) != pairs:
                raise ValueError(f"longrope has {len(factors)} numbers in {name}, and {pairs} pairs rotate")

    def scaled(self, wavelengths: np.ndarray, theta: float, context: int) -> Scaled:
        """Scales frequencies."""
        factors = self.long_factor if context > self.original_max_position_embeddings else self.short_factor
        sharpening = self.attention_factor
        if sharpening is None and self.factor > 1:
            sharpening = math.sqrt(1 + math.log(self.factor) / math.log(self.original_max_position_embeddings))
        return 1 / (np.asarray(factors, np.float32) * wavelengths), sharpening or 1.0


SCALINGS: Mapping[str, type[RopeScaling]] = {
    scaling.rope_type: scaling for scaling in (LinearRope, DynamicRope, YarnRope, LongRope, Llama3Rope)
}
"""The scalings by the ``rope_type`` of `config.json`."""
