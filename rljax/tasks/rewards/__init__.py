"""Rewards: functions that score responses."""

from rljax.tasks.rewards.registry import register_reward
from rljax.tasks.rewards.reward import JudgeUnavailable, Reward, RewardError, RewardTimeout
from rljax.tasks.rewards.runner import RewardRunner

__all__ = ["JudgeUnavailable", "Reward", "RewardError", "RewardRunner", "RewardTimeout", "register_reward"]
