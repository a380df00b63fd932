"""The trained policy on the newest bars, without training again, and how far those are from what it learned from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from archetype_dagster.artifacts import write_json
from archetype_dagster.backtest.evaluation import Evaluation, evaluate
from archetype_dagster.backtest.policy import TradingPolicy, decide
from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.drift import feature_drift, same_use_odds, stability_index
from archetype_dagster.market.feature_table import FeatureTable, build_feature_table
from archetype_dagster.market.features import FEATURE_NAMES
from archetype_dagster.market.splits import split_dataset
from archetype_dagster.settings import Settings
from archetype_dagster.types import IndexArray, Progress

DRIFT_FILE: Final = "feature_drift.parquet"
FACTS_FILE: Final = "recent.json"


@dataclass(frozen=True)
class RecentEvaluation:
    """A policy on the newest bars.

    Attributes:
        evaluation: the policy, its parts and its bounds on them.
        settings: the run's settings, with these bars in place of the test split.
        drift: the features' distances from the training split; see `feature_drift`.
        training_usage: int64 (K,), training horizons for which each archetype is chosen.
        newest_bar: end of the newest bar.
    """

    evaluation: Evaluation
    settings: Settings
    drift: pl.DataFrame
    training_usage: IndexArray
    newest_bar: datetime

    def save(self, directory: Path) -> None:
        """Write the drift and the facts into an existing folder."""
        usage = self.evaluation.code_usage
        self.drift.write_parquet(directory / DRIFT_FILE)
        facts = {
            "first_bar": self.settings.splits.test_start.isoformat(),
            "newest_bar": self.newest_bar.isoformat(),
            "training_usage": self.training_usage.tolist(),
            "recent_usage": usage.tolist(),
            "usage_psi": stability_index(self.training_usage, usage),
            "usage_odds": same_use_odds(self.training_usage, usage),
        }
        write_json(directory / FACTS_FILE, facts)


def evaluate_recent(
    bars: pl.DataFrame,
    trained: FeatureTable,
    policy: TradingPolicy,
    settings: Settings,
    pair: str,
    *,
    progress: Progress | None = None,
) -> RecentEvaluation:
    """Trade the newest `operations.recent_days` of bars, as far back as the test split begins.

    Args:
        bars: all bars of the pair there are now, segmented.
        trained: the feature table that the policy was trained on; its scaler is used, its training rows compared.
        policy: the frozen phases.
        settings: the run's settings.
        pair: traded pair.
        progress: told after each variant.

    Raises:
        MarketDataError: no bar at or after the beginning of the test split, or too few for a horizon.
    """
    splits = settings.splits
    newest: datetime = bars["timestamp"][-1]
    if newest < splits.test_start:
        raise MarketDataError(
            f"{pair} has no bar since {splits.test_start:%Y-%m-%d %H:%M}, where the test split begins; "
            f"the newest is {newest:%Y-%m-%d %H:%M}"
        )
    end = newest + timedelta(minutes=settings.market.bar_minutes)
    start = max(splits.test_start, end - timedelta(days=settings.operations.recent_days))
    recent = settings.changed({"splits.test_start": start, "splits.test_end": end})
    table = build_feature_table(bars, recent, pair, scaler=trained.scaler)
    evaluation = evaluate(bars, table, policy, recent, pair, progress=progress)
    training = split_dataset(trained.dataset(settings), splits, sealed=False).train
    chosen = decide(policy.without_refinement(), training).codes
    return RecentEvaluation(
        evaluation=evaluation,
        settings=recent,
        drift=feature_drift(
            _features(trained, splits.train_start, splits.train_end), _features(table, start, end), FEATURE_NAMES
        ),
        training_usage=np.bincount(chosen, minlength=evaluation.num_codes).astype(np.int64),
        newest_bar=newest,
    )


def _features(table: FeatureTable, start: datetime, end: datetime) -> np.ndarray:
    inside = table.features.filter(pl.col("timestamp").is_between(start, end, closed="left"))
    return inside.select(FEATURE_NAMES).to_numpy()
