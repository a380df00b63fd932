"""How much of an order is left after each bar, in closed form, and what working it off so costs on average."""

from __future__ import annotations

import math

import numpy as np

from archetype_dagster.types import FloatArray


def twap_left(horizon_bars: int) -> FloatArray:
    """Share left before each bar and after the last, trading as much in every bar: float64 (H + 1,), from 1 to 0."""
    _require_horizon(horizon_bars)
    return 1.0 - np.arange(horizon_bars + 1) / horizon_bars


def almgren_chriss_left(
    horizon_bars: int,
    *,
    volatility_bps: float,
    temporary_impact_bps: float,
    permanent_impact_bps: float,
    risk_aversion: float,
) -> FloatArray:
    """Share left before each bar and after the last on the optimal path: float64 (H + 1,), from 1 to 0.

    x_j = sinh(k (H - j)) / sinh(k H) with 2 (cosh k - 1) = lambda s^2 / (eta - gamma / 2), which minimises expected
    shortfall plus lambda times its variance: Almgren and Chriss, "Optimal execution of portfolio transactions"
    (2000), Section 2.2, at one bar a step. Without risk aversion it is TWAP.

    Args:
        horizon_bars: H.
        volatility_bps: s, standard deviation of a bar's move in basis points of the arrival price.
        temporary_impact_bps: eta, of the whole order in one bar.
        permanent_impact_bps: gamma, of the whole order.
        risk_aversion: lambda, per basis point.

    Raises:
        ValueError: a horizon that is not positive, or temporary impact of no more than half the permanent one.
    """
    _require_horizon(horizon_bars)
    splitting = temporary_impact_bps - permanent_impact_bps / 2
    if splitting <= 0:
        raise ValueError(
            f"temporary_impact_bps must exceed half of permanent_impact_bps={permanent_impact_bps}, "
            f"got temporary_impact_bps={temporary_impact_bps}"
        )
    # 2 (cosh k - 1) = 4 sinh^2(k / 2), which loses no digits for small k.
    urgency = 2 * math.asinh(math.sqrt(risk_aversion / splitting) * volatility_bps / 2)
    if urgency == 0:
        return twap_left(horizon_bars)
    remaining = urgency * np.arange(horizon_bars, -1, -1)
    # sinh(a) / sinh(b) without either overflowing.
    left: FloatArray = np.exp(remaining - remaining[0]) * np.expm1(-2 * remaining) / np.expm1(-2 * remaining[0])
    return left


def expected_shortfall_bps(
    left: FloatArray, *, half_spread_bps: float, temporary_impact_bps: float, permanent_impact_bps: float
) -> float:
    """Mean implementation shortfall of a schedule on a price without drift, basis points of the arrival value.

    gamma / 2 + epsilon + (eta - gamma / 2) sum n_j^2 with n_j the shares traded: Almgren and Chriss (2000),
    Section 1.4, linear impact. For TWAP the sum is 1 / H.
    """
    traded = -np.diff(left)
    splitting = temporary_impact_bps - permanent_impact_bps / 2
    return float(permanent_impact_bps / 2 + half_spread_bps + splitting * (traded**2).sum())


def _require_horizon(horizon_bars: int) -> None:
    if horizon_bars < 1:
        raise ValueError(f"horizon_bars must be positive, got horizon_bars={horizon_bars}")
