"""Everything that says how far a ledger's result can be trusted, in one object for the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from archetype_dagster.backtest.ledger import Ledger
from archetype_dagster.backtest.performance import bars_per_year, path_returns, path_until_ruin
from archetype_dagster.backtest.statistics.bootstrap import (
    Comparison,
    Interval,
    aligned_returns,
    bootstrap_intervals,
    compare_paths,
)
from archetype_dagster.backtest.statistics.overfitting import Overfitting, probability_of_overfitting
from archetype_dagster.backtest.statistics.sharpe import (
    SharpeEstimate,
    deflated_sharpe,
    expected_maximum_sharpe,
    minimum_track_record,
    probabilistic_sharpe,
    sharpe_estimate,
    trial_variance,
)
from archetype_dagster.settings import StatisticsSettings
from archetype_dagster.types import JsonDict


@dataclass(frozen=True)
class SharpeEvidence:
    """The evidence behind a Sharpe ratio; the plain figures take returns as independent, the robust ones do not.

    Attributes:
        estimate: the ratio, its moments and standard errors, per period.
        probabilistic: probability that the true ratio is positive.
        probabilistic_robust: the same with the robust error.
        trials: number of things tried.
        expected_maximum: annual Sharpe ratio that the best of that many useless trials is expected to show.
        deflated: probability that the true ratio is above it.
        deflated_robust: the same with the robust error.
        minimum_bars: bars before the ratio counts as positive at the settings' confidence; None where it is not
            positive, or the confidence is one half or less.
    """

    estimate: SharpeEstimate
    probabilistic: float | None
    probabilistic_robust: float | None
    trials: int
    expected_maximum: float
    deflated: float | None
    deflated_robust: float | None
    minimum_bars: float | None

    def as_dict(self) -> JsonDict:
        """The numbers by name, ready for JSON."""
        return {**vars(self), "estimate": self.estimate.as_dict()}


@dataclass(frozen=True)
class Certainty:
    """How far a result can be trusted.

    Attributes:
        bars: number of per-bar returns.
        periods_per_year: n of the annual figures.
        samples: resampled paths.
        confidence: coverage of the intervals.
        intervals: interval of each of the six metrics.
        sharpe: evidence behind the Sharpe ratio; None where it is undefined.
        comparisons: the ledger against each benchmark.
        overfitting: of choosing among the trials; None for fewer than two ledgers of trials.
    """

    bars: int
    periods_per_year: float
    samples: int
    confidence: float
    intervals: dict[str, Interval]
    sharpe: SharpeEvidence | None
    comparisons: dict[str, Comparison]
    overfitting: Overfitting | None

    def as_dict(self) -> JsonDict:
        """The numbers by name, ready for JSON."""
        return {
            **vars(self),
            "intervals": {name: interval.as_dict() for name, interval in self.intervals.items()},
            "sharpe": None if self.sharpe is None else self.sharpe.as_dict(),
            "comparisons": {name: comparison.as_dict() for name, comparison in self.comparisons.items()},
            "overfitting": None if self.overfitting is None else self.overfitting.as_dict(),
        }


def certainty(
    ledger: Ledger,
    *,
    settings: StatisticsSettings,
    seed: int,
    benchmarks: Mapping[str, Ledger] | None = None,
    trials: Mapping[str, Ledger] | None = None,
    trial_sharpes: Iterable[float | None] | None = None,
    periods_per_year: float | None = None,
) -> Certainty:
    """Intervals, Sharpe evidence, comparisons and the probability of overfitting of one ledger.

    Args:
        ledger: the account to judge.
        settings: the statistics section.
        seed: names the random streams; same inputs and seed, same numbers.
        benchmarks: accounts on the same bars to compare with, e.g. buy and hold.
        trials: accounts on the same bars of everything that was tried, the judged one among them: seeds,
            sweep points, variants. Two or more give the probability of overfitting.
        trial_sharpes: annual Sharpe ratios of everything that was tried, as in `Performance.sharpe`, where
            more was tried than there are ledgers of; None takes those of `trials`, and one trial without them.
        periods_per_year: n; None takes it from the bars' own clock.

    Raises:
        ValueError: ledgers of other bars, or groups too short to purge (`probability_of_overfitting`).
    """
    per_year = bars_per_year(ledger.timestamps) if periods_per_year is None else periods_per_year
    accounts = trials or {}
    if trial_sharpes is None:
        trial_sharpes = [account.performance(per_year).sharpe for account in accounts.values()]
    path = ledger.net_value_path
    returns = path_returns(path_until_ruin(path))
    estimate = sharpe_estimate(
        returns, lags=None if settings.hac_lags is None else min(settings.hac_lags, len(returns) - 1)
    )
    return Certainty(
        bars=len(returns),
        periods_per_year=per_year,
        samples=settings.bootstrap_samples,
        confidence=settings.confidence,
        intervals=bootstrap_intervals(path, settings=settings, periods_per_year=per_year, seed=seed),
        sharpe=None if estimate is None else _evidence(estimate, list(trial_sharpes), per_year, settings.confidence),
        comparisons={
            name: compare_paths(path, other.net_value_path, settings=settings, periods_per_year=per_year, seed=seed)
            for name, other in (benchmarks or {}).items()
        },
        overfitting=_overfitting(accounts, settings) if len(accounts) > 1 else None,
    )


def _evidence(
    estimate: SharpeEstimate, trial_sharpes: list[float | None], per_year: float, confidence: float
) -> SharpeEvidence:
    trials = max(1, len(trial_sharpes))
    variance = trial_variance(trial_sharpes) / per_year
    plain, robust = (
        (
            probabilistic_sharpe(estimate, robust=allow),
            deflated_sharpe(estimate, trials=trials, variance=variance, robust=allow),
        )
        for allow in (False, True)
    )
    return SharpeEvidence(
        estimate=estimate,
        probabilistic=plain[0],
        probabilistic_robust=robust[0],
        trials=trials,
        expected_maximum=expected_maximum_sharpe(trials, variance) * float(np.sqrt(per_year)),
        deflated=plain[1],
        deflated_robust=robust[1],
        minimum_bars=minimum_track_record(estimate, confidence=confidence, robust=True) if confidence > 0.5 else None,
    )


def _overfitting(trials: Mapping[str, Ledger], settings: StatisticsSettings) -> Overfitting:
    return probability_of_overfitting(
        aligned_returns(*(trial.net_value_path for trial in trials.values())).T,
        groups=settings.overfitting_groups,
        test_groups=settings.overfitting_test_groups,
        purge_bars=settings.purge_bars,
        embargo_bars=settings.embargo_bars,
    )
