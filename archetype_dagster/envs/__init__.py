"""Gymnasium environments on the shared cost tables, one at a time and thousands per call."""

from archetype_dagster.envs.backtest_env import BacktestEnv, MultiLegBacktestEnv
from archetype_dagster.envs.batched import Advance, BatchedTradingEnv, Step
from archetype_dagster.envs.hierarchical_vector import ArchetypeSelectionVectorEnv, RefinementVectorEnv
from archetype_dagster.envs.refinement_env import RefinementEnv
from archetype_dagster.envs.registration import ENVIRONMENT_IDS
from archetype_dagster.envs.rewards import RewardTable, reward_table
from archetype_dagster.envs.selection_env import ArchetypeSelectionEnv
from archetype_dagster.envs.vector import BacktestVectorEnv, BatchedTradingVectorEnv, MultiLegBacktestVectorEnv
from archetype_dagster.envs.windows import LookbackWindows

__all__ = [
    "ENVIRONMENT_IDS",
    "Advance",
    "ArchetypeSelectionEnv",
    "ArchetypeSelectionVectorEnv",
    "BacktestEnv",
    "BacktestVectorEnv",
    "BatchedTradingEnv",
    "BatchedTradingVectorEnv",
    "LookbackWindows",
    "MultiLegBacktestEnv",
    "MultiLegBacktestVectorEnv",
    "RefinementEnv",
    "RefinementVectorEnv",
    "RewardTable",
    "Step",
    "reward_table",
]
