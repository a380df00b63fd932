"""Walking an order book, and what an order loses against the mark by it. There is one walk.

The rules where a book falls short:

- An empty side is untradable: `extrapolate` and `last_level` price every unit there
  `UNTRADABLE_BPS` from the mark, dear enough for no plan to want it and finite so that one bad row
  does not end a backtest; `reject` refuses the row.
- No fill is better than the mark: a distance below zero counts as zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.impact import BPS, ImpactCurve
from archetype_dagster.market.order_books import OrderBooks
from archetype_dagster.types import DepthPolicy, FloatArray

UNTRADABLE_BPS: Final = 1_000.0
_SHORTFALL_TOLERANCE: Final = 1e-9


@dataclass(frozen=True)
class Fill:
    """What walking a book gave.

    Attributes:
        cash: float64 (...), sum of price times filled size over the levels.
        filled: float64 (...), size that the visible levels gave, base units.
        unfilled: float64 (...), the rest of the order, base units.
    """

    cash: FloatArray
    filled: FloatArray
    unfilled: FloatArray


def walk_book(prices: FloatArray, sizes: FloatArray, quantity: float | FloatArray) -> Fill:
    """Fill an order level by level, best first: C(q) of the execution loss O = C(q) - q p + fee.

    What the visible levels cannot fill is reported, not priced: that is the depth policy's part.

    Args:
        prices: float64 (..., N), finite; any per-unit amount will do, e.g. distances from the mark.
        sizes: float64 (..., N), base units, not negative.
        quantity: base units wanted, not negative, a number or an array (...).

    Raises:
        ValueError: shapes differ or a quantity is negative or not finite.
    """
    if prices.shape != sizes.shape or not prices.ndim:
        raise ValueError(f"prices and sizes must have one shape (..., N), got {prices.shape} and {sizes.shape}")
    wanted = np.asarray(quantity, dtype=np.float64)
    if not np.isfinite(wanted).all() or (wanted < 0).any():
        raise ValueError(f"quantity must be finite and not negative, got quantity={quantity}")
    unfilled = np.broadcast_to(wanted, prices.shape[:-1]).copy()
    filled, cash = np.zeros_like(unfilled), np.zeros_like(unfilled)
    # Level by level and element by element: no row's bits depend on how many rows there are.
    for level in range(prices.shape[-1]):
        if not unfilled.any():
            break
        taken = np.minimum(sizes[..., level], unfilled)
        cash += taken * prices[..., level]
        filled += taken
        unfilled -= taken
    return Fill(cash, filled, unfilled)


def side_slippage(
    books: OrderBooks,
    mark: FloatArray,
    quantities: Sequence[float],
    *,
    buys: bool,
    depth_policy: DepthPolicy,
    impact_curve: ImpactCurve,
) -> FloatArray:
    """What market orders on one side of T books lose against their `mark` (T,), float64 (Q, T); see `order_slippage`.

    No book's bits depend on how many there are.
    """
    side, sign = (books.ask, 1.0) if buys else (books.bid, -1.0)
    distance = np.maximum(sign * (np.where(side.empty, mark, side.prices.T) - mark), 0.0).T
    losses = np.empty((len(quantities), len(mark)))
    for quantity, loss in zip(quantities, losses, strict=True):
        fill = walk_book(distance, side.sizes, quantity)
        if depth_policy == "reject":
            _refuse_shortfall(fill, quantity, "asks" if buys else "bids")
        loss[:] = fill.cash + beyond_the_book(fill, distance.max(axis=1), mark, depth_policy, impact_curve)
        loss[side.empty] = quantity * mark[side.empty] * (UNTRADABLE_BPS * BPS)
    return losses


def beyond_the_book(
    fill: Fill, worst_distance: FloatArray, mark: FloatArray, policy: DepthPolicy, curve: ImpactCurve
) -> FloatArray:
    """Loss against the mark of what a walk left unfilled, float64 (T,), quote units.

    Args:
        fill: of the walk, arrays (T,).
        worst_distance: float64 (T,), distance of the worst visible level from the mark, quote units.
        mark: float64 (T,), quote units.
        policy: `extrapolate` or `last_level`; `reject` leaves nothing unfilled.
        curve: of `extrapolate`.
    """
    loss = fill.unfilled * worst_distance
    rows = np.flatnonzero(fill.unfilled) if policy == "extrapolate" else np.empty(0, dtype=np.int64)
    if rows.size:
        price = mark[rows]
        seen = fill.filled[rows] * price
        wanted = seen + fill.unfilled[rows] * price
        loss[rows] += curve.excess_cost(seen, wanted, worst_distance[rows] / (price * BPS))
    return loss


def _refuse_shortfall(fill: Fill, quantity: float, side: str) -> None:
    short = fill.unfilled > _SHORTFALL_TOLERANCE * quantity
    if short.any():
        row = int(np.argmax(short))
        raise MarketDataError(
            f"depth_policy 'reject': visible depth {fill.filled[row]:.10g} cannot fill an order of {quantity:.10g}",
            row=row,
            field=side,
        )
