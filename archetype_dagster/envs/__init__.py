"""Gymnasium environments: on the shared cost tables, one or thousands at a time, and on plain prices."""

from archetype_dagster.envs.avellaneda_stoikov import avellaneda_stoikov_distances
from archetype_dagster.envs.backtest_env import BacktestEnv, MultiLegBacktestEnv
from archetype_dagster.envs.batched import Advance, BatchedTradingEnv, Step
from archetype_dagster.envs.execution_schedules import almgren_chriss_left, expected_shortfall_bps, twap_left
from archetype_dagster.envs.hierarchical_vector import ArchetypeSelectionVectorEnv, RefinementVectorEnv
from archetype_dagster.envs.history_env import HistoryEnv
from archetype_dagster.envs.market_making_env import MarketMakingEnv
from archetype_dagster.envs.optimal_execution_env import OptimalExecutionEnv
from archetype_dagster.envs.portfolio_allocation_env import PortfolioAllocationEnv
from archetype_dagster.envs.price_panel import PricePanel, generated_prices, price_panel
from archetype_dagster.envs.refinement_env import RefinementEnv
from archetype_dagster.envs.registration import ENVIRONMENT_IDS
from archetype_dagster.envs.rewards import RewardTable, reward_table
from archetype_dagster.envs.selection_env import ArchetypeSelectionEnv
from archetype_dagster.envs.stock_trading_env import StockTradingEnv
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
    "HistoryEnv",
    "LookbackWindows",
    "MarketMakingEnv",
    "MultiLegBacktestEnv",
    "MultiLegBacktestVectorEnv",
    "OptimalExecutionEnv",
    "PortfolioAllocationEnv",
    "PricePanel",
    "RefinementEnv",
    "RefinementVectorEnv",
    "RewardTable",
    "Step",
    "StockTradingEnv",
    "almgren_chriss_left",
    "avellaneda_stoikov_distances",
    "expected_shortfall_bps",
    "generated_prices",
    "price_panel",
    "reward_table",
    "twap_left",
]
