"""Rewards: functions that score responses."""

from rljax.tasks.rewards.registry import register_reward
from rljax.tasks.rewards.reward import Reward, RewardError, RewardTimeout
from rljax.tasks.rewards.runner import RewardRunner

__all__ = ["Reward", "RewardError", "RewardRunner", "RewardTimeout", "register_reward"]
