"""Metrics of a batch, computed before it is trained."""

from __future__ import annotations

import numpy as np

from rljax.ledger.leases import LeasedBatch
from rljax.rollout.episode_metrics import episode_sums


def batch_metrics(batch: LeasedBatch) -> dict[str, float]:
    """Computes rewards, lengths and staleness of a batch; staleness in steps, over sampled tokens, those too that a
    mask leaves out. ``train/<taskset>/…`` names what its groups come from: an explorer may serve sets that this process
    does not know. Reused groups count in metrics of training (tokens, staleness), and not in those of generation, which
    counted them when they were new. A batch of demonstrations alone has no reward, response or staleness.
    """
    if not batch.groups:
        return {"batch/reused_groups": 0.0, "tokens/sampled": 0.0}
    members = [trajectory for group in batch.groups for trajectory in group.trajectories]
    rewards = np.array([m.reward for m in members], np.float64)
    lengths = np.array([m.loss_mask.sum() for m in members], np.float64)
    trained = [*members, *(trajectory for group in batch.reused for trajectory in group.trajectories)]
    versions = np.concatenate([m.versions[m.loss_mask] for m in trained])
    staleness = batch.step - versions
    flat = [len({t.reward for t in group.trajectories}) < 2 for group in batch.groups]
    values = {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std()),
        "reward/flat_groups": float(np.mean(flat)),
        "staleness/mean": float(staleness.mean()) if len(staleness) else 0.0,
        "staleness/max": float(staleness.max()) if len(staleness) else 0.0,
        "response/mean_tokens": float(lengths.mean()),
        "response/max_tokens": float(lengths.max()),
        "response/cut_off": float(np.mean([m.cut_off for m in members])),
        "response/mixed_versions": float(np.mean([len(np.unique(m.versions[m.loss_mask])) > 1 for m in members])),
        "batch/reused_groups": float(len(batch.reused)),
        "tokens/sampled": float(len(versions)),
        "tokens/all": float(sum(len(m.token_ids) for m in trained)),
        "rollout/retries": float(sum(m.retries for m in members)),
    }
    for taskset in sorted({group.task.taskset for group in batch.groups}):
        mine = [group.rewards.mean() for group in batch.groups if group.task.taskset == taskset]
        values[f"train/{taskset}/reward"] = float(np.mean(mine))
        values[f"train/{taskset}/groups"] = float(len(mine))
        played = [t for group in batch.groups if group.task.taskset == taskset for t in group.trajectories]
        values[f"train/{taskset}/tokens"] = float(np.mean([t.loss_mask.sum() for t in played]))
        values[f"train/{taskset}/solved"] = float(np.mean([t.reward >= 1 for t in played]))
        episodes = [t for t in played if "success" in t.metrics]
        values |= {f"train/{taskset}/{n}": total / len(episodes) for n, total in episode_sums(episodes).items()}
    for part in sorted({part for m in members for part in m.reward_parts}):
        values[f"reward/{part}"] = float(np.mean([m.reward_parts.get(part, 0.0) for m in members]))
    return values


def batch_histograms(batch: LeasedBatch) -> dict[str, np.ndarray]:
    """Returns rewards, sampled tokens, and staleness in steps, of the batch's new trajectories, ``[trajectories]``
    each; one is as stale as its oldest token. A name without values, as where all is imitated, is left out.
    """
    members = [trajectory for group in batch.groups for trajectory in group.trajectories]
    oldest = [member.versions[member.loss_mask].min() for member in members if member.loss_mask.any()]
    found = {
        "batch/rewards": np.array([member.reward for member in members], np.float64),
        "batch/response_tokens": np.array([member.loss_mask.sum() for member in members], np.float64),
        "batch/staleness": batch.step - np.array(oldest, np.float64),
    }
    return {name: values for name, values in found.items() if values.size}
