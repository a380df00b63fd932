"""The six metrics of a net-value path, and the number of periods in a year that they are scaled by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from archetype_dagster.errors import MarketDataError
from archetype_dagster.types import FloatArray, JsonDict

BARS_PER_YEAR: Final = 52_560
_YEAR: Final = np.timedelta64(365, "D")
# A return V_t / V_{t-1} - 1 is a rounded number near 1 less 1: a deviation below some units in the last place is noise.
_RESIDUE: Final = 64 * np.finfo(np.float64).eps


@dataclass(frozen=True)
class Performance:
    """The paper's six metrics as fractions (0.1 is 10 %); None where a ratio's denominator is zero.

    Attributes:
        total_return: TR = V_T / V_1 - 1; -1 after ruin.
        annual_volatility: AVOL = std(r) sqrt(n), population deviation (ddof = 0).
        max_drawdown: MDD = max over t of 1 - V_t / max_{s <= t} V_s, the peak starting at V_1; 1 after ruin.
        sharpe: ASR = mean(r) / std(r) sqrt(n).
        calmar: ACR = mean(r) n / MDD = ASR AVOL / MDD.
        sortino: ASoR = mean(r) / sqrt(mean(min(r, 0)^2)) sqrt(n).
        ruined: the net value reached zero or less and the run ended there.
    """

    total_return: float
    annual_volatility: float
    max_drawdown: float
    sharpe: float | None
    calmar: float | None
    sortino: float | None
    ruined: bool = False

    def as_dict(self) -> JsonDict:
        """The metrics by name, ready for JSON; undefined ratios are None."""
        return dict(vars(self))


def performance(net_value: ArrayLike, *, periods_per_year: float = BARS_PER_YEAR) -> Performance:
    """Metrics on r_t = V_t / V_{t-1} - 1 (section "Metrics" of the paper's setup).

    The first value <= 0 is ruin: the path ends there at zero. Deviations and drawdowns that are only
    float residue count as zero, so a constant return has no Sharpe ratio rather than a huge one.

    Args:
        net_value: (T,) net value in quote units, T >= 2, starting at the initial capital V_1.
        periods_per_year: n, periods of the path in a year; 52,560 for 10-minute bars.

    Raises:
        ValueError: fewer than two values, not one-dimensional, a non-finite value, a non-positive
            start, or a periods_per_year that is not positive and finite.
    """
    path = _checked_path(net_value)
    if not (np.isfinite(periods_per_year) and periods_per_year > 0):
        raise ValueError(f"periods_per_year must be positive and finite, got periods_per_year={periods_per_year}")
    lost = path <= 0
    ruined = bool(lost.any())
    if ruined:
        path = path[: int(lost.argmax()) + 1].copy()
        path[-1] = 0.0
    returns = path[1:] / path[:-1] - 1
    residue = _RESIDUE * (1 + float(np.abs(returns).max()))
    mean = float(returns.mean())
    deviation = _without_residue(float(returns.std()), residue)
    downside = _without_residue(float(np.sqrt(np.mean(np.minimum(returns, 0) ** 2))), residue)
    drawdown = _without_residue(float(drawdowns(path).max()), residue)
    volatility = deviation * np.sqrt(periods_per_year)
    sharpe = mean / deviation * np.sqrt(periods_per_year) if deviation else None
    # Where the Sharpe ratio exists, the identity ACR = ASR AVOL / MDD holds to the last bit.
    annual_mean = mean * periods_per_year if sharpe is None else sharpe * volatility
    return Performance(
        total_return=float(path[-1] / path[0] - 1),
        annual_volatility=float(volatility),
        max_drawdown=drawdown,
        sharpe=None if sharpe is None else float(sharpe),
        calmar=float(annual_mean / drawdown) if drawdown else None,
        sortino=float(mean / downside * np.sqrt(periods_per_year)) if downside else None,
        ruined=ruined,
    )


def mean_performance(performances: Iterable[Performance]) -> Performance:
    """Mean metrics over repeated runs; None where a ratio is undefined in any of them.

    The Calmar ratio of the row is ASR AVOL / MDD of the row's means, so that the identity holds on it
    too. `ruined` is true where any run was.

    Raises:
        ValueError: no run at all.
    """
    runs = list(performances)
    if not runs:
        raise ValueError("mean_performance needs at least one run, got 0")

    def mean(values: list[float | None]) -> float | None:
        defined = [value for value in values if value is not None]
        return float(np.mean(defined)) if len(defined) == len(values) else None

    row = Performance(
        total_return=float(np.mean([run.total_return for run in runs])),
        annual_volatility=float(np.mean([run.annual_volatility for run in runs])),
        max_drawdown=float(np.mean([run.max_drawdown for run in runs])),
        sharpe=mean([run.sharpe for run in runs]),
        calmar=None,
        sortino=mean([run.sortino for run in runs]),
        ruined=any(run.ruined for run in runs),
    )
    if row.sharpe is None or not row.max_drawdown:
        return row
    return replace(row, calmar=row.sharpe * row.annual_volatility / row.max_drawdown)


def bars_per_year(timestamps: NDArray[np.datetime64]) -> float:
    """Bars in a year of 365 days, from the bars' own clock: 52,560 for 10-minute bars.

    The bar length is the smallest step; every other step must be a whole multiple of it, i.e. missing
    bars are allowed and bars off the grid are not.

    Args:
        timestamps: datetime64[us] (T,), bar ends, strictly increasing, T >= 2.

    Raises:
        MarketDataError: fewer than two bars, times that do not increase, or irregular bars.
    """
    if len(timestamps) < 2:
        raise MarketDataError(f"annualising needs at least two bars, got {len(timestamps)}", field="timestamp")
    steps = np.diff(timestamps)
    bar = steps.min()
    if bar <= np.timedelta64(0, "us"):
        raise MarketDataError("bar ends must increase", row=int(steps.argmin()) + 1, field="timestamp")
    off_grid = steps % bar != np.timedelta64(0, "us")
    if off_grid.any():
        row = int(off_grid.argmax()) + 1
        raise MarketDataError(
            f"irregular bars cannot be annualised: a step of {steps[row - 1]} is no multiple of {bar}",
            row=row,
            field="timestamp",
        )
    return float(_YEAR / bar)


def drawdowns(net_value: FloatArray) -> FloatArray:
    """Fraction lost since the highest value so far, (T,), 0 at each new peak; 1 where the value is zero or less."""
    path = np.maximum(net_value, 0)
    return np.asarray(1 - path / np.maximum.accumulate(path), dtype=np.float64)


def _checked_path(net_value: ArrayLike) -> FloatArray:
    path = np.asarray(net_value, dtype=np.float64)
    if path.ndim != 1:
        raise ValueError(f"net_value must be one-dimensional, got shape {path.shape}")
    if len(path) < 2:
        raise ValueError(f"net_value needs at least two values, got {len(path)}")
    if not np.isfinite(path).all():
        row = int(np.argmin(np.isfinite(path)))
        raise ValueError(f"net_value must be finite, got {path[row]} at position {row}")
    if path[0] <= 0:
        raise ValueError(f"net_value must start above zero, got {path[0]}")
    return path


def _without_residue(value: float, residue: float) -> float:
    return 0.0 if value <= residue else value
