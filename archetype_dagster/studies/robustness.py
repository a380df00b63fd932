"""How far the policy's result can be trusted: intervals, corrected odds, sensitivities and alignments in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from archetype_dagster.artifacts import write_json
from archetype_dagster.backtest.alignments import Alignments, alignments
from archetype_dagster.backtest.policy import TradingPolicy
from archetype_dagster.backtest.sensitivity import sensitivities
from archetype_dagster.backtest.statistics import Certainty, Overfitting, certainty, probability_of_overfitting
from archetype_dagster.market.feature_table import FeatureTable
from archetype_dagster.settings import Settings
from archetype_dagster.studies.comparison import POLICY, MethodComparison
from archetype_dagster.studies.trials import Tried, collect_trials
from archetype_dagster.types import JsonDict, Progress

ROBUSTNESS_FILE: Final = "robustness.json"
SENSITIVITIES_FILE: Final = "sensitivities.parquet"
ALIGNMENTS_FILE: Final = "alignments.parquet"
ALIGNMENT_SUMMARY_FILE: Final = "alignment_summary.parquet"


@dataclass(frozen=True)
class Robustness:
    """What speaks for and against one result.

    Attributes:
        certainty: intervals and odds on the test split, against every other method.
        trials: names of everything that was tried, seeds counted one by one.
        overfitting: of choosing among the trials judged to the end by their validation returns; None for fewer than
            two.
        sensitivities: the frozen policy under other accounts.
        alignments: the frozen policy at every beginning of its horizons.
    """

    certainty: Certainty
    trials: tuple[str, ...]
    overfitting: Overfitting | None
    sensitivities: pl.DataFrame
    alignments: Alignments

    def as_dict(self) -> JsonDict:
        """Certainty, trials and overfitting, ready for JSON."""
        return {
            **self.certainty.as_dict(),
            "trial_names": list(self.trials),
            "overfitting": None if self.overfitting is None else self.overfitting.as_dict(),
        }

    def save(self, directory: Path) -> None:
        """Write robustness.json and the tables of sensitivities and alignments into an existing folder."""
        write_json(directory / ROBUSTNESS_FILE, self.as_dict())
        self.sensitivities.write_parquet(directory / SENSITIVITIES_FILE)
        self.alignments.frame().write_parquet(directory / ALIGNMENTS_FILE)
        self.alignments.summary().write_parquet(directory / ALIGNMENT_SUMMARY_FILE)


def judge_robustness(
    bars: pl.DataFrame,
    table: FeatureTable,
    policy: TradingPolicy,
    comparison: MethodComparison,
    studies: Mapping[str, Tried],
    settings: Settings,
    pair: str,
    *,
    progress: Progress,
) -> Robustness:
    """Judge the policy's test account by everything that was tried to get it.

    Sharpe ratios are deflated by the number of runs of all studies and sweeps and their spread on the validation
    split, where choices are made; the probability of overfitting is computed from the same returns.

    Args:
        bars: all bars of the pair, segmented, that `table` was built from.
        table: features, costs and scaler.
        policy: the frozen phases.
        comparison: every method's account on the test split.
        studies: the studies and sweeps of the pair by name.
        settings: the run's settings.
        pair: traded pair.
        progress: told of the long parts.

    Raises:
        ValueError: no study, or studies judged on other validation bars.
        SettingsError: validation bars too few for the groups that overfitting is judged by.
        MarketDataError: a split without bars, or a table of other bars.
    """
    trials = collect_trials(studies)
    ledgers = {name: method.ledger for name, method in comparison.methods.items()}
    statistics = settings.statistics
    return Robustness(
        certainty=certainty(
            ledgers.pop(POLICY),
            settings=statistics,
            seed=settings.seed,
            benchmarks=ledgers,
            trial_sharpes=trials.sharpes,
            periods_per_year=settings.market.bars_per_year,
        ),
        trials=trials.names,
        overfitting=None
        if trials.returns.shape[1] < 2
        else probability_of_overfitting(
            trials.returns,
            groups=statistics.overfitting_groups,
            test_groups=statistics.overfitting_test_groups,
            purge_bars=statistics.purge_bars,
            embargo_bars=statistics.embargo_bars,
        ),
        sensitivities=sensitivities(bars, table, policy, settings, pair, progress=progress),
        alignments=alignments(bars, table, policy, settings, pair, progress=progress),
    )
