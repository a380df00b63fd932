"""What a Sharpe ratio is worth: its standard error, the odds that it is real, and the price of having tried others.

Everything here is per period: a Sharpe ratio is mean(r) / std(r) of the per-bar returns with ddof = 0,
never annualised. Annual ratios are these times sqrt(n).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm

from archetype_dagster.backtest.metric_kernels import mean_and_deviation
from archetype_dagster.types import FloatArray, JsonDict

_EULER_GAMMA: Final = float(np.euler_gamma)


@dataclass(frozen=True)
class SharpeEstimate:
    """A per-period Sharpe ratio and how well the returns determine it.

    Attributes:
        periods: number of returns T.
        sharpe: mean(r) / std(r).
        skewness: third standardised moment.
        kurtosis: fourth standardised moment, 3 for normal returns.
        standard_error: for independent returns of any distribution (Mertens 2002):
            sqrt((1 - skewness SR + (kurtosis - 1) / 4 SR^2) / (T - 1)).
        robust_error: the same where returns depend on each other; equal to it for `lags` 0.
        lags: autocorrelations in `robust_error`.
    """

    periods: int
    sharpe: float
    skewness: float
    kurtosis: float
    standard_error: float
    robust_error: float
    lags: int

    def as_dict(self) -> JsonDict:
        """The numbers by name, ready for JSON."""
        return dict(vars(self))


def sharpe_estimate(returns: ArrayLike, *, lags: int | None = None) -> SharpeEstimate | None:
    """The Sharpe ratio of per-bar returns with both standard errors; None where it is undefined.

    The robust error is the delta method of Lo (2002): with z = (r - mean) / std, the Sharpe ratio
    moves with the mean of z - SR / 2 (z^2 - 1), whose long-run variance is estimated with Bartlett
    weights up to `lags` (Newey and West 1987).

    Args:
        returns: (T,) per-bar returns, T >= 1, finite.
        lags: autocorrelations that count; None is floor(4 (T / 100)^(2 / 9)), T - 1 at most.

    Raises:
        ValueError: no return, not one-dimensional, not finite, or lags outside [0, T).
    """
    sample = np.asarray(returns, dtype=np.float64)
    if sample.ndim != 1 or not len(sample):
        raise ValueError(f"returns must be one-dimensional with at least one value, got shape {sample.shape}")
    if not np.isfinite(sample).all():
        raise ValueError(f"returns must be finite, got {sample[~np.isfinite(sample)][0]}")
    periods = len(sample)
    lags = min(int(4 * (periods / 100) ** (2 / 9)), periods - 1) if lags is None else lags
    if not 0 <= lags < periods:
        raise ValueError(f"lags must be at least 0 and below the {periods} returns, got lags={lags}")
    mean, deviation = (float(value[0]) for value in mean_and_deviation(sample[None]))
    if deviation == 0:
        return None
    z = (sample - mean) / deviation
    sharpe = mean / deviation
    influence = z - sharpe / 2 * (z**2 - 1)
    return SharpeEstimate(
        periods=periods,
        sharpe=sharpe,
        skewness=float(np.mean(z**3)),
        kurtosis=float(np.mean(z**4)),
        standard_error=float(np.sqrt(_long_run_variance(influence, 0) / (periods - 1))),
        robust_error=float(np.sqrt(_long_run_variance(influence, lags) / (periods - 1))),
        lags=lags,
    )


def probabilistic_sharpe(estimate: SharpeEstimate, benchmark: float = 0.0, *, robust: bool = False) -> float | None:
    """Probability that the true Sharpe ratio is above `benchmark` (Bailey and Lopez de Prado 2012).

    Phi((SR - benchmark) / standard error); None where the error is zero.

    Args:
        estimate: the measured ratio, per period.
        benchmark: per-period Sharpe ratio to beat.
        robust: take the standard error that allows for dependent returns.
    """
    error = estimate.robust_error if robust else estimate.standard_error
    return float(norm.cdf((estimate.sharpe - benchmark) / error)) if error > 0 else None


def expected_maximum_sharpe(trials: int, variance: float) -> float:
    """Expected best of `trials` Sharpe ratios whose truth is zero (Bailey and Lopez de Prado 2014).

    sqrt(variance) ((1 - g) Phi^-1(1 - 1 / N) + g Phi^-1(1 - 1 / (N e))), g Euler's constant; 0 for one trial.

    Args:
        trials: number N of independent trials.
        variance: variance of the trials' Sharpe ratios, per period.

    Raises:
        ValueError: no trial, or a variance that is negative or not finite.
    """
    if trials < 1:
        raise ValueError(f"trials must be at least 1, got trials={trials}")
    if not (np.isfinite(variance) and variance >= 0):
        raise ValueError(f"variance must be finite and not negative, got variance={variance}")
    if trials == 1:
        return 0.0
    quantiles = norm.ppf([1 - 1 / trials, 1 - 1 / (trials * np.e)])
    return float(np.sqrt(variance) * ((1 - _EULER_GAMMA) * quantiles[0] + _EULER_GAMMA * quantiles[1]))


def trial_variance(sharpes: Iterable[float | None]) -> float:
    """Sample variance (ddof = 1) of the trials' Sharpe ratios; undefined ones do not count, 0 for fewer than two."""
    defined = [sharpe for sharpe in sharpes if sharpe is not None]
    return float(np.var(defined, ddof=1)) if len(defined) > 1 else 0.0


def deflated_sharpe(estimate: SharpeEstimate, *, trials: int, variance: float, robust: bool = False) -> float | None:
    """Probability that the true Sharpe ratio is above what the best of that many useless trials would show.

    `probabilistic_sharpe` against `expected_maximum_sharpe` (Bailey and Lopez de Prado 2014).
    """
    return probabilistic_sharpe(estimate, expected_maximum_sharpe(trials, variance), robust=robust)


def minimum_track_record(
    estimate: SharpeEstimate, benchmark: float = 0.0, *, confidence: float = 0.95, robust: bool = False
) -> float | None:
    """Returns needed before the ratio is above `benchmark` with that confidence (Bailey and Lopez de Prado 2012).

    1 + (T - 1) (standard error Phi^-1(confidence) / (SR - benchmark))^2 in periods, if the returns to
    come are like those seen; None where the ratio is not above the benchmark.

    Raises:
        ValueError: a confidence outside (0.5, 1).
    """
    if not 0.5 < confidence < 1:
        raise ValueError(f"confidence must be between 0.5 and 1, got confidence={confidence}")
    if estimate.sharpe <= benchmark:
        return None
    error = estimate.robust_error if robust else estimate.standard_error
    ratio = error * norm.ppf(confidence) / (estimate.sharpe - benchmark)
    return float(1 + (estimate.periods - 1) * ratio**2)


def _long_run_variance(values: FloatArray, lags: int) -> float:
    """Newey-West long-run variance of a series of mean zero, never negative."""
    weights = 2 * (1 - np.arange(lags + 1) / (lags + 1))
    weights[0] = 1.0
    covariances = [values[lag:] @ values[: len(values) - lag] for lag in range(lags + 1)]
    return max(float(weights @ covariances) / len(values), 0.0)
