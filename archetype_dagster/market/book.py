"""The mark price, and the cost table that every consumer prices trades with.

Planner, training, environments, replay and engine all come here, so a plan replayed earns exactly its
planned value; the walk itself is `book_walk`'s. The mark is the mid of the best quotes. With one side
empty it is the bar's close, moved to the remaining best quote if it lies inside that side; with both
empty it is the close.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, get_args

import numpy as np
import polars as pl

from archetype_dagster.market.book_walk import side_slippage
from archetype_dagster.market.impact import ImpactCurve
from archetype_dagster.market.order_books import OrderBooks, number_column, order_books
from archetype_dagster.types import FLAT, LONG, SHORT, DepthPolicy, FloatArray

if TYPE_CHECKING:
    from archetype_dagster.settings import ExecutionSettings, PairSettings


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
    losses = np.stack(
        [
            side_slippage(books, mark, quantities, buys=buys, depth_policy=depth_policy, impact_curve=curve)
            for buys in (True, False)
        ]
    )
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
