"""The losses once more: float64 numpy, written from their formulas and not from the code.

Each is a function of logπ twice: ``x`` is differentiated, ``frozen`` is what stands under a stop-gradient. So central
differences in ``x`` are the gradient that the loss is to have. They are taken in extended precision, with a step so
small that no bound of a clip lies inside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from rljax.config.schema import AlgorithmConfig
from tests.algorithms.loss_batches import Cells

Formula = Callable[[np.ndarray, np.ndarray, Cells, Any], np.ndarray]
STEP = 1e-8


def of_span(values: np.ndarray, cells: Cells, level: str, reduce: Callable[[list[float]], float]) -> np.ndarray:
    """Every trained token gets what ``reduce`` makes of the values of its turn or sequence."""
    result = np.zeros_like(values)
    for row, place in zip(*np.nonzero(cells.mask), strict=True):
        fellows = [
            values[row, other]
            for other in np.nonzero(cells.mask[row])[0]
            if cells.segment_ids[row, other] == cells.segment_ids[row, place]
            and (level == "sequence" or cells.turn_ids[row, other] == cells.turn_ids[row, place])
            and (level != "token" or other == place)
        ]
        result[row, place] = reduce(fellows)
    return result


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def surrogate(ratio: np.ndarray, a: np.ndarray, low: float, high: float, dual: float | None) -> np.ndarray:
    loss = np.maximum(-ratio * a, -np.clip(ratio, 1 - low, 1 + high) * a)
    return loss if dual is None else np.where(a < 0, np.minimum(loss, -dual * a), loss)


def vanilla(x: np.ndarray, frozen: np.ndarray, d: Cells, c: Any) -> np.ndarray:
    return -d.advantages * x


def ppo(x: np.ndarray, frozen: np.ndarray, d: Cells, c: Any) -> np.ndarray:
    ratio = np.exp(of_span(x - d.behaviour_logprobs, d, c.ratio_level, mean))
    return surrogate(ratio, d.advantages, c.clip_low, c.clip_high, c.dual_clip)


def dapo(x: np.ndarray, frozen: np.ndarray, d: Cells, c: Any) -> np.ndarray:
    ratio = np.exp(of_span(x - d.behaviour_logprobs, d, c.ratio_level, mean))
    return surrogate(ratio, d.advantages, c.clip_low, c.clip_high, c.dual_clip)


def gspo(x: np.ndarray, frozen: np.ndarray, d: Cells, c: Any) -> np.ndarray:
    ratio = np.exp(of_span(x - d.behaviour_logprobs, d, "sequence", mean))
    return surrogate(ratio, d.advantages, c.clip_low, c.clip_high, c.dual_clip)


def tis(x: np.ndarray, frozen: np.ndarray, d: Cells, c: Any) -> np.ndarray:
    ratio = np.exp(frozen - d.behaviour_logprobs)
    return -np.minimum(np.maximum(ratio, c.low), c.high) * d.advantages * x


def cispo(x: np.ndarray, frozen: np.ndarray, d: Cells, c: Any) -> np.ndarray:
    ratio = np.exp(frozen - d.behaviour_logprobs)
    low, high = 1 - c.clip_low, 1 + c.clip_high
    loss = -np.minimum(np.maximum(ratio, low), high) * d.advantages * x
    if c.use_unified_mask:
        loss[(d.advantages > 0) & (ratio > high)] = 0
        loss[(d.advantages < 0) & (ratio < low)] = 0
    return loss


def topr(x: np.ndarray, frozen: np.ndarray, d: Cells, c: Any) -> np.ndarray:
    tapered = c.negative_weight * np.minimum(np.exp(frozen - d.behaviour_logprobs), 1)
    return -np.where(d.rewards > 0, c.positive_weight, tapered) * d.advantages * x


def kimi15(x: np.ndarray, frozen: np.ndarray, d: Cells, c: Any) -> np.ndarray:
    return -d.advantages * x + c.tau * (x - d.behaviour_logprobs) ** 2 / 2


def decoupled_ppo(x: np.ndarray, frozen: np.ndarray, d: Cells, c: Any) -> np.ndarray:
    proximal = d.proximal_logprobs
    if c.proximal_policy == "interpolate":
        share = c.proximal_interpolation
        proximal = (1 - share) * d.behaviour_logprobs + share * frozen
    weight = np.minimum(np.exp(proximal - d.behaviour_logprobs), c.behaviour_weight_cap)
    return weight * surrogate(np.exp(x - proximal), d.advantages, c.clip_low, c.clip_high, c.dual_clip)


def opmd(x: np.ndarray, frozen: np.ndarray, d: Cells, c: Any) -> np.ndarray:
    return -d.advantages * x / (1 + c.tau)


def opmd_pairwise(x: np.ndarray, frozen: np.ndarray, d: Cells, c: Any) -> np.ndarray:
    return -(d.advantages - c.tau * (d.sequence_gap - d.group_gap)) * x


def opmd_kimi(x: np.ndarray, frozen: np.ndarray, d: Cells, c: Any) -> np.ndarray:
    return -(d.advantages - c.tau * d.sequence_gap) * x


def asymre(x: np.ndarray, frozen: np.ndarray, d: Cells, c: Any) -> np.ndarray:
    return -(d.advantages - c.shift) * x


def sapo(x: np.ndarray, frozen: np.ndarray, d: Cells, c: Any) -> np.ndarray:
    tau = np.where(d.advantages > 0, c.tau_positive, c.tau_negative)
    gate = 4 / tau / (1 + np.exp(-tau * (np.exp(x - d.behaviour_logprobs) - 1)))
    return -gate * d.advantages


def sppo(x: np.ndarray, frozen: np.ndarray, d: Cells, c: Any) -> np.ndarray:
    far = np.abs(frozen - d.behaviour_logprobs) > np.log1p(c.epsilon)
    return np.where(far, 0, -d.advantages * (x - d.behaviour_logprobs))


def rec(x: np.ndarray, frozen: np.ndarray, d: Cells, c: Any) -> np.ndarray:
    ratio, a = np.exp(frozen - d.behaviour_logprobs), d.advantages
    of_sequence = np.exp(of_span(frozen - d.behaviour_logprobs, d, "sequence", mean))
    judged = of_sequence if c.clip == "gspo-one-side" else ratio
    above, below = judged > 1 + c.clip_high, judged < 1 - c.clip_low
    back = ((a > 0) & (ratio <= 1 - c.ring_low)) | ((a < 0) & (ratio >= 1 + c.ring_high))
    dropped = {
        "none": np.zeros(ratio.shape, bool),
        "one-side": ((a > 0) & above) | ((a < 0) & below),
        "gspo-one-side": ((a > 0) & above) | ((a < 0) & below),
        "two-side": above | below,
        "ring": (above | below) & ~back,
    }[c.clip]
    weight = {
        "none": 1.0,
        "importance": ratio,
        "gspo-importance": of_sequence,
        "advantage": np.exp(a / c.temperature),
    }[c.weight]
    regularizer = {"none": 0.0, "k2": (x - d.behaviour_logprobs) ** 2, "forward-kl": -x}[c.regularizer]
    return np.where(dropped, 0, -weight * a * x) + c.regularizer_coef * regularizer


def imitation(x: np.ndarray, frozen: np.ndarray, c: Any) -> np.ndarray:
    return -x * (np.exp(frozen) - np.exp(2 * frozen)) if c.phi else -x


def sft(x: np.ndarray, frozen: np.ndarray, d: Cells, c: Any) -> np.ndarray:
    return np.where(d.expert, imitation(x, frozen, c), 0)


def mix(x: np.ndarray, frozen: np.ndarray, d: Cells, c: Any) -> np.ndarray:
    mu, done = c.weight, d.updates - c.warmup_updates
    if c.schedule == "chord" and done < 0:
        mu = c.weight_peak * d.updates / c.warmup_updates
    elif c.schedule == "chord":
        share = min(done / c.decay_updates, 1)
        mu = c.weight_valley + (c.weight_peak - c.weight_valley) * np.cos(np.pi * share / 2) ** 2
    others = FORMULAS[c.variant](x, frozen, replace(d, mask=d.mask & ~d.expert), c.variant_args)
    return np.where(d.expert, mu * imitation(x, frozen, c), (1 - mu) * others)


FORMULAS: dict[str, Formula] = {
    formula.__name__: formula
    for formula in (
        vanilla, ppo, dapo, gspo, tis, cispo, topr, kimi15, decoupled_ppo, opmd, opmd_pairwise, opmd_kimi, asymre, sapo,
        sppo, rec, sft, mix,
    )
}  # fmt: skip


def value_and_gradient(cells: Cells, config: AlgorithmConfig) -> tuple[np.ndarray, np.ndarray]:
    """Loss of every trained token, and the gradient of their weighted sum by every log-probability; 0 elsewhere."""
    formula, x = FORMULAS[config.pg_variant], cells.logprobs

    def total(moved: np.ndarray) -> np.longdouble:
        return np.sum((cells.weights * formula(moved, x, cells, config.loss))[cells.mask])

    gradient = np.zeros(x.shape)
    with np.errstate(all="ignore"):
        value = np.where(cells.mask, formula(x, x, cells, config.loss), 0)
        for place in zip(*np.nonzero(cells.mask), strict=True):
            up, down = x.astype(np.longdouble), x.astype(np.longdouble)
            up[place] += STEP
            down[place] -= STEP
            gradient[place] = (total(up) - total(down)) / (2 * STEP)
    return value, gradient
