"""The leak check of fitted baselines: changing the future changes no action before it."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from archetype_dagster.backtest.leaks import LeakReport, TracedRows, check_no_lookahead
from archetype_dagster.backtest.tracing import newest_horizons
from archetype_dagster.baselines.strategy import Strategy
from archetype_dagster.market.feature_table import build_feature_table
from archetype_dagster.market.scaler import FeatureScaler
from archetype_dagster.settings import Settings


def check_strategies(
    bars: pl.DataFrame,
    settings: Settings,
    pair: str,
    scaler: FeatureScaler,
    strategies: Mapping[str, Strategy],
) -> LeakReport:
    """Perturb everything after random times, from bars on, and compare every action before them bit by bit.

    Args:
        bars: bars of the pair, segmented; the end of the longest segment is used.
        settings: the run's settings; `evaluation.leak_check_cuts` random times are tried.
        pair: traded pair.
        scaler: fitted on the training split.
        strategies: fitted baselines by name.

    Raises:
        MarketDataError: no segment that holds one horizon after its warm-up.
    """

    def actions(changed: pl.DataFrame) -> dict[str, TracedRows]:
        dataset = build_feature_table(changed, settings, pair, scaler=scaler).dataset(settings)
        return {
            name: TracedRows(dataset.timestamps, strategy.actions(dataset)) for name, strategy in strategies.items()
        }

    return check_no_lookahead(
        actions, newest_horizons(bars, settings), cuts=settings.evaluation.leak_check_cuts, seed=settings.seed
    )
