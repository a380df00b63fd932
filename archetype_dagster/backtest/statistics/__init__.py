"""How certain a backtest's result is, and how much of it is luck or the number of things tried."""

from archetype_dagster.backtest.statistics.bootstrap import Comparison, Interval, bootstrap_intervals, compare_paths
from archetype_dagster.backtest.statistics.certainty import Certainty, SharpeEvidence, certainty
from archetype_dagster.backtest.statistics.overfitting import Overfitting, probability_of_overfitting
from archetype_dagster.backtest.statistics.seeds import SeedSummary, seed_summary
from archetype_dagster.backtest.statistics.sharpe import (
    SharpeEstimate,
    deflated_sharpe,
    expected_maximum_sharpe,
    minimum_track_record,
    probabilistic_sharpe,
    sharpe_estimate,
    trial_variance,
)
from archetype_dagster.backtest.statistics.splits import CombinatorialSplit, combinatorial_purged_splits

__all__ = [
    "Certainty",
    "CombinatorialSplit",
    "Comparison",
    "Interval",
    "Overfitting",
    "SeedSummary",
    "SharpeEstimate",
    "SharpeEvidence",
    "bootstrap_intervals",
    "certainty",
    "combinatorial_purged_splits",
    "compare_paths",
    "deflated_sharpe",
    "expected_maximum_sharpe",
    "minimum_track_record",
    "probabilistic_sharpe",
    "probability_of_overfitting",
    "seed_summary",
    "sharpe_estimate",
    "trial_variance",
]
