"""How far the policy's result can be trusted: intervals, corrected odds, sensitivities and alignments in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from archetype_dagster.artifacts import write_json
from archetype_dagster.backtest.alignments import Alignments, alignments
from archetype_dagster.backtest.performance import performance
from archetype_dagster.backtest.policy import TradingPolicy
from archetype_dagster.backtest.sensitivity import sensitivities
from archetype_dagster.backtest.statistics import Certainty, Overfitting, certainty, probability_of_overfitting
from archetype_dagster.market.feature_table import FeatureTable
from archetype_dagster.settings import Settings
from archetype_dagster.studies.comparison import POLICY, MethodComparison
from archetype_dagster.studies.tables import StudyTable
from archetype_dagster.types import FloatArray, JsonDict, Progress

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
        overfitting: of choosing among the trials by their validation returns; None for fewer than two.
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
    studies: Mapping[str, StudyTable],
    settings: Settings,
    pair: str,
    *,
    progress: Progress,
) -> Robustness:
    """Judge the policy's test account by everything that was tried to get it.

    Sharpe ratios are deflated by the number of runs of all studies and their spread on the validation
    split, where choices are made; the probability of overfitting is computed from the same returns.

    Args:
        bars: all bars of the pair, segmented, that `table` was built from.
        table: features, costs and scaler.
        policy: the frozen phases.
        comparison: every method's account on the test split.
        studies: the studies of the pair by name.
        settings: the run's settings.
        pair: traded pair.
        progress: told of the long parts.

    Raises:
        ValueError: studies judged on other validation bars, or bars too few for the overfitting groups.
        MarketDataError: a split without bars, or a table of other bars.
    """
    names, returns = _trials(studies)
    per_year = settings.market.bars_per_year
    sharpes = [_sharpe(column, per_year) for column in returns.T]
    ledgers = {name: method.ledger for name, method in comparison.methods.items()}
    statistics = settings.statistics
    return Robustness(
        certainty=certainty(
            ledgers.pop(POLICY),
            settings=statistics,
            seed=settings.seed,
            benchmarks=ledgers,
            trial_sharpes=sharpes,
            periods_per_year=per_year,
        ),
        trials=names,
        overfitting=None
        if len(names) < 2
        else probability_of_overfitting(
            returns,
            groups=statistics.overfitting_groups,
            test_groups=statistics.overfitting_test_groups,
            purge_bars=statistics.purge_bars,
            embargo_bars=statistics.embargo_bars,
        ),
        sensitivities=sensitivities(bars, table, policy, settings, pair, progress=progress),
        alignments=alignments(bars, table, policy, settings, pair, progress=progress),
    )


def _trials(studies: Mapping[str, StudyTable]) -> tuple[tuple[str, ...], FloatArray]:
    """Names and validation returns (T, N) of every distinct run of the studies."""
    distinct: dict[str, tuple[str, pl.Series]] = {}
    clock: pl.Series | None = None
    for study, results in studies.items():
        times = results.validation["timestamp"]
        clock = times if clock is None else clock
        if not times.equals(clock):
            raise ValueError(f"{study} was judged on other validation bars than the studies before it")
        for run, facts in results.runs.items():
            distinct.setdefault(f"{facts['key']}/{facts['account']}", (f"{study}: {run}", results.validation[run]))
    if not distinct:
        return (), np.empty((0, 0))
    names, columns = zip(*distinct.values(), strict=True)
    return names, np.stack([column.to_numpy() for column in columns], axis=1)


def _sharpe(returns: FloatArray, periods_per_year: float) -> float | None:
    path = np.concatenate([[1.0], np.cumprod(1.0 + returns)])
    return performance(path, periods_per_year=periods_per_year).sharpe
