"""Environments on the shared cost tables."""

from archetype_dagster.envs.batched import BatchedTradingEnv, Step
from archetype_dagster.envs.rewards import RewardTable, reward_table
from archetype_dagster.envs.windows import LookbackWindows

__all__ = ["BatchedTradingEnv", "LookbackWindows", "RewardTable", "Step", "reward_table"]
