"""What observations show of prices: returns, trends, volatility and turbulence, from past and present rows only."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from archetype_dagster.market.rolling import window_moments
from archetype_dagster.types import FloatArray

PRICE_COLUMNS: Final = ("return", "trend", "volatility")
# Added to the variances, as a fraction of their mean and at least, so that assets that move as one can be inverted.
_RIDGE: Final = 1e-6
_LEAST_RIDGE: Final = 1e-12


def log_returns(prices: FloatArray) -> FloatArray:
    """One-bar log returns of prices (T, N): float64 (T, N), zero on the first row."""
    return np.diff(np.log(prices), axis=0, prepend=np.log(prices[:1]))


def price_columns(prices: FloatArray, window: int, *, unit: float) -> FloatArray:
    """Return, trend and volatility of each asset on each row: float64 (T, N, 3).

    The return is the one-bar log return; the trend is the log price less its mean over the last `window` rows; the
    volatility is the standard deviation of the last `window` returns. Rows before `window` have no full window and
    are zero: they are never to be shown.

    Args:
        prices: float64 (T, N).
        window: rows and returns of a window, at least 2.
        unit: what a return of one is called: 100 for percent, 1e4 for basis points.
    """
    returns = log_returns(prices)
    columns = np.zeros((*prices.shape, len(PRICE_COLUMNS)))
    if len(prices) <= window:
        return columns
    columns[..., 0] = returns
    logs = np.log(prices).T
    # The first return is none, and the first full window of prices ends a row before that of returns.
    columns[window:, :, 1] = (logs[:, window:] - window_moments(logs, window).mean[:, 1:]).T
    columns[window:, :, 2] = window_moments(np.ascontiguousarray(returns[1:].T), window).std.T
    columns[:window] = 0.0
    return unit * columns


def turbulence(prices: FloatArray, window: int) -> FloatArray:
    """How unusual each bar's returns are among the `window` before it, per asset: float64 (T,).

    d_t = (r_t - mu) S^-1 (r_t - mu)' / N with mean mu and covariance S of r_(t-window) .. r_(t-1), after Kritzman
    and Li, "Skulls, Financial Turbulence, and Risk Management" (2010). It is near one on usual bars. Rows up to
    `window` have no full window and are zero: they are never to be shown.

    Args:
        prices: float64 (T, N).
        window: returns the mean and covariance are taken over; more than N.

    Raises:
        ValueError: a window that is not longer than the number of assets.
    """
    rows, assets = prices.shape
    if window <= assets:
        raise ValueError(f"turbulence_bars must exceed the number of assets {assets}, got turbulence_bars={window}")
    index = np.zeros(rows)
    if rows <= window + 1:
        return index
    returns = log_returns(prices)
    before = sliding_window_view(returns[1:-1], window, axis=0).transpose(0, 2, 1)
    mean = before.mean(axis=1)
    covariance = np.einsum("twi,twj->tij", before, before) / window - mean[:, :, np.newaxis] * mean[:, np.newaxis]
    scale = np.trace(covariance, axis1=1, axis2=2) / assets
    ridge = np.maximum(_RIDGE * scale, _LEAST_RIDGE)
    covariance += ridge[:, np.newaxis, np.newaxis] * np.eye(assets)
    excess = returns[window + 1 :] - mean
    solved = np.linalg.solve(covariance, excess[..., np.newaxis])[..., 0]
    index[window + 1 :] = (excess * solved).sum(axis=1) / assets
    return index
