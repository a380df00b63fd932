"""Quotes in closed form of Avellaneda and Stoikov, "High-frequency trading in a limit order book" (2008)."""

from __future__ import annotations

import math


def avellaneda_stoikov_distances(
    inventory: float, volatility_bps: float, *, bars_left: float, risk_aversion: float, fill_decay_per_bps: float
) -> tuple[float, float]:
    """Distances of the bid below and the ask above the mid, basis points; negative across the mid.

    The reservation price lies q g s^2 (T - t) below the mid, and the quotes g s^2 (T - t) / 2 + ln(1 + g / k) / g on
    either side of it (their Section 3), with everything in basis points and lots.

    Args:
        inventory: q, lots.
        volatility_bps: s, standard deviation of the mid's move in a bar.
        bars_left: T - t.
        risk_aversion: g, per lot and basis point.
        fill_decay_per_bps: k, of the fill intensity exp(-k distance).

    Raises:
        ValueError: a risk aversion or a decay that is not positive, or a negative volatility or time.
    """
    if risk_aversion <= 0 or fill_decay_per_bps <= 0:
        raise ValueError(
            f"risk_aversion and fill_decay_per_bps must be positive, got {risk_aversion} and {fill_decay_per_bps}"
        )
    if volatility_bps < 0 or bars_left < 0:
        raise ValueError(f"volatility_bps and bars_left must not be negative, got {volatility_bps} and {bars_left}")
    variance = risk_aversion * volatility_bps**2 * bars_left
    half = variance / 2 + math.log1p(risk_aversion / fill_decay_per_bps) / risk_aversion
    return half + inventory * variance, half - inventory * variance
