"""The stages of shaping and the estimators written down once more, as definitions in plain Python: no numpy, one value
at a time, nothing shared with the code under test but its types.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rljax.config.schema import AlgorithmConfig
from rljax.trajectory import Group, Trajectory

EPS = 1e-6


def mean(xs: Sequence[float]) -> float:
    return math.fsum(xs) / len(xs)


def std(xs: Sequence[float]) -> float:
    if len(xs) < 2:
        return 0.0
    return math.sqrt(math.fsum((x - mean(xs)) ** 2 for x in xs) / (len(xs) - 1))


@dataclass
class Member:
    """One trajectory and what becomes of its rewards."""

    group: int
    tag: str
    of: Trajectory
    reward: float
    turns: list[float]

    @property
    def sampled(self) -> list[int]:
        return [t for t, on in enumerate(self.of.loss_mask.tolist()) if on]


def members_of(groups: Sequence[Group]) -> list[Member]:
    return [
        Member(g, one.task.taskset, t, float(t.reward), [float(r) for r in t.turn_rewards])
        for g, one in enumerate(groups)
        for t in one.trajectories
    ]


def turns_of(member: Member) -> list[float]:
    count = len(member.of.turns)
    if member.turns or count == 0:
        return member.turns
    return [0.0] * (count - 1) + [member.reward]


def penalty(t: Trajectory, c: AlgorithmConfig, limit: int) -> float:
    lengths = [int(b) - int(a) for a, b in t.turns] or [0]
    assert c.overlong_buffer is not None
    start = limit - c.overlong_buffer
    if max(lengths) <= start:
        return 0.0
    if max(lengths) >= limit:
        return c.overlong_penalty
    return c.overlong_penalty * (max(lengths) - start) / c.overlong_buffer


def pool(scope: str, me: Member, everyone: Sequence[Member], scores: Sequence[float], seen: Sequence[float]) -> list:
    if scope == "running":
        return [*seen, *scores]
    belongs = {"group": lambda o: o.group == me.group, "tag": lambda o: o.tag == me.tag, "batch": lambda o: True}
    return [s for o, s in zip(everyone, scores, strict=True) if belongs[scope](o)]


def shape(ms: Sequence[Member], c: AlgorithmConfig, seen: Sequence[float], limit: int) -> None:
    """Stages 1 to 3."""
    scores = [m.reward - (penalty(m.of, c, limit) if c.overlong == "penalty" else 0.0) for m in ms]
    for m, score in zip(ms, scores, strict=True):
        new, scale = score, 1.0
        if c.norm_mean is not None:
            new -= mean(pool(c.norm_mean, m, ms, scores, seen))
        if c.norm_std is not None:
            spread = std(pool(c.norm_std, m, ms, scores, seen))
            if spread > EPS:
                scale = 1 / (spread + EPS)
            elif c.norm_mean is not None:
                scale = 0.0
        new *= scale
        if c.reward_clip is not None:
            new = max(-c.reward_clip, min(c.reward_clip, new))
        if m.turns:
            m.turns = [r * scale for r in m.turns]
            m.turns[-1] += new - scale * m.of.reward
        m.reward = new


def token_rewards(m: Member, cost: Sequence[float]) -> list[float]:
    """By sampled token. A turn's reward is its last token's, or of the nearest token before it, or of the first."""
    rewards = [-cost[t] for t in m.sampled]
    for (_, end), reward in zip(m.of.turns.tolist(), turns_of(m), strict=True):
        before = [i for i, t in enumerate(m.sampled) if t < end]
        if rewards:
            rewards[before[-1] if before else 0] += reward
    return rewards


def by_sampled_tokens(
    ms: Sequence[Member], c: AlgorithmConfig, costs: Sequence[Sequence[float]], values: Sequence[Sequence[float]]
) -> tuple[list[list[float]], list[list[float]]]:
    """Advantages and returns of the token-level estimators, by sampled token."""
    rewards = [token_rewards(m, cost) for m, cost in zip(ms, costs, strict=True)]
    spread = std([r for rs in rewards for r in rs])
    if c.whiten_rewards and spread > EPS:
        rewards = [[r / (spread + EPS) for r in rs] for rs in rewards]
    if c.adv_estimator == "gae":
        advantages = []
        for m, rs, vs in zip(ms, rewards, values, strict=True):
            v = [vs[t] for t in m.sampled] + [0.0]
            deltas = [r + c.advantage.gamma * v[i + 1] - v[i] for i, r in enumerate(rs)]
            n = len(deltas)
            advantages.append(
                [
                    sum((c.advantage.gamma * c.advantage.lambd) ** (j - i) * deltas[j] for j in range(i, n))
                    for i in range(n)
                ]
            )
        returns = [
            [a + vs[t] for a, t in zip(of, m.sampled, strict=True)]
            for m, of, vs in zip(ms, advantages, values, strict=True)
        ]
        return advantages, returns
    returns = [
        [sum(c.advantage.gamma ** (j - i) * rs[j] for j in range(i, len(rs))) for i in range(len(rs))] for rs in rewards
    ]
    if c.adv_estimator == "reinforce":
        return returns, returns
    every = [r for rs in returns for r in rs]
    return [[(r - mean(every)) / (std(every) + EPS) for r in rs] for rs in returns], returns


def of_group(name: str, reward: float, rewards: Sequence[float], c: AlgorithmConfig) -> float:
    """Advantage of one member of a group."""
    k = len(rewards)
    if name in ("dr_grpo", "opmd_mean"):
        return reward - mean(rewards)
    if name == "opmd_logavgexp":
        return reward - c.advantage.tau * math.log(math.fsum(math.exp(r / c.advantage.tau) for r in rewards) / k)
    if k == 1:
        return 0.0
    if name == "rloo":
        return reward - (math.fsum(rewards) - reward) / (k - 1)
    return (reward - mean(rewards)) / (std(rewards) + EPS)


def advantages(
    groups: Sequence[Group],
    c: AlgorithmConfig,
    kl: Sequence[Sequence[float]],
    beta: float,
    values: Sequence[Sequence[float]],
    seen: Sequence[float],
    step: int,
    limit: int,
) -> tuple[list[list[float]], list[list[bool]], list[list[float]]]:
    """Advantages, what is trained, and returns (token-level estimators only), by token."""
    ms = members_of(groups)
    keep = []
    for m in ms:
        dropped = c.overlong == "mask" and m.of.finish_reason in ("length", "sequence_length")
        fresh = [c.drop_staler_than is None or step - int(v) <= c.drop_staler_than for v in m.of.versions]
        keep.append([bool(on) and f and not dropped for on, f in zip(m.of.loss_mask, fresh, strict=True)])
    shape(ms, c, seen, limit)
    costs = [[beta * float(x) for x in one] for one in kl]
    result, returns = [[0.0] * len(m.of.loss_mask) for m in ms], [[0.0] * len(m.of.loss_mask) for m in ms]
    if c.adv_estimator in ("reinforce", "reinforce++", "gae"):
        found = by_sampled_tokens(ms, c, costs, values)
        for laid, given in zip((result, returns), found, strict=True):
            for row, m, of in zip(laid, ms, given, strict=True):
                for t, value in zip(m.sampled, of, strict=True):
                    row[t] = value
    elif c.adv_estimator == "agentic_reinforce":
        for row, m, cost in zip(result, ms, costs, strict=True):
            spans = m.of.turns.tolist()
            earned = [r - math.fsum(cost[a:b]) for (a, b), r in zip(spans, turns_of(m), strict=True)]
            for k, (a, b) in enumerate(spans):
                row[a:b] = [sum(c.advantage.gamma ** (j - k) * earned[j] for j in range(k, len(earned)))] * (b - a)
    else:
        for row, m, cost in zip(result, ms, costs, strict=True):
            own = of_group(c.adv_estimator, m.reward, [o.reward for o in ms if o.group == m.group], c)
            for t in m.sampled:
                row[t] = own - math.fsum(cost[s] for s in m.sampled if s >= t)
    finish(result, keep, c)
    return result, keep, returns


def finish(result: list[list[float]], keep: Sequence[Sequence[bool]], c: AlgorithmConfig) -> None:
    """Stage 7."""
    trained = [a for row, on in zip(result, keep, strict=True) for a, k in zip(row, on, strict=True) if k]
    if c.whiten_advantages and len(trained) > 1:
        middle, spread = mean(trained), std(trained) + EPS if std(trained) > EPS else 1.0
        for row, on in zip(result, keep, strict=True):
            row[:] = [(a - middle) / spread if k else 0.0 for a, k in zip(row, on, strict=True)]
    if c.advantage_clip is not None:
        for row in result:
            row[:] = [max(-c.advantage_clip, min(c.advantage_clip, a)) for a in row]


def weights(groups: Sequence[Group], keep: Sequence[Sequence[bool]], c: AlgorithmConfig) -> list[float]:
    ms = members_of(groups)
    lengths = [len(m.sampled) for m, on in zip(ms, keep, strict=True) if any(on)]
    raw = []
    for m, on in zip(ms, keep, strict=True):
        weight = float(any(on))
        if c.difficulty_loss_weight:
            solved = mean([o.reward for o in ms if o.group == m.group])
            weight *= 0.5 + 1.5 * max(0.0, min(1.0, 1 - solved))
        if c.length_loss_weight and any(on):
            width = max(lengths) - min(lengths)
            weight *= 1.5 - ((len(m.sampled) - min(lengths)) / width if width else 0.0)
        raw.append(weight)
    total, count = math.fsum(raw), len(lengths)
    return [w * count / total if count else 0.0 for w in raw]
