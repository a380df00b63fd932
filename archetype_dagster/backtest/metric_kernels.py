"""The arithmetic of the six metrics, on many paths at once: one formula for a ledger and for its resamples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from archetype_dagster.types import BoolArray, FloatArray

# A return V_t / V_{t-1} - 1 is a rounded number near 1 less 1: a deviation below some units in the last place is noise.
_RESIDUE: Final = 64 * np.finfo(np.float64).eps

Alive = BoolArray | Literal[True]


@dataclass(frozen=True)
class MetricArrays:
    """The six metrics of B paths, float64 (B,) each, as fractions; NaN where a metric is undefined.

    The names are those of `Performance`, which says what each metric is.
    """

    total_return: FloatArray
    annual_volatility: FloatArray
    max_drawdown: FloatArray
    sharpe: FloatArray
    calmar: FloatArray
    sortino: FloatArray


METRICS: Final = tuple(MetricArrays.__dataclass_fields__)


def metric_arrays(
    returns: FloatArray, wealth: FloatArray, *, start: float, periods_per_year: float, alive: Alive = True
) -> MetricArrays:
    """Metrics of B paths of T returns (section "Metrics" of the paper's setup).

    Args:
        returns: float64 (B, T), r_t = V_t / V_{t-1} - 1.
        wealth: float64 (B, T), net value after each return, quote units or a multiple of them.
        start: V_1, net value before the first return, in the unit of `wealth`; drawdowns start from it.
        periods_per_year: n.
        alive: bool (B, T), returns that belong to the path; False after ruin, where returns and wealth are 0.
    """
    mean, deviation = mean_and_deviation(returns, alive)
    residue = _residue(returns)
    downside = np.sqrt(np.mean(np.minimum(returns, 0) ** 2, axis=1, where=alive))
    downside[downside <= residue] = 0.0
    # A path that outgrows float64 has no return and no drawdown to speak of: undefined, as NaN.
    with np.errstate(over="ignore", invalid="ignore"):
        peak = np.maximum(np.maximum.accumulate(wealth, axis=1), start)
        drawdown = np.maximum((1 - wealth / peak).max(axis=1), 0.0)
        total = wealth[:, -1] / start - 1
    drawdown[drawdown <= residue] = 0.0
    volatility = deviation * np.sqrt(periods_per_year)
    sharpe = ratio(mean, deviation) * np.sqrt(periods_per_year)
    # Where the Sharpe ratio exists, the identity ACR = ASR AVOL / MDD holds to the last bit.
    annual_mean = np.where(np.isnan(sharpe), mean * periods_per_year, sharpe * volatility)
    return MetricArrays(
        total_return=np.where(np.isfinite(total), total, np.nan),
        annual_volatility=volatility,
        max_drawdown=drawdown,
        sharpe=sharpe,
        calmar=ratio(annual_mean, drawdown),
        sortino=ratio(mean, downside) * np.sqrt(periods_per_year),
    )


def mean_and_deviation(returns: FloatArray, alive: Alive = True) -> tuple[FloatArray, FloatArray]:
    """Mean and population deviation (ddof = 0) of each row of (B, T) returns, float64 (B,) each.

    A deviation that is only float residue is zero. `alive` is that of `metric_arrays`.
    """
    deviation = returns.std(axis=1, where=alive)
    deviation[deviation <= _residue(returns)] = 0.0
    return np.asarray(returns.mean(axis=1, where=alive)), np.asarray(deviation)


def ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """numerator / denominator, NaN where the denominator is zero or not a number."""
    out = np.full_like(numerator, np.nan)
    return np.asarray(np.divide(numerator, denominator, out=out, where=denominator > 0))


def defined(value: float) -> float | None:
    """The value, or None for the NaN of an undefined metric."""
    return None if np.isnan(value) else float(value)


def _residue(returns: FloatArray) -> FloatArray:
    return np.asarray(_RESIDUE * (1 + np.maximum(returns.max(axis=1), -returns.min(axis=1))))
