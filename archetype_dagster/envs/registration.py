"""The environments' names in Gymnasium's registry: importing `archetype_dagster.envs` enters them.

`archetype/BatchedTradingEnv-v0` has a vector form only.
"""

from __future__ import annotations

from typing import Final

import gymnasium as gym

_ENVS: Final = {
    "BacktestEnv": "archetype_dagster.envs.backtest_env:BacktestEnv",
    "MultiLegBacktestEnv": "archetype_dagster.envs.backtest_env:MultiLegBacktestEnv",
    "ArchetypeSelectionEnv": "archetype_dagster.envs.selection_env:ArchetypeSelectionEnv",
    "RefinementEnv": "archetype_dagster.envs.refinement_env:RefinementEnv",
    "StockTradingEnv": "archetype_dagster.envs.stock_trading_env:StockTradingEnv",
    "PortfolioAllocationEnv": "archetype_dagster.envs.portfolio_allocation_env:PortfolioAllocationEnv",
    "MarketMakingEnv": "archetype_dagster.envs.market_making_env:MarketMakingEnv",
    "OptimalExecutionEnv": "archetype_dagster.envs.optimal_execution_env:OptimalExecutionEnv",
}
_VECTOR_ENVS: Final = {
    "BacktestEnv": "archetype_dagster.envs.vector:BacktestVectorEnv",
    "MultiLegBacktestEnv": "archetype_dagster.envs.vector:MultiLegBacktestVectorEnv",
}
ENVIRONMENT_IDS: Final = tuple(f"archetype/{name}-v0" for name in _ENVS)

for _name, _place in _ENVS.items():
    gym.register(f"archetype/{_name}-v0", entry_point=_place, vector_entry_point=_VECTOR_ENVS.get(_name))
gym.register(
    "archetype/BatchedTradingEnv-v0", vector_entry_point="archetype_dagster.envs.vector:BatchedTradingVectorEnv"
)
