"""The six metrics of a net-value path, and the number of periods in a year that they are scaled by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from archetype_dagster.backtest.metric_kernels import defined, metric_arrays
from archetype_dagster.errors import MarketDataError
from archetype_dagster.types import FloatArray, JsonDict

BARS_PER_YEAR: Final = 52_560
_YEAR: Final = np.timedelta64(365, "D")


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

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The metrics among some facts by name; KeyError names one that is missing."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})

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
    path = path_until_ruin(net_value)
    check_periods_per_year(periods_per_year)
    metrics = metric_arrays(
        path_returns(path)[None], path[None, 1:], start=float(path[0]), periods_per_year=periods_per_year
    )
    values = {name: float(value[0]) for name, value in vars(metrics).items()}
    return Performance(
        total_return=values["total_return"],
        annual_volatility=values["annual_volatility"],
        max_drawdown=values["max_drawdown"],
        sharpe=defined(values["sharpe"]),
        calmar=defined(values["calmar"]),
        sortino=defined(values["sortino"]),
        ruined=bool(path[-1] == 0),
    )


def path_until_ruin(net_value: ArrayLike) -> FloatArray:
    """The path as float64 up to its first value <= 0, which becomes 0; the whole path where there is none.

    Args:
        net_value: (T,) net value in quote units, T >= 2, starting at the initial capital V_1.

    Raises:
        ValueError: fewer than two values, not one-dimensional, a non-finite value, or a non-positive start.
    """
    path = _checked_path(net_value)
    lost = path <= 0
    if lost.any():
        path = path[: int(lost.argmax()) + 1].copy()
        path[-1] = 0.0
    return path


def path_returns(path: FloatArray) -> FloatArray:
    """r_t = V_t / V_{t-1} - 1 of a path that ends at ruin, float64 (T - 1,); -1 at ruin."""
    return np.asarray(path[1:] / path[:-1] - 1)


def check_periods_per_year(periods_per_year: float) -> None:
    """Refuse a year that has no periods (`ValueError`)."""
    if not (np.isfinite(periods_per_year) and periods_per_year > 0):
        raise ValueError(f"periods_per_year must be positive and finite, got periods_per_year={periods_per_year}")


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
