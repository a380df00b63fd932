"""Walking the order book, the mark price, and the cost table that every consumer prices trades with.

There is one walk. Planner, training, environments, replay and engine all come here, so a plan
replayed earns exactly its planned value. The rules where a book falls short:

- The mark is the mid of the best quotes. With one side empty it is the bar's close, moved to the
  remaining best quote if it lies inside that side; with both empty it is the close.
- An empty side is untradable: `extrapolate` and `last_level` price every unit there
  `UNTRADABLE_BPS` from the mark, dear enough for no plan to want it and finite so that one bad row
  does not end a backtest; `reject` refuses the row.
- No fill is better than the mark: a distance below zero counts as zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, get_args

import numpy as np
import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.impact import BPS, ImpactCurve
from archetype_dagster.market.order_books import OrderBooks, number_column, order_books
from archetype_dagster.settings import DepthPolicy, ExecutionSettings, PairSettings
from archetype_dagster.types import FLAT, LONG, SHORT, FloatArray

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


class CostParts(NamedTuple):
    """The two parts of the execution loss O, each float64 (T, 3, 3) by (from, to) action, quote units."""

    slippage: FloatArray
    commission: FloatArray


def mark_prices(bars: pl.DataFrame) -> FloatArray:
    """Mark price p_t = mid of the best quotes, float64 (T,), quote units; see the module for empty sides."""
    return _mark(bars, order_books(bars, levels=1))


def mark_of_books(books: OrderBooks, close: FloatArray) -> FloatArray:
    """Mark price of each book, float64 (T,); `close` (T,) stands in where a side is empty."""
    best_bid, best_ask = books.bid.prices[:, 0], books.ask.prices[:, 0]
    one_sided = books.bid.empty | books.ask.empty
    # fmax and fmin ignore the NaN of the empty side.
    return np.where(one_sided, np.fmin(np.fmax(close, best_bid), best_ask), 0.5 * (best_bid + best_ask))


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
        taken = np.minimum(sizes[..., level], unfilled)
        cash += taken * prices[..., level]
        filled += taken
        unfilled -= taken
    return Fill(cash, filled, unfilled)


def trade_costs(
    bars: pl.DataFrame,
    *,
    max_position: float,
    commission_rate: float,
    depth_policy: DepthPolicy = "extrapolate",
    impact_curve: ImpactCurve | None = None,
) -> FloatArray:
    """Execution loss O_t = |cash difference to the mark| + commission, float64 (T, 3, 3) by (from, to) action.

    In quote units, never negative, 0 on the diagonal. The sum of `trade_cost_parts`, which see.
    """
    parts = trade_cost_parts(
        bars,
        max_position=max_position,
        commission_rate=commission_rate,
        depth_policy=depth_policy,
        impact_curve=impact_curve,
    )
    return parts.slippage + parts.commission


def trade_cost_parts(
    bars: pl.DataFrame,
    *,
    max_position: float,
    commission_rate: float,
    depth_policy: DepthPolicy = "extrapolate",
    impact_curve: ImpactCurve | None = None,
) -> CostParts:
    """Slippage against the mark and commission of every change between short, flat and long.

    Args:
        bars: T bars with a book.
        max_position: m in base units; changes trade m or 2 m.
        commission_rate: fraction of the traded notional at the mark.
        depth_policy: beyond the visible book, `extrapolate` continues at the larger of the worst
            visible distance and the impact curve, `last_level` at the worst visible price, and
            `reject` refuses the row.
        impact_curve: curve of `extrapolate`; the shipped one by default.

    Raises:
        ValueError: max_position or commission_rate out of range, or an unknown depth policy.
        MarketDataError: unusable prices or sizes; under `reject` the first row that cannot fill 2 m.
    """
    if not (np.isfinite(max_position) and max_position > 0):
        raise ValueError(f"max_position must be positive, got max_position={max_position}")
    if not (np.isfinite(commission_rate) and commission_rate >= 0):
        raise ValueError(f"commission_rate must not be negative, got commission_rate={commission_rate}")
    if depth_policy not in get_args(DepthPolicy):
        hint = "; partial fills leave positions off the table's grid" if str(depth_policy) == "partial" else ""
        raise ValueError(
            f"depth_policy must be one of {get_args(DepthPolicy)}, got depth_policy={depth_policy!r}{hint}"
        )
    mark, losses = order_slippage(
        bars, (max_position, 2 * max_position), depth_policy=depth_policy, impact_curve=impact_curve
    )
    slippage, commission = np.zeros((bars.height, 3, 3)), np.zeros((bars.height, 3, 3))
    for side, (start, middle, end) in enumerate(((SHORT, FLAT, LONG), (LONG, FLAT, SHORT))):
        for size, changes in enumerate((((start, middle), (middle, end)), ((start, end),))):
            for before, after in changes:
                slippage[:, before, after] = losses[side, size]
                commission[:, before, after] = commission_rate * ((size + 1) * max_position) * mark
    return CostParts(slippage, commission)


def order_slippage(
    bars: pl.DataFrame,
    quantities: Sequence[float],
    *,
    depth_policy: DepthPolicy = "extrapolate",
    impact_curve: ImpactCurve | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Marks, and what market orders of any size lose against them: the walk behind every cost table.

    Args:
        bars: T bars with a book.
        quantities: Q sizes in base units, not negative.
        depth_policy: as in `trade_cost_parts`.
        impact_curve: as in `trade_cost_parts`.

    Returns:
        mark float64 (T,) and losses float64 (2, Q, T) of buying and of selling each size, both in quote
        units, never negative.

    Raises:
        MarketDataError: as `trade_cost_parts`; under `reject` the first row that cannot fill a size.
    """
    curve = ImpactCurve.default() if impact_curve is None else impact_curve
    books = order_books(bars)
    mark = _mark(bars, books)
    losses = np.empty((2, len(quantities), bars.height))
    for side, sign, name, found in ((books.ask, 1.0, "asks", losses[0]), (books.bid, -1.0, "bids", losses[1])):
        distance = np.maximum(sign * (np.where(side.empty, mark, side.prices.T) - mark), 0.0).T
        for quantity, loss in zip(quantities, found, strict=True):
            fill = walk_book(distance, side.sizes, quantity)
            if depth_policy == "reject":
                _refuse_shortfall(fill, quantity, name)
            loss[:] = fill.cash + beyond_the_book(fill, distance.max(axis=1), mark, depth_policy, curve)
            loss[side.empty] = quantity * mark[side.empty] * (UNTRADABLE_BPS * BPS)
    return mark, losses


def execution_cost_parts(bars: pl.DataFrame, execution: ExecutionSettings, pair: PairSettings) -> CostParts:
    """The cost parts under the run's settings: the pair's m, and the shipped curve stretched to its liquidity."""
    return trade_cost_parts(
        bars,
        max_position=pair.max_position,
        commission_rate=execution.commission_rate,
        depth_policy=execution.depth_policy,
        impact_curve=ImpactCurve.default().scaled(pair.liquidity_scale),
    )


def _mark(bars: pl.DataFrame, books: OrderBooks) -> FloatArray:
    one_sided = (books.bid.empty | books.ask.empty).any()
    # Only a one-sided book looks at the close.
    return mark_of_books(books, number_column(bars, "close", positive=True) if one_sided else np.zeros(bars.height))


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
