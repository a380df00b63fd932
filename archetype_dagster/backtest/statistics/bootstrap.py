"""How far the six metrics, and the lead over another path, could have been from what was measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from archetype_dagster.backtest.metric_kernels import (
    METRICS,
    Alive,
    MetricArrays,
    defined,
    mean_and_deviation,
    metric_arrays,
    ratio,
)
from archetype_dagster.backtest.performance import (
    check_periods_per_year,
    path_returns,
    path_until_ruin,
    performance,
)
from archetype_dagster.backtest.statistics.resampling import block_length, resampled
from archetype_dagster.seeding import numpy_generator
from archetype_dagster.settings import StatisticsSettings
from archetype_dagster.types import FloatArray, JsonDict


@dataclass(frozen=True)
class Interval:
    """A measured value between two percentiles of its resamples.

    Attributes:
        low: lower end, the (1 - confidence) / 2 quantile of the defined resamples; None where there is none.
        estimate: value on the path itself; None where it is undefined.
        high: upper end.
        defined_share: share of resamples in which the value is defined.
    """

    low: float | None
    estimate: float | None
    high: float | None
    defined_share: float

    def as_dict(self) -> JsonDict:
        """The numbers by name, ready for JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class Comparison:
    """One path against another on the same bars, resampled with the same blocks.

    Attributes:
        sharpe: annual Sharpe ratio of the path less that of the other.
        annual_mean: mean(r) n of the path less that of the other, a fraction a year.
        sharpe_ahead: share of resamples with the higher Sharpe ratio, of those where both have one; None without any.
        mean_ahead: share of resamples with the higher mean return.
        block_bars: mean block length.
    """

    sharpe: Interval
    annual_mean: Interval
    sharpe_ahead: float | None
    mean_ahead: float
    block_bars: float

    def as_dict(self) -> JsonDict:
        """The numbers by name, ready for JSON."""
        return {**vars(self), "sharpe": self.sharpe.as_dict(), "annual_mean": self.annual_mean.as_dict()}


def bootstrap_intervals(
    net_value: ArrayLike, *, settings: StatisticsSettings, periods_per_year: float, seed: int
) -> dict[str, Interval]:
    """Percentile intervals of the six metrics by a stationary block bootstrap of the per-bar returns.

    A resample that holds a return of -1 is ruined there, as a ledger would be: total return -1,
    drawdown 1, ratios of the returns up to it. Undefined metrics are counted and left out of the
    percentiles, never infinite.

    Args:
        net_value: (T,) net value in quote units, T >= 2, starting at the initial capital V_1.
        settings: the statistics section.
        periods_per_year: n of the metrics.
        seed: names the stream; same seed, same intervals.

    Returns:
        An interval by metric, named as in `Performance`.

    Raises:
        ValueError: as `performance`.
    """
    measured = performance(net_value, periods_per_year=periods_per_year).as_dict()
    returns = path_returns(path_until_ruin(net_value))
    block = block_length(returns[None], settings)
    rng = numpy_generator(seed, "bootstrap")
    chunks = [
        _resampled_metrics(rows, periods_per_year)
        for (rows,) in resampled(returns[None], samples=settings.bootstrap_samples, block=block, rng=rng)
    ]
    return {
        name: _interval(np.concatenate([getattr(chunk, name) for chunk in chunks]), measured[name], settings.confidence)
        for name in METRICS
    }


def compare_paths(
    net_value: ArrayLike,
    other: ArrayLike,
    *,
    settings: StatisticsSettings,
    periods_per_year: float,
    seed: int,
) -> Comparison:
    """Whether a path leads another by more than chance: both resampled with the same blocks.

    Both are judged over all bars of a resample: a path that meets its return of -1 there earns nothing after it, as
    the measured ones do.

    Args:
        net_value: (T,) net value in quote units, starting at the initial capital.
        other: (T,) net value of what to compare with on the same bars; a path that was ruined may be shorter.
        settings: the statistics section; `block_bars` null takes the longest block that either path asks for.
        periods_per_year: n.
        seed: names the stream; same seed, same answer.

    Raises:
        ValueError: as `performance`, or paths of different lengths none of which was ruined.
    """
    check_periods_per_year(periods_per_year)
    series = aligned_returns(net_value, other)
    block = block_length(series, settings)
    rng = numpy_generator(seed, "comparison")
    chunks = [
        [_sharpe_and_mean(rows) for rows in pair]
        for pair in resampled(series, samples=settings.bootstrap_samples, block=block, rng=rng)
    ]
    here, there = np.concatenate(chunks, axis=-1)
    measured = _sharpe_and_mean(series)
    sharpe_lead, mean_lead = here - there
    both_defined = sharpe_lead[np.isfinite(sharpe_lead)]
    per_year = (np.sqrt(periods_per_year), periods_per_year)
    sharpe, mean = (
        _interval(lead * scale, defined((one - two) * scale), settings.confidence)
        for lead, (one, two), scale in zip((sharpe_lead, mean_lead), measured, per_year, strict=True)
    )
    return Comparison(
        sharpe=sharpe,
        annual_mean=mean,
        sharpe_ahead=float(np.mean(both_defined > 0)) if len(both_defined) else None,
        mean_ahead=float(np.mean(mean_lead > 0)),
        block_bars=block,
    )


def aligned_returns(*net_values: ArrayLike) -> FloatArray:
    """Returns of several paths over the same bars, float64 (S, T); 0 after a path's ruin, when nothing is left.

    Raises:
        ValueError: as `path_until_ruin`, or a path shorter than the longest that was not ruined.
    """
    paths = [path_until_ruin(net_value) for net_value in net_values]
    length = max(len(np.asarray(net_value)) for net_value in net_values)
    aligned = np.zeros((len(paths), length - 1))
    for row, path in zip(aligned, paths, strict=True):
        if len(path) < length and path[-1] > 0:
            raise ValueError(f"paths must cover the same bars, got lengths {len(path)} and {length}")
        row[: len(path) - 1] = path_returns(path)
    return aligned


def _resampled_metrics(returns: FloatArray, periods_per_year: float) -> MetricArrays:
    alive = _alive(returns)
    returns = _zero_after_ruin(returns, alive)
    with np.errstate(over="ignore", invalid="ignore"):
        wealth = np.multiply.accumulate(1 + returns, axis=1)
    return metric_arrays(returns, wealth, start=1.0, periods_per_year=periods_per_year, alive=alive)


def _sharpe_and_mean(returns: FloatArray) -> FloatArray:
    """Per-period Sharpe ratio and mean of (B, T) returns over all bars, float64 (2, B)."""
    mean, deviation = mean_and_deviation(_zero_after_ruin(returns, _alive(returns)))
    return np.stack([ratio(mean, deviation), mean])


def _zero_after_ruin(returns: FloatArray, alive: Alive) -> FloatArray:
    return returns if alive is True else np.where(alive, returns, 0.0)


def _alive(returns: FloatArray) -> Alive:
    """bool (B, T), True up to and including a row's first return of -1 or less; plain True where there is none."""
    lost = returns <= -1
    if not lost.any():
        return True
    before = np.logical_or.accumulate(lost, axis=1)
    before[:, 1:] = before[:, :-1]
    before[:, 0] = False
    return ~before


def _interval(values: FloatArray, estimate: float | None, confidence: float) -> Interval:
    finite = values[np.isfinite(values)]
    low = high = None
    if len(finite):
        low, high = map(float, np.quantile(finite, [(1 - confidence) / 2, (1 + confidence) / 2]))
    return Interval(low, estimate, high, len(finite) / len(values))
